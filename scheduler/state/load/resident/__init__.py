"""The pending jobs of a cluster, kept in memory from cycle to cycle."""
