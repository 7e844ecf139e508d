"""Profiles with their versions and shadow runs, through the API."""
