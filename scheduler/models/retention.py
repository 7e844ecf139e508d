"""Runs of retention: what each threw away, and under which settings."""

from __future__ import annotations

from django.db import models


class RetentionRun(models.Model):
    started_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True, blank=True)
    #: [{"name", "words", "setting", "hours", "removed"}], in the order they were carried out.
    rules = models.JSONField(default=list)
    removed = models.BigIntegerField(default=0)
    #: What stopped it, if something did; the next run goes on where it ended. Or what it had to leave.
    problem = models.CharField(max_length=300, blank=True)

    class Meta:
        ordering = ["-id"]
        indexes = [models.Index(fields=["started_at"], name="retention_run_by_age")]

    def __str__(self) -> str:
        return f"retention at {self.started_at:%Y-%m-%d %H:%M}"
