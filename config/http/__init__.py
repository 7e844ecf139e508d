"""The web process: its servers, probes, middleware and rate limits."""
