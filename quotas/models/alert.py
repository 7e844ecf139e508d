"""Notices about limits and budgets: created once, shown until read."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import Q


class AlertKind(models.TextChoices):
    SOFT_PASSED = "soft_passed", "soft limit passed"
    NEARLY_FULL = "nearly_full", "80 % used"
    FULL = "full", "100 % used"
    RUNS_OUT = "runs_out", "will run out before the period ends"
    EXPIRES = "expires", "ends soon"
    GRANT = "grant", "quota request"


class Alert(models.Model):
    """One thing that happened to one quota line or budget in one period; found again, it is the same row."""

    kind = models.CharField(max_length=12, choices=AlertKind)
    project = models.ForeignKey(
        "accounts.Project", null=True, on_delete=models.CASCADE, related_name="quota_alerts"
    )
    organization = models.ForeignKey(
        "accounts.Organization", null=True, on_delete=models.CASCADE, related_name="quota_alerts"
    )
    #: What it is about and when, as one key: `quota 12 2026-11-28`, `budget 3 2026-11-01`.
    subject = models.CharField(max_length=80)
    text = models.CharField(max_length=300)
    at = models.DateTimeField()
    #: When it was no longer so; null while it is.
    ended_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.UniqueConstraint(name="alert_once", fields=["kind", "subject"]),
            models.CheckConstraint(name="alert_kind_known", condition=Q(kind__in=AlertKind.values)),
        ]

    def __str__(self) -> str:
        return self.text

    @property
    def grant_id(self) -> int | None:
        """The quota request that it is about; None for one about a limit or a budget."""
        return int(self.subject.split()[1]) if self.kind == AlertKind.GRANT else None


class Notice(models.Model):
    """The alerts of one person in one turn, together: a digest, not a flood."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="quota_notices")
    alerts = models.ManyToManyField(Alert, related_name="notices")
    #: The first moment of the turn; one notice a person and turn.
    period_starts_at = models.DateTimeField()
    created_at = models.DateTimeField()
    read_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.UniqueConstraint(name="notice_once_a_turn", fields=["user", "period_starts_at"]),
        ]
        indexes = [
            models.Index(fields=["user"], name="notice_unread", condition=Q(read_at__isnull=True)),
        ]

    def __str__(self) -> str:
        return f"notice of {self.user_id} at {self.period_starts_at:%Y-%m-%d %H:%M}"
