"""How things stand with a quota that is kept outside Muster."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from quotas.models.quota import provider_choices


class ProviderStatus(models.TextChoices):
    """What the last exchange came to."""

    PENDING = "pending", "not yet sent"
    OK = "ok", "in sync"
    UNREACHABLE = "unreachable", "unreachable"
    REFUSED = "refused", "refuses"
    DRIFT = "drift", "changed at the provider"
    OFF = "off", "disabled"


class ProviderState(models.Model):
    """One project's quota at its provider; written by `quotas.services.exchange`, of a provider that decides about
    starts by `quotas.services.deciding.checks`.

    `wanted`, `written`, `found` and `used` are values by the provider's own names: what Muster's lines ask
    for, what was last brought over, what is there, and what is in use there.
    """

    project = models.OneToOneField(
        "accounts.Project", on_delete=models.CASCADE, related_name="provider_state", primary_key=True
    )
    provider = models.CharField(max_length=16, choices=provider_choices)
    status = models.CharField(max_length=12, choices=ProviderStatus, default=ProviderStatus.PENDING)
    #: Since when it has been so.
    since = models.DateTimeField()
    text = models.CharField(max_length=500, blank=True)
    wanted = models.JSONField(default=dict)
    written = models.JSONField(null=True, default=None)
    found = models.JSONField(default=dict)
    used = models.JSONField(default=dict)
    #: What else the provider says and no limit depends on: Slurm's fair share.
    facts = models.JSONField(default=dict)
    #: Lines that this provider has no word for; Muster alone enforces them.
    left_out = models.JSONField(default=list)
    failures = models.PositiveIntegerField(default=0)
    next_try_at = models.DateTimeField(null=True, blank=True)
    #: Who exchanges at the moment, and until when others leave it to them.
    claim = models.UUIDField(null=True, blank=True)
    claimed_until = models.DateTimeField(null=True, blank=True)
    written_at = models.DateTimeField(null=True, blank=True)
    synced_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["project_id"]
        constraints = [
            models.CheckConstraint(
                name="provider_state_known", condition=Q(status__in=ProviderStatus.values)
            ),
        ]

    def __str__(self) -> str:
        return f"{self.get_provider_display()} of {self.project}: {self.get_status_display()}"
