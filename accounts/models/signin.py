"""How many sign-ins failed lately, by name, by address, by both, and by browser."""

from __future__ import annotations

from django.db import models


class SignInCount(models.Model):
    """Failures of one key that are not forgotten, and when the next try is looked at.

    Rows, and not a cache: they count for all web processes together, and while Redis is away. Names are kept
    as digests, for a name may be a password that was typed into the wrong field.
    """

    key = models.CharField(max_length=80, primary_key=True)
    failures = models.PositiveIntegerField(default=0)
    last_at = models.DateTimeField()
    #: Until then a try is refused before its password is looked at.
    open_at = models.DateTimeField()

    class Meta:
        indexes = [models.Index(fields=["last_at"], name="sign_in_count_by_age")]

    def __str__(self) -> str:
        return self.key
