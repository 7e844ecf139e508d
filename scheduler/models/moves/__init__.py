"""Jobs that are moved from node to node while they run."""
