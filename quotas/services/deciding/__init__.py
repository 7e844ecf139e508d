"""Providers of a site that decide about starts: asked before one, told of it and of the end."""
