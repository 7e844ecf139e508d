"""Pure arithmetic of amounts and limits; no Django."""
