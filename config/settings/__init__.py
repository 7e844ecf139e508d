"""Four small files: base for all, and what development, tests and production do differently."""
