"""How far events were read, and what was found by looking: both make sure that nothing is notified twice."""

from __future__ import annotations

from django.db import models


class Cursor(models.Model):
    """The last row of a table of events that was read; it moves in the transaction that writes what follows from it."""

    source = models.CharField(max_length=32, primary_key=True)
    position = models.BigIntegerField()
    moved_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.source} {self.position}"


class Finding(models.Model):
    """Something that is so without an event of its own, such as a node that is down; found again, it is this row."""

    #: What, about which row, and since when: `down:12:1764400000`.
    key = models.CharField(max_length=120, unique=True)
    at = models.DateTimeField()

    class Meta:
        indexes = [models.Index(fields=["at"], name="finding_by_age")]

    def __str__(self) -> str:
        return self.key
