"""Every state that a scheduler profile has had: what it said, since when, by whom and why."""

from __future__ import annotations

from typing import Final

from django.db import models
from django.db.models import Q

#: The fields of a profile that a version keeps.
PROFILE_FIELDS: Final = (
    "policy", "tie_breakers", "strict_order", "placement", "backfill", "options", "score_weights", "plugins",
    "preemption_enabled", "preemption", "rules", "rule_hold_seconds", "rule_time_zone",
)  # fmt: skip


class VersionOrigin(models.TextChoices):
    """How a version came about."""

    CREATE = "create", "profile created"
    EDIT = "edit", "edited"
    ROLLBACK = "rollback", "rolled back"
    PUBLISH = "publish", "shadow run published"
    SETTINGS = "settings", "set by settings of the site"
    FOUND = "found", "state before versions were kept"


class ProfileVersion(models.Model):
    """One version of a profile. The application adds rows and can neither change nor delete one.

    The profile is named by id and name, without a foreign key: recorded cycles name versions of profiles that have
    been deleted since.
    """

    profile_id = models.BigIntegerField()
    profile_name = models.CharField(max_length=80)
    number = models.PositiveIntegerField()
    #: The values of PROFILE_FIELDS.
    content = models.JSONField()
    origin = models.CharField(max_length=8, choices=VersionOrigin)
    #: The version that a roll-back restored, or the shadow run that was published.
    origin_number = models.BigIntegerField(null=True, blank=True)
    made_at = models.DateTimeField()
    #: Username; "" = Muster itself.
    made_by = models.CharField(max_length=150, blank=True)
    reason = models.CharField(max_length=200, blank=True)

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.UniqueConstraint(name="profile_version_once", fields=["profile_id", "number"]),
            models.CheckConstraint(
                name="profile_version_origin_known", condition=Q(origin__in=VersionOrigin.values)
            ),
        ]

    def __str__(self) -> str:
        return f"version {self.number} of {self.profile_name}"
