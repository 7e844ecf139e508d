"""Which pending jobs have changed: the feed that a planner reads to bring its picture up to date."""

from __future__ import annotations

from django.db import models


class ChangedJob(models.Model):
    """One change of a job that waits, has just begun or has just ceased to wait; triggers on the jobs write it.

    Not in the write-ahead log: after a crash of the server it is empty, and every planner loads all jobs anew.
    """

    job_number = models.BigIntegerField()
    queue_id = models.BigIntegerField()
    #: The transaction that changed it (xid8, as a number).
    xid = models.BigIntegerField()

    def __str__(self) -> str:
        return f"job {self.job_number} changed"
