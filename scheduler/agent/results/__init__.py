"""What jobs leave in their working folders: kept on the node, listed and read a piece at a time."""
