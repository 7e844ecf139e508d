"""The admin pages of machines, queues, jobs and cycles."""

from scheduler.admin import cluster, cycles, jobs, policies, queues, retention

__all__ = ["cluster", "cycles", "jobs", "policies", "queues", "retention"]
