"""The ledger: who held what for how long, and what it cost; rows are added and never altered."""

from __future__ import annotations

import pgtrigger
from django.conf import settings
from django.contrib.postgres.indexes import BrinIndex
from django.db import models
from django.db.models import F, Q

from quotas.core.ledger import Kind
from quotas.core.pricing import UNITS

#: What stands for a line in the digest of a roll-up, and what its sums are compared by.
DIGEST = "encode(sha256(convert_to(string_agg(line::text, E'\\n' ORDER BY line.id), 'UTF8')), 'hex')"
SUMS = """SELECT date_trunc('day', starts_at, 'UTC') AS day, kind, project_id, user_id, gpu_model,
    sum(cpu_millis * held_seconds) AS cpu_held, sum(cpu_millis * charged_seconds) AS cpu_charged,
    sum(memory_mib * held_seconds) AS memory_held, sum(memory_mib * charged_seconds) AS memory_charged,
    sum(gpu_millis * held_seconds) AS gpu_held, sum(gpu_millis * charged_seconds) AS gpu_charged,
    sum(storage_mib * held_seconds) AS storage_held, sum(storage_mib * charged_seconds) AS storage_charged,
    sum(held_micros) AS held_micros, sum(charged_micros) AS charged_micros,
    coalesce(sum(cpu_millis * unused_seconds), 0) AS cpu_unused,
    coalesce(sum(memory_mib * unused_seconds), 0) AS memory_unused,
    coalesce(sum(gpu_millis * unused_seconds), 0) AS gpu_unused,
    coalesce(sum(storage_mib * unused_seconds), 0) AS storage_unused"""
_GROUPS = f"""WITH gone_sums AS ({SUMS} FROM gone GROUP BY 1, 2, 3, 4, 5), kept_sums AS (
    {SUMS} FROM quotas_ledgerentry WHERE roll_up_id = made GROUP BY 1, 2, 3, 4, 5)"""
_SOMETHING = """ WHERE cpu_held <> 0 OR cpu_charged <> 0 OR memory_held <> 0 OR memory_charged <> 0
    OR gpu_held <> 0 OR gpu_charged <> 0 OR storage_held <> 0 OR storage_charged <> 0
    OR held_micros <> 0 OR charged_micros <> 0
    OR cpu_unused <> 0 OR memory_unused <> 0 OR gpu_unused <> 0 OR storage_unused <> 0"""


class LedgerRollUp(models.Model):
    """Old lines that were added up by the day: how many, and the digest of exactly those, for who kept a copy.

    The digest is that of their rows as PostgreSQL writes them, by id, a line each.
    """

    at = models.DateTimeField()
    lines = models.PositiveIntegerField()
    digest = models.CharField(max_length=64)

    class Meta:
        ordering = ["-id"]
        triggers = [
            pgtrigger.Protect(name="roll_ups_never_change", operation=pgtrigger.Update | pgtrigger.Delete)
        ]

    def __str__(self) -> str:
        return f"{self.lines:,} lines, rolled up on {self.at:%d %b %Y}"


class LedgerEntry(models.Model):
    """One line of `quotas.core.ledger`: amounts held, times the seconds by which the two sums move.

    What is set aside is the sum of `gpu_millis * held_seconds` and so on, what was used the sum of
    `gpu_millis * charged_seconds`; the balance is the two together. An entry counts on the day and in the
    period that `starts_at` is in. Jobs and attempts are named by number: the entry outlives their rows.
    """

    id = models.BigAutoField(primary_key=True)
    kind = models.CharField(max_length=8, choices=[(kind.value, kind.value) for kind in Kind])
    # References that the database checks once a statement: infra.db.references.
    project = models.ForeignKey(
        "accounts.Project",
        on_delete=models.PROTECT,
        related_name="ledger",
        db_index=False,
        db_constraint=False,
    )
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        null=True,
        on_delete=models.PROTECT,
        related_name="+",
        db_index=False,
        db_constraint=False,
    )
    job_number = models.PositiveBigIntegerField(null=True)
    attempt_id = models.PositiveBigIntegerField(null=True)
    gpu_model = models.CharField(max_length=80, blank=True)
    cpu_millis = models.BigIntegerField(default=0)
    memory_mib = models.BigIntegerField(default=0)
    gpu_millis = models.BigIntegerField(default=0)
    storage_mib = models.BigIntegerField(default=0)
    held_seconds = models.BigIntegerField(default=0)
    charged_seconds = models.BigIntegerField(default=0)
    #: Millionths of the site's currency.
    held_micros = models.BigIntegerField(default=0)
    charged_micros = models.BigIntegerField(default=0)
    #: Of the last charge of an attempt for which nothing was set aside: what it did not use of its time limit.
    unused_seconds = models.BigIntegerField(null=True)
    starts_at = models.DateTimeField()
    ends_at = models.DateTimeField()
    #: When the line was written.
    at = models.DateTimeField()
    reason = models.CharField(max_length=200, blank=True)
    #: Of a line that stands for the old lines of a day: one resource, whose amount is 1 and whose seconds are
    #: the sums of amounts times seconds.
    roll_up = models.ForeignKey(
        LedgerRollUp,
        null=True,
        on_delete=models.PROTECT,
        related_name="entries",
        db_index=False,
        db_constraint=False,
    )

    class Meta:
        ordering = ["id"]
        verbose_name_plural = "ledger entries"
        indexes = [
            models.Index(fields=["project", "starts_at"], name="ledger_by_project"),
            models.Index(fields=["user", "starts_at"], name="ledger_by_user"),
            BrinIndex(fields=["starts_at"], name="ledger_by_time", pages_per_range=16),
            models.Index(fields=["job_number"], name="ledger_by_job"),
            models.Index(fields=["roll_up"], name="ledger_by_roll_up", condition=Q(roll_up__isnull=False)),
        ]
        constraints = [
            models.CheckConstraint(name="ledger_kind_known", condition=Q(kind__in=[k.value for k in Kind])),
            models.CheckConstraint(name="ledger_ends_after_start", condition=Q(ends_at__gte=F("starts_at"))),
            models.CheckConstraint(
                name="ledger_amounts_not_negative",
                condition=Q(cpu_millis__gte=0, memory_mib__gte=0, gpu_millis__gte=0, storage_mib__gte=0),
            ),
            models.CheckConstraint(
                name="ledger_unused_of_charges",
                condition=Q(unused_seconds=None) | Q(kind=Kind.CHARGE, unused_seconds__gte=0),
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
            pgtrigger.Protect(name="ledger_rows_never_change", operation=pgtrigger.Update),
            # Only a roll-up takes lines away: exactly those it named, and no sum may differ afterwards.
            pgtrigger.Trigger(
                name="ledger_only_rolled_up",
                level=pgtrigger.Statement,
                when=pgtrigger.After,
                operation=pgtrigger.Delete,
                referencing=pgtrigger.Referencing(old="gone"),
                declare=[("made", "bigint")],
                func=f"""
                made := nullif(current_setting('muster.ledger_roll_up', true), '')::bigint;
                IF NOT EXISTS (SELECT FROM gone) THEN RETURN NULL; END IF;
                IF made IS NULL OR NOT EXISTS (
                    SELECT FROM quotas_ledgerrollup roll_up WHERE roll_up.id = made
                    AND roll_up.lines = (SELECT count(*) FROM gone)
                    AND roll_up.digest = (SELECT {DIGEST} FROM gone AS line)
                ) THEN
                    RAISE EXCEPTION 'lines of the ledger go only by a roll-up of exactly these lines';
                END IF;
                IF EXISTS ({_GROUPS}
                    (SELECT * FROM gone_sums{_SOMETHING} EXCEPT SELECT * FROM kept_sums{_SOMETHING}) UNION ALL
                    (SELECT * FROM kept_sums{_SOMETHING} EXCEPT SELECT * FROM gone_sums{_SOMETHING})
                ) THEN
                    RAISE EXCEPTION 'a roll-up leaves every sum of the ledger as it was';
                END IF;
                RETURN NULL;
                """,  # noqa: S608  names of columns of ours
            ),
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
    gpu_model = models.CharField(max_length=80, blank=True)
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
