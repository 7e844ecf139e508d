"""Makes our rows agree with what is: reports of agents, silent nodes, overdue jobs, and work cut short by a crash."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import structlog
from django.conf import settings
from django.db import transaction
from django.utils import timezone

from infra.db.prepared import ask_together
from scheduler import outbox
from scheduler.agent.protocol import Assignment, Report
from scheduler.backends.base import QuotaRefused
from scheduler.backends.registry import UnknownBackend, backend_of
from scheduler.core.lifecycle import LIVE_ATTEMPT, LIVE_TASK, AttemptState, StopReason, TaskState
from scheduler.models import Cluster, Job, Node
from scheduler.services.cluster.nodes import DOOR_SCOPE
from scheduler.services.execution import dispatch
from scheduler.services.jobs.datasets import save_checkpoint
from scheduler.state.apply import suspension
from scheduler.state.db.sql import Statement, int_array, run
from scheduler.state.lifecycle import dependencies
from scheduler.state.settle import partial_failure
from scheduler.state.settle.settle import (
    Settled,
    release_members,
    settle_many,
    shrunk_attempts,
    waiting_attempts,
    write_events,
)

log = structlog.get_logger(__name__)

#: Agents enforce time limits themselves; this much later the server asks for a stop on its own.
LIMIT_SLACK_SECONDS: Final = 30
#: Settled in one transaction.
BATCH: Final = 500

_LIVE_ATTEMPT: Final = sorted(s.value for s in LIVE_ATTEMPT)
_LIVE_TASK: Final = sorted(s.value for s in LIVE_TASK)
_REPORTED: Final = {
    "running": TaskState.RUNNING,
    "succeeded": TaskState.SUCCEEDED,
    "failed": TaskState.FAILED,
    "stopped": TaskState.STOPPED,
    "lost": TaskState.LOST,
}
_HUNDRED_YEARS_MS: Final = 100 * 365 * 86400 * 1000


@dataclass(slots=True)
class _Row:
    task: int
    state: str
    rank: int
    attempt: int
    epoch: int
    attempt_state: str
    attempt_started: bool
    scheduled_at: datetime
    job: int
    user_id: int
    project_id: int
    suspended: bool


@dataclass(slots=True)
class _Change:
    """One task's row after a report."""

    row: _Row
    state: TaskState
    report: Report
    started_at: datetime | None
    ended_at: datetime | None


# ---------------------------------------------------------------- reports


def apply_reports(*, node: Node, reports: Sequence[Report]) -> list[tuple[int, int]]:
    """Take over what became of tasks; answers those (task, epoch) that nobody waits for: to be stopped.

    Reports may come twice, late, and in any order: only a live task of the reported epoch moves, and only
    forwards. First the tasks are written, then attempts whose tasks have all ended are settled; a crash
    between the two is made good by the same report coming again, or by `reconcile_all`.
    """
    if not reports:
        return []
    with transaction.atomic():
        changes, stale, done, saved, paused = _read_changes(node, reports)
        _write_gpu_use(node, [r for r in reports if r["state"] == "running" and "gpu_watched_ms" in r])
        shrunk: list[int] = []
        if changes:
            ask_together(_tasks(changes), *_stopped_there(changes), *_started(node, changes))
            shrunk = _stop_rest_of_gangs(changes)
        for number, (at, path) in sorted(saved.items()):
            _save_checkpoint(number, at, path, node)
        still = _write_pauses(paused) if paused else []
    if still:
        suspension.suspend_attempts(still)
    if shrunk:
        release_members(shrunk)
    ended = sorted({change.row.attempt for change in changes if change.ended_at} | done)
    for first in range(0, len(ended), BATCH):
        settle_many(ended[first : first + BATCH])
    return stale


_LOCK_JOBS: Final = """
SELECT number FROM scheduler_job WHERE number IN (SELECT a.job_id FROM scheduler_attempt a
    JOIN scheduler_task t ON t.attempt_id = a.id WHERE t.id = ANY(%s::bigint[]) AND t.node_id = %s)
ORDER BY number FOR NO KEY UPDATE
"""
_READ_TASKS: Final = """
SELECT t.id, t.state, t.rank, a.id, a.epoch, a.state, a.started_at IS NOT NULL, a.scheduled_at,
    j.number, j.user_id, j.project_id, t.suspended
FROM scheduler_task t JOIN scheduler_attempt a ON a.id = t.attempt_id JOIN scheduler_job j ON j.number = a.job_id
WHERE t.id = ANY(%s::bigint[]) AND t.node_id = %s
"""


def _read_changes(
    node: Node, reports: Sequence[Report]
) -> tuple[list[_Change], list[tuple[int, int]], set[int], dict[int, tuple[datetime, str]], dict[int, bool]]:
    """What moves, what is stale, attempts that may wait to be settled, checkpoints by job, and by task
    whether its processes stand still now, where that has changed.

    Jobs are locked from here on.
    """
    ids = int_array(sorted({report["task"] for report in reports}))
    _, found = ask_together((_LOCK_JOBS, [ids, node.pk]), (_READ_TASKS, [ids, node.pk]))
    rows = {row[0]: _Row(*row) for row in found}
    now = timezone.now()
    changes: dict[int, _Change] = {}
    stale: list[tuple[int, int]] = []
    done: set[int] = set()
    saved: dict[int, tuple[datetime, str]] = {}
    paused: dict[int, bool] = {}
    for report in reports:
        row, state = rows.get(report["task"]), _REPORTED[report["state"]]
        current = row is not None and row.epoch == report["epoch"] and row.attempt_state in LIVE_ATTEMPT
        if row is not None and current and "saved_ago_ms" in report:
            ago = timedelta(milliseconds=min(report["saved_ago_ms"], _HUNDRED_YEARS_MS))
            saved[row.job] = (max(now - ago, row.scheduled_at), report.get("saved_path", ""))
        if row is not None and current and report.get("suspended", row.suspended) != row.suspended:
            paused[row.task] = report["suspended"]
        if row is None or row.epoch != report["epoch"]:
            stale.append((report["task"], report["epoch"]))
        elif row.attempt_state not in LIVE_ATTEMPT:
            stale.append((row.task, row.epoch))
            if row.state == TaskState.LOST:
                log.warning("late_report", job=row.job, epoch=row.epoch, state=state.value, node=node.name)
        elif row.state not in LIVE_TASK:
            done.add(row.attempt)  # a second time
        elif state == TaskState.RUNNING and row.state in (TaskState.RUNNING, TaskState.STOPPING):
            continue
        elif row.task in changes and changes[row.task].ended_at:
            continue  # its end came first, in this very message
        else:
            changes[row.task] = _change(row, state, report, now)
    return list(changes.values()), stale, done, saved, paused


def _write_pauses(paused: Mapping[int, bool]) -> list[int]:
    """Note which tasks stand still; answers the attempts of which one more does."""
    rows = run(
        "UPDATE scheduler_task t SET suspended = v.still FROM unnest(%s::bigint[], %s::bool[]) AS v(id, still)"
        " WHERE t.id = v.id RETURNING t.attempt_id, t.suspended",
        [list(paused), list(paused.values())],
    )
    return sorted({attempt for attempt, still in rows if still})


def _save_checkpoint(number: int, at: datetime, path: str, node: Node) -> None:
    """Note a checkpoint that a task wrote; the same one twice, or an older one, changes nothing."""
    job = Job.objects.get(pk=number)
    if job.saved_at is None or at > job.saved_at + timedelta(seconds=1):
        save_checkpoint(job, path=path, because=f"saved a checkpoint on {node.name}", at=at)


def _change(row: _Row, state: TaskState, report: Report, now: datetime) -> _Change:
    """Ages become times, never before the attempt was scheduled nor after now."""

    def moment(ago_ms: int | None) -> datetime:
        when = now - timedelta(milliseconds=min(max(ago_ms or 0, 0), _HUNDRED_YEARS_MS))
        return min(now, max(when, row.scheduled_at))

    started = "pid" in report or state == TaskState.RUNNING
    started_at = moment(report.get("started_ago_ms")) if started else None
    ended_at = moment(report.get("ended_ago_ms")) if state not in LIVE_TASK else None
    if started_at and ended_at:
        ended_at = max(started_at, ended_at)
    return _Change(row, state, report, started_at, ended_at)


_TASK_COLUMNS: Final = (
    ("pid", "int"), ("exit_code", "int"), ("exit_signal", "int"), ("peak_memory_mib", "bigint"),
    ("cpu_time_ms", "bigint"), ("gpu_watched_ms", "bigint"), ("gpu_busy_ms", "bigint"),
    ("peak_gpu_memory_mib", "bigint"), ("stdout_bytes", "bigint"), ("stderr_bytes", "bigint"),
)  # fmt: skip


# Names and types come from the constant above.
_WRITE_TASKS: Final = f"""
UPDATE scheduler_task t SET state = v.state, started_at = coalesce(t.started_at, v.started_at),
    ended_at = v.ended_at, end_text = v.text,
    {", ".join(f"{name} = coalesce(v.{name}, t.{name})" for name, _ in _TASK_COLUMNS)}
FROM unnest(%s::bigint[], %s::text[], %s::timestamptz[], %s::timestamptz[], %s::text[],
        {", ".join(f"%s::{kind}[]" for _, kind in _TASK_COLUMNS)})
    AS v(id, state, started_at, ended_at, text, {", ".join(name for name, _ in _TASK_COLUMNS)})
WHERE t.id = v.id
"""  # noqa: S608


def _tasks(changes: Sequence[_Change]) -> Statement:
    return (
        _WRITE_TASKS,
        [
            int_array(c.row.task for c in changes),
            [c.state.value for c in changes],
            [c.started_at for c in changes],
            [c.ended_at for c in changes],
            [c.report.get("text", "")[:300] for c in changes],
            *(int_array(c.report.get(name) for c in changes) for name, _ in _TASK_COLUMNS),  # type: ignore[misc]
        ],
    )


def _write_gpu_use(node: Node, reports: Sequence[Report]) -> None:
    """How tasks that run use their GPUs, so far."""
    if not reports:
        return
    rows = run(
        "UPDATE scheduler_task t SET gpu_watched_ms = v.watched, gpu_busy_ms = v.busy, peak_gpu_memory_mib = v.peak"
        " FROM unnest(%s::bigint[], %s::int[], %s::bigint[], %s::bigint[], %s::bigint[])"
        " AS v(id, epoch, watched, busy, peak), scheduler_attempt a"
        " WHERE t.id = v.id AND a.id = t.attempt_id AND a.epoch = v.epoch AND t.node_id = %s"
        " AND t.state IN ('starting', 'running', 'stopping') RETURNING a.job_id",
        [
            [report["task"] for report in reports],
            [report["epoch"] for report in reports],
            [report["gpu_watched_ms"] for report in reports],
            [report.get("gpu_busy_ms", 0) for report in reports],
            [report.get("peak_gpu_memory_mib", 0) for report in reports],
            node.pk,
        ],
    )
    outbox.announce_many(outbox.job_topic(number) for (number,) in rows)


def _stopped_there(changes: Sequence[_Change]) -> list[Statement]:
    """A limit that an agent enforced is noted."""
    statements: list[Statement] = []
    for reason in (StopReason.TIME_LIMIT, StopReason.QUOTA_REFUSED):
        stopped = [c.row.attempt for c in changes if c.report.get("stop_reason") == reason]
        if stopped:
            statements.append(
                (
                    "UPDATE scheduler_attempt SET stop_reason = %s, stop_asked_at = now()"
                    " WHERE id = ANY(%s::bigint[]) AND stop_asked_at IS NULL",
                    [reason.value, int_array(stopped)],
                )
            )
    return statements


_ATTEMPTS_RUN: Final = """
UPDATE scheduler_attempt a SET started_at = v.at,
    state = CASE WHEN a.state IN ('assigned', 'starting') THEN 'running' ELSE a.state END
FROM unnest(%s::bigint[], %s::timestamptz[]) AS v(id, at) WHERE a.id = v.id AND a.started_at IS NULL
"""
_JOBS_RUN: Final = """
WITH moved AS (
    UPDATE scheduler_job j SET started_at = v.at, generation = j.generation + 1,
        state = CASE WHEN j.state IN ('scheduled', 'starting') THEN 'running' ELSE j.state END
    FROM unnest(%s::bigint[], %s::timestamptz[]) AS v(id, at), scheduler_attempt a
    WHERE a.id = v.id AND j.number = a.job_id RETURNING j.number, a.epoch, j.state, v.at
)
INSERT INTO scheduler_jobevent (job_id, epoch, kind, because, details, at)
SELECT number, epoch, 'job.running', %s, %s::jsonb, at FROM moved WHERE state = 'running' ORDER BY at, number
"""


def _started(node: Node, changes: Sequence[_Change]) -> list[Statement]:
    """The first task that runs makes attempt and job running."""
    started: dict[int, datetime] = {}
    topics: set[str] = set()
    for change in changes:
        row = change.row
        if change.started_at and not row.attempt_started:
            started[row.attempt] = min(change.started_at, started.get(row.attempt, change.started_at))
            topics |= {
                outbox.job_topic(row.job),
                outbox.user_topic(row.user_id),
                outbox.project_topic(row.project_id),
            }
    if not started:
        return []
    outbox.announce_many({*topics, outbox.QUEUES_TOPIC, outbox.CLUSTER_TOPIC})
    values = [int_array(started), list(started.values())]
    because = [f"started on {node.name}", json.dumps({"node": node.name})]
    return [(_ATTEMPTS_RUN, values), (_JOBS_RUN, [*values, *because])]


def _stop_rest_of_gangs(changes: Sequence[_Change]) -> list[int]:
    """Tasks of one attempt start together and fail together: the others wait for one that will not come.

    Unless the job's rule says that enough are left: answers the attempts that go on without some.
    """
    failed = sorted({c.row.attempt for c in changes if c.ended_at and c.state != TaskState.SUCCEEDED})
    if not failed:
        return []
    going_on = partial_failure.going_on(failed)
    without = {row[0] for row in going_on}
    rows = run(
        "UPDATE scheduler_attempt a SET state = %s, stop_reason = %s, stop_asked_at = now()"
        " WHERE a.id = ANY(%s) AND a.id <> ALL(%s) AND a.stop_asked_at IS NULL AND EXISTS ("
        "  SELECT 1 FROM scheduler_task t WHERE t.attempt_id = a.id AND t.state = ANY(%s))"
        " RETURNING a.id, a.job_id, a.epoch",
        [
            AttemptState.STOPPING.value,
            StopReason.GANG_MEMBER_FAILED.value,
            failed,
            sorted(without),
            _LIVE_TASK,
        ],
    )
    ended = {c.row.attempt: c for c in changes if c.ended_at and c.state != TaskState.SUCCEEDED}
    write_events(
        [(job, epoch, "attempt.stopping", "one task failed, so the others are stopped", "{}")
         for _, job, epoch in rows]
        + [(job, epoch, "attempt.smaller", f"task {ended[attempt].row.rank} has {ended[attempt].state}; "
            "the others are enough and continue", json.dumps({"rank": ended[attempt].row.rank}))
           for attempt, job, epoch in going_on],
        at=timezone.now(),
    )  # fmt: skip
    _wake_nodes([row[0] for row in rows])
    return sorted(without)


def _wake_nodes(attempt_ids: Sequence[int]) -> None:
    nodes = run(
        "SELECT DISTINCT node_id FROM scheduler_task WHERE attempt_id = ANY(%s) AND state = ANY(%s)",
        [list(attempt_ids), _LIVE_TASK],
    )
    outbox.announce_many(outbox.node_topic(node_id) for (node_id,) in nodes)


# ---------------------------------------------------------------- on a timer


@dataclass(frozen=True, slots=True)
class Reconciled:
    """What one run found; all zeros on a good day."""

    unknown_nodes: int = 0
    down_nodes: int = 0
    lost_attempts: int = 0
    settled_attempts: int = 0
    overdue_attempts: int = 0
    ended_waits: int = 0


def reconcile_all() -> Reconciled:
    """Check everything that no message tells us; safe to run at any time, and several at once."""
    unknown, down = _age_nodes()
    lost = _lose_attempts_of_down_nodes()
    stopped = run(
        "SELECT DISTINCT a.id FROM scheduler_attempt a JOIN scheduler_task t ON t.attempt_id = a.id"
        " WHERE a.state = ANY(%s) AND a.stop_asked_at IS NOT NULL AND t.state = 'assigned'",
        [_LIVE_ATTEMPT],
    )
    if stopped:
        dispatch.end_unstarted([row[0] for row in stopped])
    suspension.suspend_attempts(suspension.waiting_suspensions())
    suspension.stop_instead(slack_seconds=LIMIT_SLACK_SECONDS)
    settled = settle_many(waiting_attempts())
    release_members(shrunk_attempts())
    overdue = _stop_overdue()
    waits = _end_waits()
    for cluster in Cluster.objects.order_by("id"):
        try:
            drive_backend(cluster)
        except (ConnectionError, UnknownBackend) as error:
            log.warning("backend_unavailable", cluster=cluster.slug, error=str(error))
    return Reconciled(unknown, down, len(lost), len(settled), overdue, waits)


def _age_nodes() -> tuple[int, int]:
    """Silent nodes become unknown, then down; never while no web process could have heard them."""
    grace = max(0, settings.MUSTER_NODE_LOST_SECONDS - settings.MUSTER_NODE_SILENT_SECONDS)
    age = (
        "UPDATE scheduler_node SET state = %s, generation = generation + 1 WHERE state = ANY(%s)"
        " AND lease_expires_at < clock_timestamp() - make_interval(secs => %s) AND EXISTS ("
        "  SELECT 1 FROM scheduler_lease WHERE scope = %s AND expires_at > clock_timestamp())"
        " RETURNING name, cluster_id"
    )
    with transaction.atomic():
        down = run(age, ["down", ["up", "unknown"], grace, DOOR_SCOPE])
        unknown = run(age, ["unknown", ["up"], 0, DOOR_SCOPE])
        for name, _ in down:
            log.error("node_down", node=name)
        for name, _ in unknown:
            log.warning("node_unknown", node=name)
        if down or unknown:
            outbox.announce(outbox.CLUSTER_TOPIC)
            for cluster_id in {row[1] for row in (*down, *unknown)}:
                outbox.wake_planner(cluster_id, trigger="node")
    return len(unknown), len(down)


def _lose_attempts_of_down_nodes() -> list[Settled]:
    left = partial_failure.lose_with_down_nodes(at=timezone.now())
    release_members(left)
    rows = run(
        "SELECT DISTINCT ON (a.id) a.id, a.epoch, n.name FROM scheduler_task t"
        " JOIN scheduler_node n ON n.id = t.node_id JOIN scheduler_attempt a ON a.id = t.attempt_id"
        " WHERE n.state = 'down' AND n.lease_expires_at IS NOT NULL"
        " AND t.state IN ('assigned', 'starting', 'running', 'stopping') AND a.state = ANY(%s) ORDER BY a.id",
        [_LIVE_ATTEMPT],
    )
    settled: list[Settled] = []
    for first in range(0, len(rows), BATCH):
        batch = rows[first : first + BATCH]
        settled += settle_many(
            [row[0] for row in batch],
            lost={row[0]: f"Node {row[2]} stopped responding." for row in batch},
            epochs={row[0]: row[1] for row in batch},
        )
    return settled


def _stop_overdue() -> int:
    """The server's own time limit, for an agent that does not keep its promise.

    Attempts are locked without their jobs, so it waits for none: one that is being changed comes next time.
    """
    with transaction.atomic():
        rows = run(
            "UPDATE scheduler_attempt SET stop_reason = %s, stop_asked_at = now() WHERE id IN ("
            "  SELECT a.id FROM scheduler_attempt a JOIN scheduler_job j ON j.number = a.job_id"
            "  WHERE a.state = ANY(%s) AND a.stop_asked_at IS NULL AND a.suspended_at IS NULL AND a.started_at"
            "   + make_interval(secs => j.time_limit_seconds + a.suspended_ms / 1000 + %s) < now()"
            "  FOR NO KEY UPDATE OF a SKIP LOCKED) RETURNING id",
            [
                StopReason.TIME_LIMIT.value, _LIVE_ATTEMPT,
                settings.MUSTER_GRACE_SECONDS + LIMIT_SLACK_SECONDS,
            ],
        )  # fmt: skip
        _wake_nodes([row[0] for row in rows])
    return len(rows)


def _end_waits() -> int:
    """Jobs that have waited for others as long as they would."""
    with transaction.atomic():
        clusters, count = dependencies.expire_waits(at=timezone.now())
        for cluster_id in sorted(clusters):
            outbox.wake_planner(cluster_id, trigger="dependency")
    return count


def drive_backend(cluster: Cluster) -> None:
    """Do for a backend that has no agents what an agent's sync does by itself: report, then take orders."""
    backend = backend_of(cluster)
    if not backend.capabilities.is_driven:
        return
    for node in cluster.nodes.select_related("cluster").order_by("id"):
        observation = backend.observe(node.name)
        stale = apply_reports(node=node, reports=observation.reports)
        backend.stop(node.name, dispatch.stale_stops(stale))
        orders = dispatch.orders_for(node, observation.known)
        backend.stop(node.name, orders.stops)
        try:
            backend.submit(node.name, orders.assignments)
        except QuotaRefused as refused:
            send_back(node, orders.assignments, refused.tasks)
        backend.pause(node.name, orders.pauses)
        backend.verify(node.name, orders.verify)


def send_back(node: Node, assignments: Sequence[Assignment], refused: Mapping[int, str]) -> None:
    """Tasks that a quota outside did not let in never started: their jobs are queued again with the reason."""
    apply_reports(
        node=node,
        reports=[
            Report(
                task=assignment["task"],
                epoch=assignment["epoch"],
                state="stopped",
                stop_reason=StopReason.QUOTA_REFUSED.value,
                text=refused[assignment["task"]][:300],
            )
            for assignment in assignments
            if assignment["task"] in refused
        ],
    )
