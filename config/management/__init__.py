"""Commands that belong to the wiring."""
