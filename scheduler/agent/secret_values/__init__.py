"""Secrets on the node: kept for the masking of output while a task is known, and masked in what it prints."""
