"""A whole portal, with its database, its processes and agents: throughput, latency, memory, WAL, pages."""
