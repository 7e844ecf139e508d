"""Which nodes a job may use (filters), which are best (scores), and where its tasks go."""
