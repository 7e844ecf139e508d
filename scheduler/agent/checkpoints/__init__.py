"""Checkpoints on a node: asked for, found and sent away, and fetched for the next attempt."""
