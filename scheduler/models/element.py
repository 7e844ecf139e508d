"""Elements of an array that one job runs one after another: which they are, and how each ended."""

from __future__ import annotations

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import F, Q

from scheduler.core.lifecycle import ElementState


class JobElements(models.Model):
    """The elements that a job runs; a job that runs one command once has none."""

    job = models.OneToOneField(
        "scheduler.Job", primary_key=True, on_delete=models.CASCADE, related_name="elements"
    )
    #: By rising index.
    indices = ArrayField(models.PositiveIntegerField())
    #: The time limit of each element; the job's own is of all together.
    limit_seconds = models.PositiveIntegerField(null=True, blank=True)

    class Meta:
        ordering = ["job_id"]
        verbose_name_plural = "elements of jobs"
        constraints = [
            models.CheckConstraint(name="elements_not_empty", condition=Q(indices__len__gt=0)),
        ]

    def __str__(self) -> str:
        return f"{len(self.indices)} elements of job {self.job_id}"


class ElementEnd(models.Model):
    """How one element ended: written once, with the attempt that ran it, and never changed."""

    job = models.ForeignKey(
        "scheduler.Job", on_delete=models.CASCADE, related_name="element_ends", db_index=False
    )
    index = models.PositiveIntegerField()
    state = models.CharField(max_length=9, choices=[(s.value, s.value) for s in ElementState])
    #: Of the attempt that ran it; null where none did.
    epoch = models.PositiveIntegerField(null=True, blank=True)
    exit_code = models.IntegerField(null=True, blank=True)
    exit_signal = models.PositiveSmallIntegerField(null=True, blank=True)
    started_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField()
    cpu_time_ms = models.BigIntegerField(null=True, blank=True)
    peak_memory_mib = models.BigIntegerField(null=True, blank=True)
    #: The part of the streams of its attempt that it printed.
    stdout_offset = models.BigIntegerField(default=0)
    stdout_bytes = models.BigIntegerField(default=0)
    stderr_offset = models.BigIntegerField(default=0)
    stderr_bytes = models.BigIntegerField(default=0)
    end_text = models.CharField(max_length=300, blank=True)

    class Meta:
        ordering = ["job_id", "index"]
        constraints = [
            models.UniqueConstraint(name="element_ends_once", fields=["job", "index"]),
            models.CheckConstraint(
                name="element_state_known", condition=Q(state__in=[s.value for s in ElementState])
            ),
            models.CheckConstraint(
                name="element_ends_after_start",
                condition=Q(started_at__isnull=True) | Q(ended_at__gte=F("started_at")),
            ),
            models.CheckConstraint(
                name="element_cancelled_or_run",
                condition=Q(state=ElementState.CANCELLED, epoch__isnull=True)
                | (~Q(state=ElementState.CANCELLED) & Q(epoch__isnull=False, started_at__isnull=False)),
            ),
        ]

    def __str__(self) -> str:
        return f"element {self.index} of job {self.job_id}"
