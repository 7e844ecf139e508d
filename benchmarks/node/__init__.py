"""One node by itself, without a portal."""
