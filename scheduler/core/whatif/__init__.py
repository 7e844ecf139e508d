"""What one job would need to start, or to start earlier."""
