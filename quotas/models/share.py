"""What each person has used of each project, in slices of time that fair share reads."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import Q

from quotas.core.decay import MODES


class FairShareRules(models.Model):
    """How past use counts, from when the row was written: the newest row is in force, and no row is ever changed.

    Without a row, or where the newest says `from_settings`, the settings MUSTER_FAIRSHARE_* are in force.
    """

    from_settings = models.BooleanField(default=False)
    mode = models.CharField(max_length=16, choices=[(mode, mode) for mode in MODES])
    half_life_seconds = models.PositiveIntegerField()
    window_seconds = models.PositiveIntegerField()
    gpu_weight = models.FloatField()
    cpu_weight = models.FloatField()
    memory_weight = models.FloatField()
    dominant = models.BooleanField()
    changed_at = models.DateTimeField()
    changed_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+", db_index=False
    )
    reason = models.CharField(max_length=1000)

    class Meta:
        ordering = ["-id"]
        verbose_name_plural = "fair share rules"
        constraints = [
            models.CheckConstraint(name="fair_share_mode_known", condition=Q(mode__in=MODES)),
            models.CheckConstraint(
                name="fair_share_times", condition=Q(half_life_seconds__gte=1, window_seconds__gte=1)
            ),
            models.CheckConstraint(
                name="fair_share_weights",
                condition=Q(gpu_weight__gte=0, cpu_weight__gte=0, memory_weight__gte=0)
                & (Q(gpu_weight__gt=0) | Q(cpu_weight__gt=0) | Q(memory_weight__gt=0)),
            ),
        ]

    def __str__(self) -> str:
        return f"rules of {self.changed_at:%Y-%m-%d %H:%M}"


class ShareUsage(models.Model):
    """The use of attempts that have ended, in one slice (`quotas.core.decay`); it only grows.

    The decayed figures are those at the end of the slice, for the half-life and window in the row (0 where parts of
    it were written under different ones); a slice of another half-life is not read, and a recount replaces it.
    What still runs is not here: it is worked out when it is asked for.
    """

    project = models.ForeignKey("accounts.Project", on_delete=models.CASCADE, related_name="+")
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+", db_index=False
    )
    starts_at = models.DateTimeField()
    gpu_seconds = models.FloatField(default=0.0)
    cpu_seconds = models.FloatField(default=0.0)
    memory_gib_seconds = models.FloatField(default=0.0)
    gpu_decayed = models.FloatField(default=0.0)
    cpu_decayed = models.FloatField(default=0.0)
    memory_decayed = models.FloatField(default=0.0)
    half_life_seconds = models.PositiveIntegerField(default=0, db_default=0)
    window_seconds = models.PositiveIntegerField(default=0, db_default=0)

    class Meta:
        ordering = ["project_id", "user_id", "starts_at"]
        constraints = [
            models.UniqueConstraint(name="share_slice_once", fields=["project", "user", "starts_at"]),
        ]
        indexes = [models.Index(fields=["starts_at"], name="share_slice_by_time")]

    def __str__(self) -> str:
        return (
            f"use of project {self.project_id} by person {self.user_id} from {self.starts_at:%Y-%m-%d %H:%M}"
        )
