"""What happened to a job, in order: one row for each verb, written with the change it tells of."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Self

from django.conf import settings
from django.contrib.postgres.indexes import BrinIndex
from django.db import models

from scheduler.core.reasons.event_texts import details_of, text_of


class JobEvent(models.Model):
    # References that the database checks once a statement (infra.db.references), as those of attempts and tasks.
    job = models.ForeignKey(
        "scheduler.Job", on_delete=models.CASCADE, related_name="events", db_index=False, db_constraint=False
    )
    at = models.DateTimeField()
    #: `job.queued`, `job.running`, `job.cancel_asked`, ...: the noun, a dot, what happened.
    kind = models.CharField(max_length=32)
    #: In words, for people. The usual sentence of some kinds is stored as an empty text, and read as it is.
    because = models.CharField(max_length=300, blank=True)
    epoch = models.PositiveIntegerField(null=True, blank=True)
    actor = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+",
        db_index=False, db_constraint=False,
    )  # fmt: skip
    details = models.JSONField(default=dict, blank=True)

    class Meta:
        ordering = ["id"]
        # The key in the database is (job, id): the events of a job, in order. Who reads all of them in order asks for
        # what comes after an id, which ranges of pages find: the largest of a range does not fall.
        indexes = [BrinIndex(fields=["id"], name="event_by_id", pages_per_range=16, autosummarize=True)]

    @classmethod
    def from_db(
        cls, db: str | None, field_names: Collection[str], values: Collection[Any], **how: Any
    ) -> Self:
        """With the text and the details that are not stored because they follow from the others."""
        event = super().from_db(db, field_names, values, **how)
        if {"kind", "because", "details"} <= set(field_names):
            event.details = details_of(event.kind, event.because, event.details)
            event.because = event.because or text_of(event.kind, event.details)
        return event

    def __str__(self) -> str:
        return f"{self.kind} {self.job_id}"


class MetricCount(models.Model):
    """A counter of /metrics that outlives the rows it has counted, and every restart: it only grows."""

    name = models.CharField(max_length=40)
    #: What it is counted by, such as a queue.
    label = models.CharField(max_length=120, blank=True)
    #: The second label: a bucket of a histogram, an outcome, a failure class.
    detail = models.CharField(max_length=60, blank=True)
    value = models.BigIntegerField(default=0)

    class Meta:
        constraints = [
            models.UniqueConstraint(name="metric_count_once", fields=["name", "label", "detail"]),
            models.CheckConstraint(name="metric_count_not_negative", condition=models.Q(value__gte=0)),
        ]

    def __str__(self) -> str:
        return f"{self.name} {self.label} {self.detail}"


class MetricCursor(models.Model):
    """How far a table has been counted in `MetricCount`."""

    source = models.CharField(max_length=20, unique=True)
    position = models.BigIntegerField()
    moved_at = models.DateTimeField()

    def __str__(self) -> str:
        return self.source
