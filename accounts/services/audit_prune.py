"""Old rows of the audit trail go once they were checked; a signed checkpoint replaces them in their chain."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Final

import structlog
from django.db import connection, transaction
from django.utils import timezone

from accounts.models import AuditCheckpoint, AuditEvent
from accounts.services import audit
from accounts.services.audit_check import BadRow, checkpoint_signature, first_row_wanted, problem_of
from infra.retention import Rule

log = structlog.get_logger(__name__)

BATCH: Final = 5000


WAY_OUT: Final = (
    "it keeps its old rows; if the key was changed, name the one before in MUSTER_AUDIT_OLD_KEYS, else compare with a "
    "backup"
)


def prune_events(event_ids: Sequence[int], bad: list[BadRow] | None = None) -> int:
    """Let these rows go where each follows the one before it; answers how many went, adds to `bad` who keeps theirs.

    1. Each chain is walked from where its rows begin. 2. A checkpoint is signed. 3. The rows go: a trigger
    compares them with the checkpoint. A chain that does not check keeps everything, as evidence.
    """
    rows = AuditEvent.objects.filter(pk__in=list(event_ids)).order_by("shard", "number")
    gone = 0
    with transaction.atomic():
        for shard, events in groupby(rows, key=lambda event: event.shard):
            found = _prune(shard, list(events))
            if isinstance(found, BadRow):
                log.error("audit_not_pruned", problem=str(found), way_out=WAY_OUT)
                if bad is not None:
                    bad.append(found)
            else:
                gone += found
        if gone:
            audit.record(
                by=None, action="audit.prune", thing=audit.Thing("audit trail"), after={"rows": gone},
                reason="older than the audit trail is kept",
            )  # fmt: skip
    return gone


def _prune(shard: int, events: Sequence[AuditEvent]) -> int | BadRow:
    number, previous, before, bad = first_row_wanted(shard)
    old = []
    for event in events:
        # Two clocks need not agree about midnight: a row may be older than the one before it in its chain.
        if event.number > number + 1 and _is_there(shard, number + 1):
            break
        number += 1
        bad = bad or problem_of(event, number, previous)
        if bad is not None:
            return bad
        previous = event.hash
        old.append(event)
    if not old:
        return 0
    checkpoint = AuditCheckpoint(
        shard=shard, number=number, hash=previous, rows=len(old), at=timezone.now(), previous=before
    )
    checkpoint.signature = checkpoint_signature(checkpoint, audit.signing_keys()[0])
    checkpoint.save(force_insert=True)
    with connection.cursor() as cursor:
        # The application's role may not delete here: the owner's function does, and looks at the age of each row.
        cursor.execute("SELECT muster_prune_audit(%s, %s)", [shard, checkpoint.number])
        return int(cursor.fetchone()[0])


def _is_there(shard: int, number: int) -> bool:
    return AuditEvent.objects.filter(shard=shard, number=number).exists()


def rule(batch: int = BATCH) -> Rule:
    """For one run: a chain that does not check is passed over, so that the others do not wait behind it.

    Days end at midnight, so that a chain gets one checkpoint a day at most, but where there is very much.
    """
    broken: list[int] = []
    left: list[str] = []

    def remove(event_ids: list[int]) -> int:
        bad: list[BadRow] = []
        gone = prune_events(event_ids, bad)
        broken.extend(row.shard for row in bad)
        left.extend(f"{row}; {WAY_OUT}" for row in bad)
        return gone

    return Rule(
        "audit_events",
        "Rows of the audit trail; a signed checkpoint replaces them",
        """
        SELECT id FROM accounts_auditevent
        WHERE at < date_trunc('day', %(before)s, 'UTC') AND shard <> ALL(%(broken)s)
        ORDER BY shard, number LIMIT %(batch)s
        """,
        setting="MUSTER_KEEP_AUDIT_DAYS",
        at_least_days=36,
        why="recent actions can be looked up",
        remove=remove,
        batch=batch,
        more={"broken": broken},
        left=left,
    )
