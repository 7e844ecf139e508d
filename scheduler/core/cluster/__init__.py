"""The snapshot indexed for one cycle, and the scratch capacity that decisions are taken from."""
