"""Processes of the portal that are forked from one which has loaded what they need."""
