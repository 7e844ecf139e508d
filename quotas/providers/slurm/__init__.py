"""Quotas kept by a Slurm accounting database, over its commands or its REST API."""
