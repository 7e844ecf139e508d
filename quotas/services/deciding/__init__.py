"""Providers of a site that decide about starts: asked before a start, notified of it and of the end."""
