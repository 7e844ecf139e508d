"""Rows of what people send to the portal for their jobs."""
