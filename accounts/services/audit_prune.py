"""Old rows of the audit trail go once they were checked; a signed checkpoint stands for them in their chain."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Final

import structlog
from django.db import connection, transaction
from django.utils import timezone

from accounts.models import AuditCheckpoint, AuditEvent
from accounts.retention import Rule
from accounts.services import audit
from accounts.services.audit_check import BadRow, checkpoint_signature, first_row_wanted, problem_of

log = structlog.get_logger(__name__)

BATCH: Final = 5000


def prune_events(event_ids: Sequence[int]) -> int:
    """Let these rows go where each follows the one before it; answers how many went.

    1. Each chain is walked from where its rows begin. 2. A checkpoint is signed. 3. The rows go: a trigger
    compares them with the checkpoint. A chain that does not check keeps everything, as evidence.
    """
    rows = AuditEvent.objects.filter(pk__in=list(event_ids)).order_by("shard", "number")
    gone = 0
    with transaction.atomic():
        for shard, events in groupby(rows, key=lambda event: event.shard):
            gone += _prune(shard, list(events))
        if gone:
            audit.record(
                by=None, action="audit.prune", thing=audit.Thing("audit trail"), after={"rows": gone},
                reason="older than the audit trail is kept",
            )  # fmt: skip
    return gone


def _prune(shard: int, events: Sequence[AuditEvent]) -> int:
    number, previous, before, bad = first_row_wanted(shard)
    for event in events:
        number += 1
        bad = bad or problem_of(event, number, previous)
        if bad is not None:
            return _kept(bad)
        previous = event.hash
    checkpoint = AuditCheckpoint(
        shard=shard, number=number, hash=previous, rows=len(events), at=timezone.now(), previous=before
    )
    checkpoint.signature = checkpoint_signature(checkpoint, audit.signing_keys()[0])
    checkpoint.save(force_insert=True)
    with connection.cursor() as cursor:
        cursor.execute(
            "DELETE FROM accounts_auditevent WHERE shard = %s AND number <= %s", [shard, checkpoint.number]
        )
        return int(cursor.rowcount)


def _kept(bad: BadRow) -> int:
    log.error("audit_not_pruned", problem=str(bad))
    return 0


#: Days end at midnight, so that a chain gets one checkpoint a day at most, but where there is very much.
RULE: Final = Rule(
    "audit_events",
    "Rows of the audit trail; a signed checkpoint stands for them",
    """
    SELECT id FROM accounts_auditevent WHERE at < date_trunc('day', %(before)s, 'UTC')
    ORDER BY shard, number LIMIT %(batch)s
    """,
    setting="MUSTER_KEEP_AUDIT_DAYS",
    at_least_days=36,
    why="what was done lately can be looked up",
    remove=prune_events,
    batch=BATCH,
)
