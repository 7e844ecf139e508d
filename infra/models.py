"""Rows that belong to no app: how calls to systems outside Muster go."""

from __future__ import annotations

from datetime import datetime

from django.db import models
from django.db.models import Q
from django.utils import timezone


class System(models.TextChoices):
    """What is outside; a circuit is of one of these, or of one endpoint of it."""

    STORAGE = "storage", "Storage of artefacts"
    MAIL = "mail", "Mail server"
    QUOTA = "quota", "Quota provider"
    WEBHOOK = "webhook", "Webhook receiver"
    INVENTORY = "inventory", "Inventory service"


class Circuit(models.Model):
    """Calls to one system outside that failed lately; a system without a row answers.

    Shared by all processes. `open_until` empty: closed, the system is called. In the future: open, nobody calls it.
    In the past: half-open, the next caller tries and moves it on.
    """

    #: `storage`, `mail`, `quota:k8s`, `webhook:17`.
    name = models.CharField(max_length=120, primary_key=True)
    system = models.CharField(max_length=12, choices=System)
    #: What people know it by: the bucket, the host.
    label = models.CharField(max_length=200, blank=True, db_default="")
    #: In a row.
    failures = models.PositiveIntegerField()
    failed_at = models.DateTimeField()
    opened_at = models.DateTimeField(null=True, blank=True)
    open_until = models.DateTimeField(null=True, blank=True)
    #: What the last of them said.
    text = models.CharField(max_length=500, blank=True, db_default="")

    class Meta:
        ordering = ["name"]
        constraints = [
            models.CheckConstraint(name="circuit_system_known", condition=Q(system__in=System.values)),
            models.CheckConstraint(
                name="circuit_open_since_and_until",
                condition=Q(opened_at__isnull=True, open_until__isnull=True)
                | Q(opened_at__isnull=False, open_until__isnull=False),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.get_system_display()} {self.label}".strip()

    @property
    def state(self) -> str:
        """`closed`, `open` or `half-open`."""
        return state_of(self.open_until)


def state_of(open_until: datetime | None) -> str:
    """The state of a circuit that is open until then; None = closed."""
    if open_until is None:
        return "closed"
    return "open" if open_until > timezone.now() else "half-open"
