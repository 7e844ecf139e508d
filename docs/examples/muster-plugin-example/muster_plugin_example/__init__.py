"""Example plugins for Muster."""
