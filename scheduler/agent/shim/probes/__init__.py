"""Probes of a running task: what its guard checks, and when its task is unhealthy."""
