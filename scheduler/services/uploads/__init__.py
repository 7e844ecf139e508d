"""Folders that people send for their jobs: taken piece by piece, given to nodes, listed and removed."""
