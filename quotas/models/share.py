"""What each person has used of each project, in slices of time that fair share reads."""

from __future__ import annotations

from django.conf import settings
from django.db import models


class ShareUsage(models.Model):
    """The use of attempts that have ended, in one slice (`quotas.core.decay`); it only grows.

    The decayed figures are those at the end of the slice, for the half-life that the site has; a recount
    puts them right when that is changed. What still runs is not here: it is worked out when it is asked for.
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
