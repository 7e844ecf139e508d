"""Verbs on many jobs: on arrays as a whole, and on what a filter finds."""
