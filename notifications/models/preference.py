"""What a person wants to be notified of, where it differs from what is usual."""

from __future__ import annotations

from django.conf import settings
from django.db import models

from notifications.core.kinds import KINDS, Channel


class Preference(models.Model):
    """One kind in one channel, on or off; without a row `notifications.core.kinds` says which."""

    user = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        on_delete=models.CASCADE,
        related_name="notification_preferences",
        db_index=False,
    )
    kind = models.CharField(max_length=24, choices=[(kind.value, kind.value) for kind in KINDS])
    channel = models.CharField(max_length=8, choices=[(one.value, one.value) for one in Channel])
    on = models.BooleanField()

    class Meta:
        constraints = [models.UniqueConstraint(name="preference_once", fields=["user", "kind", "channel"])]
        # Who wants a kind that is usually off: asked for before events are read.
        indexes = [models.Index(fields=["kind", "user"], name="preference_on", condition=models.Q(on=True))]

    def __str__(self) -> str:
        return f"{self.kind} by {self.channel}: {'on' if self.on else 'off'}"
