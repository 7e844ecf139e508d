"""What one task of an attempt holds on one node, from start to end; the thing that is charged."""

from __future__ import annotations

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import F, Q


class AllocationQuerySet(models.QuerySet["Allocation"]):
    def held(self) -> AllocationQuerySet:
        return self.filter(released_at__isnull=True)


class Allocation(models.Model):
    # References that the database checks once a statement: infra.db.references.
    attempt = models.ForeignKey(
        "scheduler.Attempt",
        on_delete=models.CASCADE,
        related_name="allocations",
        db_index=False,
        db_constraint=False,
    )
    rank = models.PositiveIntegerField()
    node = models.ForeignKey(
        "scheduler.Node",
        on_delete=models.PROTECT,
        related_name="allocations",
        db_index=False,
        db_constraint=False,
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
        ordering = ["attempt_id", "rank"]
        indexes = [
            models.Index(fields=["node"], name="allocation_held_on", condition=Q(released_at__isnull=True)),
        ]
        constraints = [
            models.UniqueConstraint(name="allocation_once", fields=["attempt", "rank"]),
            models.CheckConstraint(
                name="allocation_not_negative",
                condition=Q(
                    cpu_millis__gte=0,
                    suspended_cpu_millis__gte=0,
                    memory_mib__gte=0,
                    storage_mib__gte=0,
                    gpu_millis__gte=0,
                ),
            ),
            models.CheckConstraint(
                name="allocation_ends_after_start",
                condition=Q(released_at__isnull=True) | Q(released_at__gte=F("held_at")),
            ),
        ]

    def __str__(self) -> str:
        return f"allocation of attempt {self.attempt_id} rank {self.rank}"
