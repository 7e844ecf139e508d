"""Whom to stop, suspend or shrink for a job that waits."""
