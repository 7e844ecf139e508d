"""One move of a running job to other nodes, by a checkpoint: where from, where to, why, and how far it has come."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import Q


class MoveState(models.TextChoices):
    """How far a move has come. Until `stopping` it can be undone, and the job runs on where it is."""

    SAVING = "saving", "is writing a checkpoint"
    STOPPING = "stopping", "writes a last checkpoint and ends"
    WAITING = "waiting", "waits to start on another node"
    DONE = "done", "is running again"
    UNDONE = "undone", "was not moved"


class MoveCause(models.TextChoices):
    """What a move is for."""

    DRAIN = "drain", "drain of the node"
    ASKED = "asked", "requested by a person"
    REBALANCE = "rebalance", "rebalancing"


OPEN_MOVES = (MoveState.SAVING, MoveState.STOPPING, MoveState.WAITING)


class JobMove(models.Model):
    """A move of one attempt of a job. A job has at most one that is not over."""

    job = models.ForeignKey("scheduler.Job", on_delete=models.CASCADE, related_name="moves", db_index=False)
    #: The attempt that is to end.
    epoch = models.PositiveIntegerField()
    cause = models.CharField(max_length=10, choices=MoveCause)
    state = models.CharField(max_length=8, choices=MoveState, default=MoveState.SAVING)
    #: Names of the nodes that it leaves.
    leaves = models.JSONField(default=list)
    #: The node where it is to go on; null = any other.
    target = models.ForeignKey(
        "scheduler.Node", null=True, blank=True, on_delete=models.SET_NULL, related_name="+", db_index=False
    )
    asked_by = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        null=True,
        blank=True,
        on_delete=models.SET_NULL,
        related_name="+",
        db_index=False,
    )
    asked_at = models.DateTimeField()
    reason = models.CharField(max_length=300, blank=True)
    #: When its attempt was asked to end.
    stopped_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)
    #: Result of the move.
    text = models.CharField(max_length=300, blank=True)

    class Meta:
        ordering = ["-id"]
        indexes = [models.Index(fields=["job", "-id"], name="move_of_job")]
        constraints = [
            models.UniqueConstraint(name="move_one_open", fields=["job"], condition=Q(ended_at=None)),
            models.CheckConstraint(name="move_state_known", condition=Q(state__in=MoveState.values)),
            models.CheckConstraint(
                name="move_ended_has_time",
                condition=Q(state__in=["done", "undone"], ended_at__isnull=False)
                | Q(state__in=["saving", "stopping", "waiting"], ended_at=None),
            ),
        ]

    def __str__(self) -> str:
        return f"move {self.pk} of job {self.job_id}"
