"""What the reconciler found: a counter that was not what is so, and how it was put right."""

from __future__ import annotations

from django.db import models


class DriftKind(models.TextChoices):
    QUOTA = "quota", "quota counter against allocations"
    BUDGET = "budget", "budget counter against the ledger"
    MISSING_HOLD = "missing_hold", "running without a hold"
    STALE_HOLD = "stale_hold", "hold without a running job"
    USAGE = "usage", "allocations against the ledger"


class DriftFinding(models.Model):
    kind = models.CharField(max_length=16, choices=DriftKind)
    project = models.ForeignKey(
        "accounts.Project", null=True, on_delete=models.CASCADE, related_name="quota_drift"
    )
    #: What it is about, in words: `gpu_millis of vision`, `budget “Autumn”, November 2026: held`.
    subject = models.CharField(max_length=160)
    was = models.BigIntegerField()
    found = models.BigIntegerField()
    found_at = models.DateTimeField(db_index=True)
    repaired_at = models.DateTimeField(null=True, blank=True)
    reason = models.CharField(max_length=300, blank=True)

    class Meta:
        ordering = ["-id"]
        verbose_name_plural = "drift"

    def __str__(self) -> str:
        return f"{self.subject}: {self.was}, found {self.found}"
