"""What is thrown away when it has grown old: recordings of cycles, idempotency keys, logs."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

import structlog
from django.conf import settings
from django.db import connection
from django.utils import timezone

from scheduler.core.lifecycle import LIVE_ATTEMPT

log = structlog.get_logger(__name__)

#: A client that repeats its request after a day means a new one.
KEEP_IDEMPOTENCY_KEYS_HOURS: Final = 24
#: Recordings of one cluster that keep their bytes, the newest ones, and how large they may be together.
KEEP_RECORDINGS: Final = 5000
KEEP_RECORDINGS_BYTES: Final = 512 * 1024 * 1024
#: Rows of one statement: a long delete would hold its locks and its transaction open.
BATCH: Final = 5000


def prune_all() -> dict[str, int]:
    """Throw away what is older than the settings keep it; answers how many rows of each kind went."""
    removed = {
        "cycles": prune_cycles(days=settings.MUSTER_KEEP_CYCLES_DAYS),
        "recordings": strip_recordings(),
        "idempotency_keys": prune_idempotency_keys(),
        "log_chunks": prune_logs(days=settings.MUSTER_KEEP_LOGS_DAYS),
    }
    log.info("pruned", **removed)
    return removed


def prune_cycles(*, days: int) -> int:
    """Cycles older than so many days; the attempts they started stay and no longer name them."""
    return _in_batches(
        """
        WITH old AS (
            SELECT id FROM scheduler_cycle WHERE started_at < %(before)s ORDER BY id LIMIT %(batch)s
        ), forgotten AS (
            UPDATE scheduler_attempt SET cycle_id = NULL WHERE cycle_id IN (SELECT id FROM old)
        )
        DELETE FROM scheduler_cycle WHERE id IN (SELECT id FROM old)
        """,
        {"before": timezone.now() - timedelta(days=days)},
    )


def strip_recordings(*, keep: int = KEEP_RECORDINGS, keep_bytes: int = KEEP_RECORDINGS_BYTES) -> int:
    """Drop the bytes of all but the newest recordings of each cluster; what they decided stays known."""
    return _in_batches(
        """
        WITH sized AS (
            SELECT id, row_number() OVER newest AS place,
                sum(octet_length(snapshot) + octet_length(plan)) OVER newest AS bytes
            FROM scheduler_cycle WHERE snapshot IS NOT NULL
            WINDOW newest AS (PARTITION BY cluster_id ORDER BY id DESC)
        )
        UPDATE scheduler_cycle SET snapshot = NULL, policy = NULL, plan = NULL
        WHERE id IN (
            SELECT id FROM sized WHERE place > %(keep)s OR (bytes > %(keep_bytes)s AND place > 1)
            LIMIT %(batch)s
        )
        """,
        {"keep": keep, "keep_bytes": keep_bytes},
    )


def prune_idempotency_keys(*, hours: int = KEEP_IDEMPOTENCY_KEYS_HOURS) -> int:
    return _in_batches(
        """
        DELETE FROM scheduler_idempotencykey WHERE id IN (
            SELECT id FROM scheduler_idempotencykey WHERE created_at < %(before)s LIMIT %(batch)s
        )
        """,
        {"before": timezone.now() - timedelta(hours=hours)},
    )


def prune_logs(*, days: int) -> int:
    """What attempts printed that ended so many days ago; 0 days keeps logs for ever."""
    if days <= 0:
        return 0
    return _in_batches(
        """
        DELETE FROM scheduler_logchunk WHERE id IN (
            SELECT chunk.id FROM scheduler_logchunk chunk
                JOIN scheduler_task task ON task.id = chunk.task_id
                JOIN scheduler_attempt attempt ON attempt.id = task.attempt_id
            WHERE chunk.received_at < %(before)s AND attempt.ended_at < %(before)s
                AND NOT attempt.state = ANY(%(live)s)
            LIMIT %(batch)s
        )
        """,
        {
            "before": timezone.now() - timedelta(days=days),
            "live": sorted(state.value for state in LIVE_ATTEMPT),
        },
    )


def _in_batches(sql: str, parameters: dict[str, object]) -> int:
    """Run a statement of at most `%(batch)s` rows until it finds no more; answers how many it changed."""
    changed = 0
    while True:
        with connection.cursor() as cursor:
            cursor.execute(sql, parameters | {"batch": BATCH})
            changed += cursor.rowcount
            if cursor.rowcount < BATCH:
                return changed
