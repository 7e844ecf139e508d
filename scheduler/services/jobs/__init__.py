"""What people do with a job that they have submitted."""
