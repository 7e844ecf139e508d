"""Muster's own node agents."""
