"""Nodes set aside for a time window by a person."""

from __future__ import annotations

import uuid

import pghistory
from django.conf import settings
from django.db import models
from django.db.models import F, Q


@pghistory.track()
class Reservation(models.Model):
    """A booking: inside its window its nodes take only jobs of `project`, or none (maintenance)."""

    uuid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    cluster = models.ForeignKey("scheduler.Cluster", on_delete=models.CASCADE, related_name="reservations")
    name = models.CharField(max_length=120)
    nodes = models.ManyToManyField("scheduler.Node", related_name="reservations")
    #: Whose jobs may run there; null is maintenance.
    project = models.ForeignKey(
        "accounts.Project", null=True, blank=True, on_delete=models.CASCADE, related_name="reservations"
    )
    #: Set for a hold: the nodes take only this job while it is pending.
    job = models.ForeignKey(
        "scheduler.Job", null=True, blank=True, on_delete=models.CASCADE, related_name="reservations"
    )
    starts_at = models.DateTimeField()
    ends_at = models.DateTimeField()
    reason = models.CharField(max_length=200, blank=True)
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+"
    )
    created_at = models.DateTimeField(auto_now_add=True)
    cancelled_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["starts_at", "id"]
        constraints = [
            models.CheckConstraint(
                name="reservation_ends_after_start", condition=Q(ends_at__gt=F("starts_at"))
            ),
        ]

    def __str__(self) -> str:
        return self.name
