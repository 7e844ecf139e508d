"""When pending jobs are expected to start, written to their rows where they show another time."""

from __future__ import annotations

from collections.abc import Mapping

from django.db import transaction

from scheduler import outbox
from scheduler.core.plan import Plan
from scheduler.core.snapshot.snapshot import Snapshot
from scheduler.state.apply.apply_sql import PLANNED_STATES
from scheduler.state.db.sql import int_array, run
from scheduler.state.lease import leases
from scheduler.state.lease.leases import HeldLease


def write_expected_starts(plan: Plan, *, snapshot: Snapshot, lease: HeldLease) -> dict[int, int]:
    """Write the expected starts of the plan, and remove those of jobs that have none in it any more.

    Answers what was written: by job its expected start (ms; 0 = none).
    """
    due = starts_to_write(plan, snapshot)
    if not due:
        return {}
    with transaction.atomic():
        leases.fence(lease)
        numbers = expect_starts(due)
        outbox.announce_many([outbox.job_topic(number) for number in numbers])
    return {number: due[number] for number in numbers}


def starts_to_write(plan: Plan, snapshot: Snapshot) -> dict[int, int]:
    """By job the expected start (ms; 0 = none) where its row has another."""
    expected = {one.job_id: one.at_ms for one in plan.expected}
    pending = snapshot.pending
    promised = pending.promised_ms > 0
    shown = dict(zip(pending.id[promised].tolist(), pending.promised_ms[promised].tolist(), strict=True))
    stale = {number: 0 for number in shown if number not in expected}
    return {number: at_ms for number, at_ms in (expected | stale).items() if shown.get(number, 0) != at_ms}


def expect_starts(due: Mapping[int, int]) -> list[int]:
    """Write when each of these jobs is expected to start (ms; 0 = unknown); answers those that still wait."""
    rows = run(
        """
        UPDATE scheduler_job AS job SET expected_start_at = to_timestamp(nullif(due.at_ms, 0) / 1000.0)
        FROM (SELECT job.number, due.at_ms FROM scheduler_job job
                JOIN unnest(%s::bigint[], %s::bigint[]) AS due(number, at_ms) ON due.number = job.number
                WHERE job.state = ANY(%s) ORDER BY job.number FOR NO KEY UPDATE OF job SKIP LOCKED) AS due
        WHERE job.number = due.number RETURNING job.number
        """,
        [int_array(due), int_array(due.values()), list(PLANNED_STATES)],
    )
    return [row[0] for row in rows]
