"""Standing still: a job gives its CPUs back while its processes are stopped, and takes them again to go on."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

import structlog
from django.db import IntegrityError, transaction
from django.utils import timezone

from quotas.core.resources import show_cpus
from scheduler import outbox
from scheduler.core.lifecycle import LIVE_ATTEMPT, LIVE_TASK, JobState, NodeState, StopReason
from scheduler.core.plan import Preempt, Resume
from scheduler.state.db.sql import int_array, run, run_together, select_together
from scheduler.state.lease import leases
from scheduler.state.lease.leases import HeldLease
from scheduler.state.load import load_sql
from scheduler.state.load.quota_rows import Lines
from scheduler.state.settle.release_capacity import giving_back
from scheduler.state.settle.settle import lock_rows, write_events

log = structlog.get_logger(__name__)

_LIVE_ATTEMPT: Final = sorted(s.value for s in LIVE_ATTEMPT)
_LIVE_TASK: Final = sorted(s.value for s in LIVE_TASK)
CPUS: Final = "cpu_millis"


class _Still(NamedTuple):
    """An attempt that begins to stand still, or goes on."""

    attempt: int
    epoch: int
    number: int
    user_id: int
    project_id: int
    job_type: str
    cluster_id: int
    since: datetime | None


_STILL: Final = """
SELECT a.id, a.epoch, j.number, j.user_id, j.project_id, j.job_type, q.cluster_id, a.suspended_at
FROM scheduler_attempt a JOIN scheduler_job j ON j.number = a.job_id JOIN scheduler_queue q ON q.id = j.queue_id
WHERE a.id = ANY(%s::bigint[]) AND a.stop_asked_at IS NULL AND a.suspend_asked_at IS NOT NULL AND {which}
ORDER BY a.id
"""
#: All of its processes that are left have stopped.
_ALL_STOPPED: Final = """
    a.suspended_at IS NULL
    AND EXISTS (SELECT 1 FROM scheduler_task t WHERE t.attempt_id = a.id AND t.state = ANY(%s))
    AND NOT EXISTS (SELECT 1 FROM scheduler_task t
        WHERE t.attempt_id = a.id AND t.state = ANY(%s) AND NOT t.suspended)
"""


# ------------------------------------------------------------------ it is told to


def ask(preempts: Sequence[Preempt], epochs: Mapping[int, int], *, at: datetime) -> None:
    """Running to being preempted; what each holds it keeps until its processes have stopped. Rows are locked."""
    if not preempts:
        return
    attempts = int_array(p.attempt_id for p in preempts)
    run_together(
        (
            "UPDATE scheduler_job SET state = %s, generation = generation + 1 WHERE number = ANY(%s::bigint[])",
            [JobState.PREEMPTING.value, int_array(p.job_id for p in preempts)],
        ),
        (
            "UPDATE scheduler_attempt a SET suspend_asked_at = %s, grace_seconds = t.grace"
            " FROM unnest(%s::bigint[], %s::int[]) AS t(id, grace) WHERE a.id = t.id",
            [at, attempts, int_array(p.grace_seconds for p in preempts)],
        ),
        (
            "INSERT INTO scheduler_suspension (attempt_id, for_job, for_epoch, cpu_millis, asked_at)"
            " SELECT t.id, t.job, t.epoch, (SELECT coalesce(sum(held.cpu_millis), 0)"
            "  FROM scheduler_allocation held WHERE held.attempt_id = t.id AND held.released_at IS NULL), %s"
            " FROM unnest(%s::bigint[], %s::bigint[], %s::int[]) AS t(id, job, epoch)",
            [
                at, attempts, int_array(p.for_job_id for p in preempts),
                int_array(epochs[p.for_job_id] for p in preempts),
            ],
        ),
    )  # fmt: skip


# ------------------------------------------------------------------ it does


def waiting_suspensions() -> list[int]:
    """Attempts whose processes have stopped and that hold their CPUs all the same: somebody was killed between."""
    rows = run(
        "SELECT a.id FROM scheduler_attempt a WHERE a.state = ANY(%s) AND a.suspend_asked_at IS NOT NULL"
        f" AND a.stop_asked_at IS NULL AND {_ALL_STOPPED} ORDER BY a.id",
        [_LIVE_ATTEMPT, _LIVE_TASK, _LIVE_TASK],
    )
    return [row[0] for row in rows]


@transaction.atomic
def suspend_attempts(attempt_ids: Iterable[int], *, at: datetime | None = None) -> int:
    """Those of these whose processes have all stopped give their CPUs back; answers how many.

    Locks, and is safe to call again, as `settle.settle_many`.
    """
    wanted = sorted(set(attempt_ids))
    if not wanted:
        return 0
    lines = lock_rows(wanted)
    at = at or timezone.now()
    rows = run(
        _STILL.format(which=f"j.state = %s AND {_ALL_STOPPED}"),
        [int_array(wanted), JobState.PREEMPTING.value, _LIVE_TASK, _LIVE_TASK],
    )
    found = [_Still(*row) for row in rows]
    if not found:
        return 0
    ids = int_array(one.attempt for one in found)
    moved = run(
        "UPDATE scheduler_allocation SET cpu_millis = 0, suspended_cpu_millis = cpu_millis"
        " WHERE attempt_id = ANY(%s::bigint[]) AND released_at IS NULL"
        " RETURNING attempt_id, node_id, suspended_cpu_millis",
        [ids],
    )
    _count(found, moved, lines, sign=-1)
    run_together(
        ("UPDATE scheduler_attempt SET suspended_at = %s WHERE id = ANY(%s::bigint[])", [at, ids]),
        (
            "UPDATE scheduler_suspension SET starts_at = greatest(%s, asked_at)"
            " WHERE id IN (SELECT max(id) FROM scheduler_suspension"
            "  WHERE attempt_id = ANY(%s::bigint[]) GROUP BY attempt_id) AND starts_at IS NULL",
            [at, ids],
        ),
        _move(found, JobState.SUSPENDED),
    )
    cpus: Counter[int] = Counter()
    for attempt, _, millis in moved:
        cpus[attempt] += millis
    write_events(
        [
            (one.number, one.epoch, "job.suspended", f"suspended; keeps its memory and released"
             f" {show_cpus(cpus[one.attempt])} CPUs", json.dumps({"cpu_millis": cpus[one.attempt]}))
            for one in found
        ],
        at=at,
    )  # fmt: skip
    _tell(found, [node for _, node, _ in moved])
    for cluster_id in sorted({one.cluster_id for one in found}):
        outbox.wake_planner(cluster_id, trigger="ended")
    return len(found)


# ------------------------------------------------------------------ it goes on


def apply_resumes(resumes: Sequence[Resume], *, lease: HeldLease, at: datetime) -> int:
    """Let those go on whose CPUs are still free where they are; answers how many.

    A transaction of its own, before the starts: it locks rows in the same order as they do. The database
    refuses what must never be, and then nobody goes on in this cycle.
    """
    if not resumes:
        return 0
    try:
        with transaction.atomic():
            leases.fence(lease)
            return _resume([one.attempt_id for one in resumes], at)
    except IntegrityError as error:
        log.error("resume_refused_by_constraint", jobs=[one.job_id for one in resumes], error=str(error))
        return 0


def _resume(attempt_ids: Sequence[int], at: datetime) -> int:
    wanted = sorted(attempt_ids)
    lines = lock_rows(wanted)
    which = "j.state = %s AND a.suspended_at IS NOT NULL"
    rows = run(_STILL.format(which=which), [int_array(wanted), JobState.SUSPENDED.value])
    there = {row[0]: _Still(*row) for row in rows}
    held: dict[int, Counter[int]] = {attempt: Counter() for attempt in there}
    for attempt, node, millis in run(
        "SELECT attempt_id, node_id, suspended_cpu_millis FROM scheduler_allocation"
        " WHERE attempt_id = ANY(%s::bigint[]) AND released_at IS NULL",
        [int_array(there)],
    ):
        held[attempt][node] += millis
    free = {
        node: left
        for node, state, left in run(
            "SELECT id, state, cpu_millis_capacity - used_cpu_millis FROM scheduler_node"
            " WHERE id = ANY(%s::bigint[])",
            [int_array({node for nodes in held.values() for node in nodes})],
        )
        if state == NodeState.UP
    }
    # Plans of other clusters count on the same lines, so what was free when this was planned need not be.
    limits, number = lines.with_others(
        *select_together((load_sql.KEEPERS, []), (load_sql.KEEPERS_ORGANIZATIONS, []))
    ).tree()
    found: list[_Still] = []
    for attempt in attempt_ids:  # in the order of the plan
        one = there.get(attempt)
        if one is None or any(free.get(node, -1) < millis for node, millis in held[attempt].items()):
            continue
        need = sum(held[attempt].values())
        charges = [
            (number[row.id], need)
            for row in lines.of_job(one.project_id, one.user_id, one.job_type)
            if row.resource == CPUS and row.id in number
        ]
        if limits.short(charges) is not None:
            continue
        limits.take(charges)
        for node, millis in held[attempt].items():
            free[node] -= millis
        found.append(one)
    if not found:
        return 0
    ids = int_array(one.attempt for one in found)
    moved = run(
        "UPDATE scheduler_allocation SET cpu_millis = suspended_cpu_millis, suspended_cpu_millis = 0"
        " WHERE attempt_id = ANY(%s::bigint[]) AND released_at IS NULL"
        " RETURNING attempt_id, node_id, cpu_millis",
        [ids],
    )
    _count(found, moved, lines, sign=1)
    run_together(
        (
            "UPDATE scheduler_suspension SET ends_at = greatest(%s, starts_at)"
            " WHERE attempt_id = ANY(%s::bigint[]) AND starts_at IS NOT NULL AND ends_at IS NULL",
            [at, ids],
        ),
        (
            "UPDATE scheduler_attempt SET suspended_ms = suspended_ms"
            " + greatest(1, floor(extract(epoch FROM %s - suspended_at) * 1000))::bigint,"
            " suspended_at = NULL, suspend_asked_at = NULL WHERE id = ANY(%s::bigint[])",
            [at, ids],
        ),
        _move(found, JobState.RUNNING),
    )
    write_events(
        [
            (one.number, one.epoch, "job.running", f"resumed, after being suspended for"
             f" {_minutes(one.since, at)}", "{}")
            for one in found
        ],
        at=at,
    )  # fmt: skip
    _tell(found, [node for _, node, _ in moved])
    return len(found)


def _minutes(since: datetime | None, at: datetime) -> str:
    seconds = int((at - since).total_seconds()) if since else 0
    return f"{seconds // 60} min" if seconds >= 120 else f"{max(seconds, 0)} s"


# ------------------------------------------------------------------ it does not


@transaction.atomic
def stop_instead(
    attempt_ids: Iterable[int] | None = None, *, slack_seconds: int = 0, because: str = ""
) -> int:
    """Those that were to stand still and have not in their time end instead and are queued again; how many.

    With ids those, whatever their time.
    """
    now = timezone.now()
    rows = run(
        "SELECT a.id, a.job_id, a.epoch FROM scheduler_attempt a JOIN scheduler_job j ON j.number = a.job_id"
        " WHERE a.state = ANY(%s) AND a.suspend_asked_at IS NOT NULL AND a.suspended_at IS NULL"
        " AND a.stop_asked_at IS NULL AND j.state = %s AND (a.id = ANY(%s::bigint[])"
        "  OR a.suspend_asked_at + make_interval(secs => coalesce(a.grace_seconds, 60) + %s) < %s)"
        " ORDER BY j.number FOR NO KEY UPDATE OF j",
        [
            _LIVE_ATTEMPT, JobState.PREEMPTING.value, int_array(attempt_ids or ()),
            slack_seconds if attempt_ids is None else 10**9, now,
        ],
    )  # fmt: skip
    if not rows:
        return 0
    ids = int_array(row[0] for row in rows)
    run(
        "UPDATE scheduler_attempt a SET stop_reason = %s, stop_asked_at = %s, stopped_for = s.for_job,"
        " stopped_for_epoch = s.for_epoch FROM scheduler_suspension s"
        " WHERE a.id = ANY(%s::bigint[]) AND s.id = (SELECT max(id) FROM scheduler_suspension"
        "  WHERE attempt_id = a.id)",
        [StopReason.PREEMPTED.value, now, ids],
    )
    text = because or "was not suspended in time; stopped instead and requeued"
    write_events([(number, epoch, "job.preempting", text, "{}") for _, number, epoch in rows], at=now)
    nodes = run(
        "SELECT DISTINCT node_id FROM scheduler_allocation WHERE attempt_id = ANY(%s::bigint[])"
        " AND released_at IS NULL",
        [ids],
    )
    outbox.announce_many(
        [outbox.node_topic(row[0]) for row in nodes] + [outbox.job_topic(row[1]) for row in rows]
    )
    return len(rows)


# ------------------------------------------------------------------ shared


def _move(found: Sequence[_Still], to: JobState) -> tuple[str, list[Any]]:
    return (
        "UPDATE scheduler_job SET state = %s, generation = generation + 1 WHERE number = ANY(%s::bigint[])",
        [to.value, int_array(one.number for one in found)],
    )


def _count(found: Sequence[_Still], moved: Iterable[tuple[Any, ...]], lines: Lines, *, sign: int) -> None:
    """Nodes and quota lines count the CPUs of these attempts, or count them no more."""
    nodes: Counter[int] = Counter()
    cpus: Counter[int] = Counter()
    for attempt, node, millis in moved:
        nodes[node] += millis
        cpus[attempt] += millis
    of_lines: Counter[int] = Counter()
    for one in found:
        for row in lines.of_job(one.project_id, one.user_id, one.job_type):
            if row.resource == CPUS:
                of_lines[row.id] += cpus[one.attempt]
    run_together(
        (
            f"UPDATE scheduler_node n SET {giving_back('cpu', 'm.less')}"
            " FROM unnest(%s::bigint[], %s::bigint[]) AS m(id, less) WHERE n.id = m.id",
            [int_array(nodes), int_array(-sign * millis for millis in nodes.values())],
        ),
        (
            # A line made while the job ran did not count it: it never goes below nothing.
            "UPDATE quotas_quota q SET used = greatest(0, q.used + %s * m.millis)"
            " FROM unnest(%s::bigint[], %s::bigint[]) AS m(id, millis) WHERE q.id = m.id",
            [sign, int_array(of_lines), int_array(of_lines.values())],
        ),
    )


def _tell(found: Sequence[_Still], nodes: Iterable[int]) -> None:
    outbox.announce_many(
        [outbox.node_topic(node) for node in sorted(set(nodes))]
        + [outbox.job_topic(one.number) for one in found]
        + [outbox.user_topic(one.user_id) for one in found]
        + [outbox.project_topic(one.project_id) for one in found]
        + [outbox.CLUSTER_TOPIC, outbox.QUEUES_TOPIC]
    )
