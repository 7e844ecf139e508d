"""The scheduling core under a virtual clock: replay a workload, compare policies."""
