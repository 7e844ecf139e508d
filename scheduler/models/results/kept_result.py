"""What a task has left in its working folder, kept on its node for a time."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import Q


class LeaveReason(models.TextChoices):
    """Why results leave, or have left."""

    AGE = "age", "retention period over"
    FETCHED = "fetched", "downloaded"
    JOB_SIZE = "job_size", "larger than one task may keep"
    PERSON_SIZE = "person_size", "limit per person on the node exceeded"
    NODE_SIZE = "node_size", "limit of the node exceeded"
    ASKED = "asked", "removed on request"
    NEXT_ATTEMPT = "next", "the next attempt continues in the folder"
    NOT_THERE = "gone", "no longer on the node"


class KeptResult(models.Model):
    """The working folder of one task that left something in it. A task that left nothing has no row.

    Named by job, epoch and rank as the node names it. The row stays when the folder has left, until its job goes.
    """

    job = models.ForeignKey(
        "scheduler.Job", on_delete=models.CASCADE, related_name="kept_results", db_index=False
    )
    epoch = models.PositiveIntegerField()
    rank = models.PositiveIntegerField()
    node = models.ForeignKey("scheduler.Node", on_delete=models.PROTECT, related_name="+", db_index=False)
    #: Whose job it is: a node has room for so much of each person.
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+", db_index=False
    )
    files = models.PositiveIntegerField()
    size_bytes = models.BigIntegerField()
    #: False where there is more than was counted.
    counted_whole = models.BooleanField(default=True)
    kept_at = models.DateTimeField()
    #: From then on the node may remove it; null = not before somebody says so.
    leaves_at = models.DateTimeField(null=True, blank=True)
    leaves_because = models.CharField(max_length=12, choices=LeaveReason, blank=True)
    #: Time of the last complete download.
    fetched_at = models.DateTimeField(null=True, blank=True)
    left_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["job_id", "-epoch", "rank"]
        indexes = [
            models.Index(fields=["node", "job"], name="kept_on_node", condition=Q(left_at=None)),
        ]
        constraints = [
            models.UniqueConstraint(name="kept_result_once", fields=["job", "epoch", "rank"]),
            models.CheckConstraint(name="kept_result_has_size", condition=Q(size_bytes__gte=0)),
            models.CheckConstraint(
                name="kept_result_leaves_for_a_reason",
                condition=Q(leaves_at=None, left_at=None) | ~Q(leaves_because=""),
            ),
        ]

    def __str__(self) -> str:
        return f"results of task {self.rank} of job {self.job_id}, attempt {self.epoch}"
