"""The ledger: who held what for how long, and what it cost; rows are added and never altered."""

from __future__ import annotations

import pgtrigger
from django.conf import settings
from django.contrib.postgres.indexes import BrinIndex
from django.db import models
from django.db.models import F, Q

from quotas.core.ledger import Kind
from quotas.core.pricing import UNITS


class LedgerEntry(models.Model):
    """One line of `quotas.core.ledger`: amounts held, times the seconds by which the two sums move.

    What is set aside is the sum of `gpu_millis * held_seconds` and so on, what was used the sum of
    `gpu_millis * charged_seconds`; the balance is the two together. An entry counts on the day and in the
    period that `starts_at` is in. Jobs and attempts are named by number: the entry outlives their rows.
    """

    id = models.BigAutoField(primary_key=True)
    kind = models.CharField(max_length=8, choices=[(kind.value, kind.value) for kind in Kind])
    project = models.ForeignKey(
        "accounts.Project", on_delete=models.PROTECT, related_name="ledger", db_index=False
    )
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.PROTECT, related_name="+", db_index=False
    )
    job_number = models.PositiveBigIntegerField(null=True)
    attempt_id = models.PositiveBigIntegerField(null=True)
    gpu_model = models.CharField(max_length=64, blank=True)
    cpu_millis = models.BigIntegerField(default=0)
    memory_mib = models.BigIntegerField(default=0)
    gpu_millis = models.BigIntegerField(default=0)
    storage_mib = models.BigIntegerField(default=0)
    held_seconds = models.BigIntegerField(default=0)
    charged_seconds = models.BigIntegerField(default=0)
    #: Millionths of the site's currency.
    held_micros = models.BigIntegerField(default=0)
    charged_micros = models.BigIntegerField(default=0)
    starts_at = models.DateTimeField()
    ends_at = models.DateTimeField()
    #: When the line was written.
    at = models.DateTimeField()
    reason = models.CharField(max_length=200, blank=True)

    class Meta:
        ordering = ["id"]
        verbose_name_plural = "ledger entries"
        indexes = [
            models.Index(fields=["project", "starts_at"], name="ledger_by_project"),
            models.Index(fields=["user", "starts_at"], name="ledger_by_user"),
            BrinIndex(fields=["starts_at"], name="ledger_by_time", pages_per_range=16),
            models.Index(fields=["job_number"], name="ledger_by_job"),
        ]
        constraints = [
            models.CheckConstraint(name="ledger_kind_known", condition=Q(kind__in=[k.value for k in Kind])),
            models.CheckConstraint(name="ledger_ends_after_start", condition=Q(ends_at__gte=F("starts_at"))),
            models.CheckConstraint(
                name="ledger_amounts_not_negative",
                condition=Q(cpu_millis__gte=0, memory_mib__gte=0, gpu_millis__gte=0, storage_mib__gte=0),
            ),
            models.CheckConstraint(
                name="ledger_sums_move_as_their_kind_says",
                condition=Q(kind=Kind.ADJUST)
                | Q(
                    kind=Kind.HOLD,
                    held_seconds__gt=0,
                    held_micros__gte=0,
                    charged_seconds=0,
                    charged_micros=0,
                )
                | Q(
                    kind=Kind.CHARGE,
                    held_seconds__lte=0,
                    held_micros__lte=0,
                    charged_seconds__gte=0,
                    charged_micros__gte=0,
                )
                | Q(
                    kind=Kind.REFUND,
                    held_seconds__lte=0,
                    held_micros__lte=0,
                    charged_seconds__lte=0,
                    charged_micros__lte=0,
                ),
            ),
        ]
        triggers = [
            pgtrigger.Protect(name="ledger_rows_never_change", operation=pgtrigger.Update | pgtrigger.Delete),
            pgtrigger.Trigger(
                name="ledger_never_truncated",
                level=pgtrigger.Statement,
                when=pgtrigger.Before,
                operation=pgtrigger.Truncate,
                func="RAISE EXCEPTION 'the ledger is never truncated';",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.kind} of job {self.job_number} at {self.starts_at:%Y-%m-%d %H:%M:%S}"


class PriceRow(models.Model):
    """What an hour of one core, GiB or GPU costs from a moment until another; a new price is a new row."""

    resource = models.CharField(max_length=16, choices=[(name, name) for name in UNITS])
    gpu_model = models.CharField(max_length=64, blank=True)
    micros_per_hour = models.BigIntegerField()
    valid_from = models.DateTimeField()
    valid_until = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["resource", "gpu_model", "valid_from"]
        verbose_name = "price"
        constraints = [
            models.UniqueConstraint(name="price_once", fields=["resource", "gpu_model", "valid_from"]),
            models.CheckConstraint(name="price_not_negative", condition=Q(micros_per_hour__gte=0)),
            models.CheckConstraint(
                name="price_of_a_gpu_has_the_model", condition=Q(gpu_model="") | Q(resource="gpu_millis")
            ),
            models.CheckConstraint(
                name="price_ends_after_start",
                condition=Q(valid_until__isnull=True) | Q(valid_until__gt=F("valid_from")),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.resource} {self.gpu_model} from {self.valid_from:%Y-%m-%d}"
