"""The backend of Docker: each host is a node, and each task is a container there."""
