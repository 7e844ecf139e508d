"""Old lines of the ledger are added up by the day; the database proves that no sum changed, or refuses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from django.db import connection, transaction
from django.utils import timezone

from accounts.services import audit
from infra.retention import Rule
from quotas.models import LedgerRollUp
from quotas.models.ledger import DIGEST, SUMS

#: Lines of one transaction.
BATCH: Final = 5000
_NAME: Final = f"""
INSERT INTO quotas_ledgerrollup (at, lines, digest)
SELECT %(at)s, count(*), {DIGEST} FROM quotas_ledgerentry line WHERE id = ANY(%(ids)s)
RETURNING id, lines, digest
"""  # noqa: S608  names of columns of ours
#: A line for each resource of each day, kind, project, person and GPU model; money goes with the first of them.
_ADD_UP: Final = f"""
WITH sums AS ({SUMS}, count(*) AS lines FROM quotas_ledgerentry WHERE id = ANY(%(ids)s) GROUP BY 1, 2, 3, 4, 5),
parts AS (
    SELECT sums.*, part.*, row_number() OVER (
        PARTITION BY day, kind, project_id, user_id, gpu_model ORDER BY part.place
    ) AS rank
    FROM sums CROSS JOIN LATERAL (VALUES
        (1, 'gpu', gpu_held, gpu_charged, gpu_unused), (2, 'cpu', cpu_held, cpu_charged, cpu_unused),
        (3, 'memory', memory_held, memory_charged, memory_unused),
        (4, 'storage', storage_held, storage_charged, storage_unused), (5, '', 0, 0, 0)
    ) AS part(place, what, held, charged, unused)
    WHERE part.held <> 0 OR part.charged <> 0 OR part.unused <> 0
        OR (part.place = 5 AND (held_micros <> 0 OR charged_micros <> 0))
)
INSERT INTO quotas_ledgerentry (kind, project_id, user_id, gpu_model, cpu_millis, memory_mib, gpu_millis,
    storage_mib, held_seconds, charged_seconds, unused_seconds, held_micros, charged_micros, starts_at, ends_at, at,
    reason, roll_up_id)
SELECT kind, project_id, user_id, gpu_model, (what = 'cpu')::int, (what = 'memory')::int, (what = 'gpu')::int,
    (what = 'storage')::int, held, charged, nullif(unused, 0),
    CASE WHEN rank = 1 THEN held_micros ELSE 0 END, CASE WHEN rank = 1 THEN charged_micros ELSE 0 END,
    day, day + interval '1 day', %(at)s,
    lines || CASE lines WHEN 1 THEN ' line' ELSE ' lines' END || ' of this day, rolled up at '
        || to_char(%(at)s AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'),
    %(roll_up)s
FROM parts WHERE place < 5 OR rank = 1
ORDER BY day, project_id, user_id, kind, place
"""  # noqa: S608


def roll_up(entry_ids: Sequence[int]) -> int:
    """Put sums by the day in the place of these lines; answers how many lines went.

    1. The roll-up is named with the digest of the lines. 2. The sums are written. 3. The lines go: a trigger
    compares digest and sums, and without it nothing can take a line away.
    """
    if not entry_ids:
        return 0
    words: dict[str, Any] = {"ids": list(entry_ids), "at": timezone.now()}
    with transaction.atomic(), connection.cursor() as cursor:
        # The application's role may not lock these lines, for it may not change them.
        cursor.execute("SELECT pg_advisory_xact_lock(hashtext('quotas.ledger_roll_up'))")
        cursor.execute(
            "SELECT id FROM quotas_ledgerentry WHERE id = ANY(%(ids)s) AND roll_up_id IS NULL ORDER BY id",
            words,
        )
        words["ids"] = [row[0] for row in cursor.fetchall()]
        if not words["ids"]:
            return 0
        cursor.execute(_NAME, words)
        number, lines, digest = cursor.fetchone()
        cursor.execute(_ADD_UP, words | {"roll_up": number})
        written = cursor.rowcount
        # Nor delete them: the owner's function does, and the trigger behind it compares the sums.
        cursor.execute("SELECT muster_roll_up_ledger(%s::bigint[], %s)", [words["ids"], number])
        audit.record(
            by=None, action="ledger.roll_up", thing=LedgerRollUp.objects.get(pk=number),
            after={"lines": lines, "sums": written, "digest": digest},
            reason="older than the lines of the ledger are kept",
        )  # fmt: skip
    return int(lines)


def rule(*, running: str) -> Rule:
    """`running` selects the attempts whose lines are still reckoned with one by one."""
    return Rule(
        "ledger_lines",
        "Lines of the ledger; entries are summed by day, and no total changes",
        f"""
        SELECT line.id FROM quotas_ledgerentry line
        WHERE line.starts_at < date_trunc('day', %(before)s, 'UTC') AND line.roll_up_id IS NULL
            AND (line.attempt_id IS NULL OR (NOT line.attempt_id IN ({running}) AND NOT EXISTS (
                SELECT FROM quotas_ledgerentry later WHERE later.job_number = line.job_number
                    AND later.attempt_id = line.attempt_id
                    AND later.starts_at >= date_trunc('day', %(before)s, 'UTC'))))
        ORDER BY line.starts_at, line.project_id, line.id LIMIT %(batch)s
        """,  # noqa: S608
        setting="MUSTER_KEEP_LEDGER_DAYS",
        at_least_days=36,
        why="charges are checked against holds, entry by entry",
        remove=roll_up,
        batch=BATCH,
    )
