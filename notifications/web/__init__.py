"""Pages of notifications and webhooks."""
