"""Checkpoints at the server: taken over from nodes, given to the next attempt, listed and removed."""
