"""What a task has saved of its work, kept in the site's storage for the job's next attempt."""

from __future__ import annotations

import uuid

from django.conf import settings
from django.db import models
from django.db.models import Q


class CheckpointState(models.TextChoices):
    """Where a checkpoint is; only a complete one can be gone on from."""

    STORING = "storing", "on its way to the storage"
    COMPLETE = "complete", "stored and verified"
    FAILED = "failed", "not stored"
    LEAVING = "leaving", "to be removed"
    REMOVED = "removed", "removed"


class CheckpointReason(models.TextChoices):
    """Why a task made a checkpoint."""

    OWN = "own", "by the program"
    PERIODIC = "periodic", "periodic"
    ASKED = "asked", "requested by a person"
    TIME_LIMIT = "time_limit", "time limit near"
    STOP = "stop", "before the job is stopped"


class Checkpoint(models.Model):
    """A checkpoint of one task, in pieces under the key of the row. The row stays when the bytes have gone.

    Named by job, attempt, rank, its name there, and the time of its marker on the node: announced twice it is one.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    job = models.ForeignKey(
        "scheduler.Job", on_delete=models.CASCADE, related_name="checkpoints", db_index=False
    )
    epoch = models.PositiveIntegerField()
    rank = models.PositiveIntegerField()
    name = models.CharField(max_length=800)
    marked_ns = models.BigIntegerField()
    node = models.ForeignKey("scheduler.Node", on_delete=models.PROTECT, related_name="+", db_index=False)
    state = models.CharField(max_length=8, choices=CheckpointState, default=CheckpointState.STORING)
    reason = models.CharField(max_length=10, choices=CheckpointReason)
    #: Why the checkpoint was not stored, or was removed.
    text = models.CharField(max_length=300, blank=True)
    files = models.PositiveIntegerField()
    size_bytes = models.BigIntegerField()
    #: When the node announced it, when the last piece of it came, and when all of it was verified.
    taken_at = models.DateTimeField()
    seen_at = models.DateTimeField()
    stored_at = models.DateTimeField(null=True, blank=True)
    removed_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, null=True, blank=True, related_name="+",
        db_index=False,
    )  # fmt: skip

    class Meta:
        ordering = ["job_id", "-taken_at", "rank"]
        indexes = [
            # What has bytes in the storage that somebody has to look after.
            models.Index(
                fields=["taken_at"],
                name="checkpoint_to_watch",
                condition=Q(state__in=["storing", "complete", "leaving"]),
            ),
        ]
        constraints = [
            models.UniqueConstraint(
                name="checkpoint_once", fields=["job", "epoch", "rank", "name", "marked_ns"]
            ),
            models.CheckConstraint(name="checkpoint_has_size", condition=Q(size_bytes__gte=0)),
            models.CheckConstraint(
                name="checkpoint_state_known", condition=Q(state__in=CheckpointState.values)
            ),
            models.CheckConstraint(
                name="checkpoint_complete_is_stored",
                condition=~Q(state="complete") | Q(stored_at__isnull=False),
            ),
        ]

    def __str__(self) -> str:
        return f"checkpoint {self.name} of task {self.rank} of job {self.job_id}, attempt {self.epoch}"
