"""Nodes and parts of nodes set aside for a time window: asked for by a project, decided and made by operators."""

from __future__ import annotations

import uuid

import pghistory
from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import F, Q


class ReservationStatus(models.TextChoices):
    """What was decided; only what is approved holds anything."""

    REQUESTED = "requested", "requested"
    APPROVED = "approved", "approved"
    DECLINED = "declined", "declined"


@pghistory.track()
class Reservation(models.Model):
    """A booking: inside its window what it holds serves only jobs of its project and people, or none (maintenance).

    Whole nodes are in `nodes`, parts of nodes in `parts`. The database refuses two approved ones that hold the same
    at the same time (migration 0097).
    """

    uuid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    cluster = models.ForeignKey("scheduler.Cluster", on_delete=models.CASCADE, related_name="reservations")
    name = models.CharField(max_length=120)
    nodes = models.ManyToManyField("scheduler.Node", related_name="reservations")
    #: Whose jobs may run there; with neither a project nor `users` nor a job it is maintenance.
    project = models.ForeignKey(
        "accounts.Project", null=True, blank=True, on_delete=models.CASCADE, related_name="reservations"
    )
    users = models.ManyToManyField(settings.AUTH_USER_MODEL, blank=True, related_name="reservations")
    #: Set for a hold: the nodes take only this job while it is pending.
    job = models.ForeignKey(
        "scheduler.Job", null=True, blank=True, on_delete=models.CASCADE, related_name="reservations"
    )
    starts_at = models.DateTimeField()
    ends_at = models.DateTimeField()
    #: Jobs of the project and of the people use whole nodes without naming the reservation.
    magnetic = models.BooleanField(default=True, db_default=True)
    reason = models.CharField(max_length=200, blank=True)
    #: What was asked for, in the words of the request; nodes are chosen when it is approved.
    wanted = models.JSONField(default=dict, blank=True, db_default={})
    status = models.CharField(
        max_length=9, choices=ReservationStatus, default=ReservationStatus.APPROVED, db_default="approved"
    )
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+"
    )
    created_at = models.DateTimeField(auto_now_add=True)
    #: Who approved or declined a request.
    decided_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    decided_at = models.DateTimeField(null=True, blank=True)
    decision_reason = models.CharField(max_length=200, blank=True, db_default="")
    cancelled_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["starts_at", "id"]
        constraints = [
            models.CheckConstraint(
                name="reservation_ends_after_start", condition=Q(ends_at__gt=F("starts_at"))
            ),
            models.CheckConstraint(
                name="reservation_status_known", condition=Q(status__in=ReservationStatus.values)
            ),
            models.CheckConstraint(
                name="reservation_declined_with_reason",
                condition=~Q(status=ReservationStatus.DECLINED) | ~Q(decision_reason=""),
            ),
        ]

    def __str__(self) -> str:
        return self.name


class ReservationPart(models.Model):
    """What a reservation holds of one node, where that is not the whole node."""

    reservation = models.ForeignKey(Reservation, on_delete=models.CASCADE, related_name="parts")
    node = models.ForeignKey("scheduler.Node", on_delete=models.CASCADE, related_name="reserved_parts")
    cpu_millis = models.BigIntegerField(default=0)
    memory_mib = models.BigIntegerField(default=0)
    device_ids = ArrayField(models.BigIntegerField(), default=list)

    class Meta:
        ordering = ["reservation_id", "node_id"]
        constraints = [
            models.UniqueConstraint(name="reservation_part_once", fields=["reservation", "node"]),
            models.CheckConstraint(
                name="reservation_part_not_negative", condition=Q(cpu_millis__gte=0) & Q(memory_mib__gte=0)
            ),
        ]

    def __str__(self) -> str:
        return f"part of {self.node_id}"
