"""After a suspension was asked for: jobs release their CPUs once their processes have stopped, or end."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from django.db import transaction
from django.utils import timezone

from quotas.core.resources import show_cpus
from scheduler import outbox
from scheduler.core.lifecycle import LIVE_TASK, JobState, StopReason
from scheduler.state.apply.apply_sql import move_jobs, nodes_of_attempts
from scheduler.state.db.fragments import live_attempts
from scheduler.state.db.sql import Rows, int_array, run, run_together
from scheduler.state.load.quota_rows import Lines
from scheduler.state.settle.events import Event, write_events
from scheduler.state.settle.locked_attempts import lock_rows
from scheduler.state.settle.release_capacity import giving_back

_LIVE_TASK: Final = sorted(s.value for s in LIVE_TASK)
CPUS: Final = "cpu_millis"
#: Grace of an attempt that was asked to suspend without one.
_GRACE_SECONDS: Final = 60


class SuspendedAttempt(NamedTuple):
    """An attempt whose suspension begins or ends, with its job."""

    attempt: int
    epoch: int
    number: int
    user_id: int
    project_id: int
    job_type: str
    cluster_id: int
    since: datetime | None  # it is suspended


_READ_ATTEMPTS: Final = """
SELECT a.id, a.epoch, j.number, j.user_id, j.project_id, r.job_type, q.cluster_id, a.suspended_at
FROM scheduler_attempt a JOIN scheduler_job j ON j.number = a.job_id
    JOIN scheduler_jobrequest r ON r.number = a.job_id JOIN scheduler_queue q ON q.id = j.queue_id
WHERE a.id = ANY(%s::bigint[]) AND a.stop_asked_at IS NULL AND a.suspend_asked_at IS NOT NULL AND {which}
ORDER BY a.id
"""
#: All processes that are left of an attempt have stopped.
_ALL_STOPPED: Final = """
    a.suspended_at IS NULL
    AND EXISTS (SELECT 1 FROM scheduler_task t WHERE t.attempt_id = a.id AND t.state = ANY(%s))
    AND NOT EXISTS (SELECT 1 FROM scheduler_task t
        WHERE t.attempt_id = a.id AND t.state = ANY(%s) AND NOT t.suspended)
"""


def read_attempts(attempt_ids: Iterable[int], which: str, *parameters: Any) -> dict[int, SuspendedAttempt]:
    """Those of these attempts that were asked to suspend and for which the SQL condition `which` holds, by id."""
    rows = run(_READ_ATTEMPTS.format(which=which), [int_array(attempt_ids), *parameters])
    return {row[0]: SuspendedAttempt(*row) for row in rows}


# ------------------------------------------------------------------ the processes have stopped


def attempts_to_suspend() -> list[int]:
    """Attempts whose processes have stopped and that still hold their CPUs: a process crashed in between."""
    rows = run(
        f"SELECT a.id FROM {live_attempts('a')} WHERE a.suspend_asked_at IS NOT NULL"
        f" AND a.stop_asked_at IS NULL AND {_ALL_STOPPED} ORDER BY a.id",
        [_LIVE_TASK, _LIVE_TASK],
    )
    return [row[0] for row in rows]


@transaction.atomic
def suspend_attempts(attempt_ids: Iterable[int], *, at: datetime | None = None) -> int:
    """Release the CPUs of those of these attempts whose processes have all stopped; answers how many.

    Locks, and is safe to call again, as `settle.settle_many`.
    """
    wanted = sorted(set(attempt_ids))
    if not wanted:
        return 0
    lines = lock_rows(wanted)
    at = at or timezone.now()
    attempts = list(
        read_attempts(
            wanted, f"j.state = %s AND {_ALL_STOPPED}", JobState.PREEMPTING.value, _LIVE_TASK, _LIVE_TASK
        ).values()
    )
    if attempts:
        _suspend(attempts, lines, at)
    return len(attempts)


def _suspend(attempts: Sequence[SuspendedAttempt], lines: Lines, at: datetime) -> None:
    ids = int_array(one.attempt for one in attempts)
    released = run(
        "UPDATE scheduler_allocation SET cpu_millis = 0, suspended_cpu_millis = cpu_millis"
        " WHERE attempt_id = ANY(%s::bigint[]) AND released_at IS NULL"
        " RETURNING attempt_id, node_id, suspended_cpu_millis",
        [ids],
    )
    count_cpus(attempts, released, lines, sign=-1)
    run_together(
        ("UPDATE scheduler_attempt SET suspended_at = %s WHERE id = ANY(%s::bigint[])", [at, ids]),
        (
            "UPDATE scheduler_suspension SET starts_at = greatest(%s, asked_at)"
            " WHERE id IN (SELECT max(id) FROM scheduler_suspension"
            "  WHERE attempt_id = ANY(%s::bigint[]) GROUP BY attempt_id) AND starts_at IS NULL",
            [at, ids],
        ),
        move_jobs((one.number for one in attempts), JobState.SUSPENDED),
    )
    cpus = _by_attempt(released)
    write_events([_suspended_event(one, cpus[one.attempt]) for one in attempts], at=at)
    announce(attempts, (node for _, node, _ in released))
    for cluster_id in sorted({one.cluster_id for one in attempts}):
        outbox.wake_planner(cluster_id, trigger="ended")


def _suspended_event(one: SuspendedAttempt, cpu_millis: int) -> Event:
    because = f"suspended; {show_cpus(cpu_millis)} CPUs are released, the memory stays allocated"
    return Event(one.number, one.epoch, "job.suspended", because, json.dumps({"cpu_millis": cpu_millis}))


# ------------------------------------------------------------------ they have not


@transaction.atomic
def stop_unsuspended(
    attempt_ids: Iterable[int] | None = None, *, slack_seconds: int = 0, because: str = ""
) -> int:
    """Stop attempts that were asked to suspend and have not in their grace; their jobs are requeued; how many.

    With `attempt_ids` only those, however much of their grace is left.
    """
    now = timezone.now()
    rows = run(
        f"SELECT a.id, a.job_id, a.epoch FROM {live_attempts('a')} JOIN scheduler_job j ON j.number = a.job_id"
        " WHERE a.suspend_asked_at IS NOT NULL AND a.suspended_at IS NULL"
        " AND a.stop_asked_at IS NULL AND j.state = %s AND (a.id = ANY(%s::bigint[])"
        f"  OR a.suspend_asked_at + make_interval(secs => coalesce(a.grace_seconds, {_GRACE_SECONDS}) + %s) < %s)"
        " ORDER BY j.number FOR NO KEY UPDATE OF j",
        [
            JobState.PREEMPTING.value, int_array(attempt_ids or ()),
            slack_seconds if attempt_ids is None else 10**9, now,
        ],
    )  # fmt: skip
    if not rows:
        return 0
    ids = [row[0] for row in rows]
    run(
        "UPDATE scheduler_attempt a SET stop_reason = %s, stop_asked_at = %s, stopped_for = s.for_job,"
        " stopped_for_epoch = s.for_epoch FROM scheduler_suspension s"
        " WHERE a.id = ANY(%s::bigint[]) AND s.id = (SELECT max(id) FROM scheduler_suspension"
        "  WHERE attempt_id = a.id)",
        [StopReason.PREEMPTED.value, now, int_array(ids)],
    )
    text = because or "was not suspended in time, so it ends and is requeued"
    write_events([Event(number, epoch, "job.preempting", text) for _, number, epoch in rows], at=now)
    outbox.announce_many(
        [outbox.node_topic(node) for node in nodes_of_attempts(ids)]
        + [outbox.job_topic(number) for _, number, _ in rows]
    )
    return len(rows)


# ------------------------------------------------------------------ shared with resuming


def count_cpus(attempts: Sequence[SuspendedAttempt], held: Rows, lines: Lines, *, sign: int) -> None:
    """Add (sign 1) or subtract (-1) the CPUs of these attempts on nodes and quota lines.

    `held` are rows of (attempt, node, CPU thousandths).
    """
    of_nodes: Counter[int] = Counter()
    for _, node, millis in held:
        of_nodes[node] += millis
    of_attempts = _by_attempt(held)
    of_lines: Counter[int] = Counter()
    for one in attempts:
        for row in lines.of_job(one.project_id, one.user_id, one.job_type):
            if row.resource == CPUS:
                of_lines[row.id] += of_attempts[one.attempt]
    run_together(
        (
            f"UPDATE scheduler_node n SET {giving_back('cpu', 'm.less')}"
            " FROM unnest(%s::bigint[], %s::bigint[]) AS m(id, less) WHERE n.id = m.id",
            [int_array(of_nodes), int_array(-sign * millis for millis in of_nodes.values())],
        ),
        (
            # A line made while the job ran did not count it: it never goes below 0.
            "UPDATE quotas_quota q SET used = greatest(0, q.used + %s * m.millis)"
            " FROM unnest(%s::bigint[], %s::bigint[]) AS m(id, millis) WHERE q.id = m.id",
            [sign, int_array(of_lines), int_array(of_lines.values())],
        ),
    )


def _by_attempt(held: Rows) -> Counter[int]:
    cpus: Counter[int] = Counter()
    for attempt, _, millis in held:
        cpus[attempt] += millis
    return cpus


def announce(attempts: Sequence[SuspendedAttempt], nodes: Iterable[int]) -> None:
    """Announce jobs that were suspended or resumed, to their nodes and readers."""
    outbox.announce_jobs(attempts, *{outbox.node_topic(node) for node in nodes}, outbox.CLUSTER_TOPIC)
