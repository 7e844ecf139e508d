"""The audit trail: one row per change by a person or token, chained by hashes, never altered."""

from __future__ import annotations

import pgtrigger
from django.conf import settings
from django.db import models


class AuditOutcome(models.TextChoices):
    DONE = "done", "done"
    DENIED = "denied", "denied"


class AuditChain(models.Model):
    """The head of one chain: how many rows it has and the hash of its last.

    Several chains, by actor, keep one busy person from holding up all others; a missing tail shows as a
    head that no row matches.
    """

    shard = models.PositiveSmallIntegerField(primary_key=True)
    length = models.BigIntegerField(default=0)
    head = models.CharField(max_length=64, default="0" * 64)
    #: Of length and head, under the key that signs the rows. It is kept here alone, so that a head of earlier
    #: cannot be made again from the rows.
    signature = models.CharField(max_length=64, default="", blank=True)

    class Meta:
        triggers = [
            pgtrigger.Protect(name="audit_chain_keeps_its_heads", operation=pgtrigger.Delete),
            pgtrigger.Trigger(
                name="audit_chain_only_grows",
                when=pgtrigger.Before,
                operation=pgtrigger.Update,
                condition=pgtrigger.Q(new__length__lte=pgtrigger.F("old__length")),
                func="RAISE EXCEPTION 'an audit chain only grows';",
            ),
        ]

    def __str__(self) -> str:
        return f"audit chain {self.shard}"


class AuditEvent(models.Model):
    """Who did what to which thing, on whose behalf, from where, with what before and after, and why."""

    shard = models.PositiveSmallIntegerField()
    number = models.BigIntegerField()
    at = models.DateTimeField()
    actor = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        null=True,
        on_delete=models.DO_NOTHING,
        db_constraint=False,
        db_index=False,
        related_name="+",
    )
    #: The name at that time: the row outlives the account.
    actor_name = models.CharField(max_length=150)
    on_behalf_of = models.CharField(max_length=150, blank=True)
    #: The prefix of the API token that was used, if one was.
    token_prefix = models.CharField(max_length=16, blank=True)
    address = models.CharField(max_length=64, blank=True)
    request_id = models.CharField(max_length=64, blank=True)
    action = models.CharField(max_length=64)
    outcome = models.CharField(max_length=8, choices=AuditOutcome, default=AuditOutcome.DONE)
    object_type = models.CharField(max_length=64)
    object_id = models.CharField(max_length=64, blank=True)
    object_label = models.CharField(max_length=200, blank=True)
    project = models.ForeignKey(
        "accounts.Project", null=True, on_delete=models.DO_NOTHING, db_constraint=False, related_name="+"
    )
    before = models.JSONField(null=True)
    after = models.JSONField(null=True)
    reason = models.TextField(blank=True)
    previous_hash = models.CharField(max_length=64)
    hash = models.CharField(max_length=64)

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.UniqueConstraint(name="audit_position_once", fields=["shard", "number"]),
        ]
        indexes = [
            models.Index(fields=["object_type", "object_id", "-id"], name="audit_by_object"),
            models.Index(fields=["actor", "-id"], name="audit_by_actor"),
            models.Index(fields=["action", "-id"], name="audit_by_action"),
        ]
        triggers = [
            pgtrigger.Protect(name="audit_rows_never_change", operation=pgtrigger.Update),
            # Rows go only from the beginning of a chain, and only where a checkpoint stands for exactly them.
            pgtrigger.Trigger(
                name="audit_rows_go_by_checkpoint",
                level=pgtrigger.Statement,
                when=pgtrigger.After,
                operation=pgtrigger.Delete,
                referencing=pgtrigger.Referencing(old="gone"),
                func="""
                IF EXISTS (
                    SELECT FROM (
                        SELECT shard, min(number) AS first, max(number) AS last, count(*) AS rows
                        FROM gone GROUP BY shard
                    ) piece WHERE NOT EXISTS (
                        SELECT FROM accounts_auditcheckpoint checkpoint
                            JOIN gone ON gone.shard = checkpoint.shard AND gone.number = checkpoint.number
                        WHERE checkpoint.shard = piece.shard AND checkpoint.number = piece.last
                            AND checkpoint.rows = piece.rows AND checkpoint.hash = gone.hash
                            AND piece.first = piece.last - piece.rows + 1
                    )
                ) THEN
                    RAISE EXCEPTION 'rows of the audit trail go only where a checkpoint stands for them';
                END IF;
                RETURN NULL;
                """,
            ),
            pgtrigger.Trigger(
                name="audit_never_truncated",
                level=pgtrigger.Statement,
                when=pgtrigger.Before,
                operation=pgtrigger.Truncate,
                func="RAISE EXCEPTION 'the audit trail is never truncated';",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.actor_name} {self.action} {self.object_type} {self.object_label or self.object_id}"


class AuditCheckpoint(models.Model):
    """What stands for the rows of one chain up to a number, when they have grown old: signed as they were checked.

    Each names the one before it by its signature, so that none can be taken out or put in.
    """

    shard = models.PositiveSmallIntegerField()
    #: The last row that it stands for, its hash, and how many rows went with this checkpoint.
    number = models.BigIntegerField()
    hash = models.CharField(max_length=64)
    rows = models.BigIntegerField()
    at = models.DateTimeField()
    previous = models.CharField(max_length=64, blank=True)
    signature = models.CharField(max_length=64)

    class Meta:
        ordering = ["shard", "number"]
        constraints = [models.UniqueConstraint(name="audit_checkpoint_once", fields=["shard", "number"])]
        triggers = [
            pgtrigger.Protect(
                name="audit_checkpoints_never_change", operation=pgtrigger.Update | pgtrigger.Delete
            )
        ]

    def __str__(self) -> str:
        return f"chain {self.shard} up to {self.number}"


class AuditCheck(models.Model):
    """One verification of every chain; the badge of the audit page and the metric show the latest."""

    checked_at = models.DateTimeField(auto_now_add=True)
    ok = models.BooleanField()
    rows = models.BigIntegerField(default=0)
    #: The first bad row in words; empty when all is well.
    problem = models.CharField(max_length=300, blank=True)

    class Meta:
        ordering = ["-id"]

    def __str__(self) -> str:
        return f"audit chain {'intact' if self.ok else 'broken'} at {self.checked_at:%Y-%m-%d %H:%M}"
