"""Connections, locks and statements of PostgreSQL."""
