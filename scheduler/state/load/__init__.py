"""Rows of the database as the snapshot that a cycle plans on."""
