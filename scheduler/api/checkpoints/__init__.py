"""The doors of a job's checkpoints."""
