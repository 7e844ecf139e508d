"""Verbs of notifications."""
