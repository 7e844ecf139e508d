"""What the node has: measured, or as the command line says."""
