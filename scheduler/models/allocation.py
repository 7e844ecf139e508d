"""What one task of an attempt holds on one node, from start to end; the thing that is charged."""

from __future__ import annotations

from django.contrib.postgres.fields import ArrayField
from django.db import models


class AllocationQuerySet(models.QuerySet["Allocation"]):
    def held(self) -> AllocationQuerySet:
        return self.filter(released_at__isnull=True)


class Allocation(models.Model):
    """What a task holds, as a view of its row (migration 0060): a task has one, with its own id.

    Rows go with those of tasks. Indexes and checks are those of `Task`.
    """

    attempt = models.ForeignKey(
        "scheduler.Attempt", on_delete=models.DO_NOTHING, related_name="allocations", db_constraint=False
    )
    rank = models.PositiveIntegerField()
    node = models.ForeignKey(
        "scheduler.Node", on_delete=models.DO_NOTHING, related_name="allocations", db_constraint=False
    )
    cpu_millis = models.BigIntegerField()
    #: CPUs released while the job is suspended; `cpu_millis` is what it holds.
    suspended_cpu_millis = models.BigIntegerField(default=0, db_default=0)
    memory_mib = models.BigIntegerField()
    storage_mib = models.BigIntegerField(default=0)
    #: Of all its devices together: 1000 a whole GPU, less for a share of one.
    gpu_millis = models.BigIntegerField(default=0)
    device_ids = ArrayField(models.BigIntegerField(), default=list)
    numa_domain = models.PositiveSmallIntegerField(null=True, blank=True)
    extras = models.JSONField(default=dict)
    held_at = models.DateTimeField()
    released_at = models.DateTimeField(null=True, blank=True)

    objects = AllocationQuerySet.as_manager()

    class Meta:
        managed = False
        ordering = ["attempt_id", "rank"]

    def __str__(self) -> str:
        return f"allocation of attempt {self.attempt_id} rank {self.rank}"
