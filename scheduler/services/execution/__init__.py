"""Attempts handed to backends, and what backends report."""
