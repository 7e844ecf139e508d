"""Reports of agents taken over: what became of tasks, their checkpoints, suspensions and use of GPUs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

import structlog
from django.db import transaction
from django.utils import timezone

from infra.db.prepared import ask_together
from scheduler import outbox
from scheduler.agent.protocol import Report
from scheduler.core.lifecycle import LIVE_ATTEMPT, LIVE_TASK, AttemptState, StopReason, TaskState
from scheduler.models import Job, Node
from scheduler.services.execution.elements import ElementResult, EndedElement, write_ended
from scheduler.services.jobs.datasets import save_checkpoint
from scheduler.state.apply import suspension
from scheduler.state.db.sql import Statement, int_array, run
from scheduler.state.settle import partial_failure
from scheduler.state.settle.events import Event, write_events
from scheduler.state.settle.release import release_ended_tasks
from scheduler.state.settle.settle import settle_many

log = structlog.get_logger(__name__)

#: Settled in one transaction.
BATCH: Final = 500

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
class _TaskRow:
    """A reported task with its attempt and job: a row of `_READ_TASKS`."""

    task: int
    state: str
    rank: int
    attempt: int
    epoch: int
    attempt_state: str
    attempt_started: bool
    scheduled_at: datetime
    number: int
    user_id: int
    project_id: int
    suspended: bool


@dataclass(slots=True)
class _Change:
    """One task's row after a report."""

    row: _TaskRow
    state: TaskState
    report: Report
    started_at: datetime | None
    ended_at: datetime | None


@dataclass(slots=True)
class _Checkpoint:
    """The newest work that a task of a job has saved."""

    at: datetime
    path: str


@dataclass(slots=True)
class _Changes:
    """What the reports of one message change."""

    now: datetime
    #: By task.
    moved: dict[int, _Change] = field(default_factory=dict)
    #: (task, epoch) that are not live here: to be stopped.
    stale: list[tuple[int, int]] = field(default_factory=list)
    #: Attempts of which a task is reported ended once more: they may wait to be settled.
    ended_before: set[int] = field(default_factory=set)
    #: By job.
    checkpoints: dict[int, _Checkpoint] = field(default_factory=dict)
    #: By task whether its processes are suspended now, where that has changed.
    suspended: dict[int, bool] = field(default_factory=dict)
    elements: list[EndedElement] = field(default_factory=list)

    def add(self, report: Report, row: _TaskRow) -> None:
        """Take over a report about a live attempt; a task moves forwards only, and its end stays."""
        if "saved_ago_ms" in report:
            ago = timedelta(milliseconds=min(report["saved_ago_ms"], _HUNDRED_YEARS_MS))
            at = max(self.now - ago, row.scheduled_at)
            self.checkpoints[row.number] = _Checkpoint(at, report.get("saved_path", ""))
        if report.get("suspended", row.suspended) != row.suspended:
            self.suspended[row.task] = report["suspended"]
        if row.state in LIVE_TASK:
            results = (ElementResult(*one) for one in report.get("elements", ()))
            self.elements += [EndedElement(row.number, row.epoch, row.scheduled_at, r) for r in results]
        state, earlier = _REPORTED[report["state"]], self.moved.get(row.task)
        if row.state not in LIVE_TASK:
            self.ended_before.add(row.attempt)
        elif state == TaskState.RUNNING and row.state in (TaskState.RUNNING, TaskState.STOPPING):
            pass  # as it is
        elif earlier is None or not earlier.ended_at:
            self.moved[row.task] = _change(row, state, report, self.now)

    @property
    def ended(self) -> list[int]:
        """Attempts that may be settled now."""
        ended = {change.row.attempt for change in self.moved.values() if change.ended_at}
        return sorted(ended | self.ended_before)


def apply_reports(*, node: Node, reports: Sequence[Report]) -> list[tuple[int, int]]:
    """Take over what became of tasks; answers the (task, epoch) that are not live here: to be stopped.

    Reports may come twice, late, and in any order: only a live task of the reported epoch moves, and only
    forwards. First the tasks are written, then attempts whose tasks have all ended are settled; after a crash
    between the two the same report comes again, or `reconcile_all` settles them.
    """
    if not reports:
        return []
    with transaction.atomic():
        changes = _read_changes(node, reports)
        _write_gpu_use(node, [r for r in reports if r["state"] == "running" and "gpu_watched_ms" in r])
        shrunk: list[int] = []
        if changes.elements:
            ask_together(write_ended(changes.elements, now=changes.now))
        moved = list(changes.moved.values())
        if moved:
            ask_together(_write_tasks(moved), *_note_agent_stops(moved), *_start_attempts(node, moved))
            shrunk = _stop_rest_of_gangs(moved)
        for number, checkpoint in sorted(changes.checkpoints.items()):
            _save_checkpoint(number, checkpoint, node)
        suspended = _write_suspended(changes.suspended) if changes.suspended else []
    if suspended:
        suspension.suspend_attempts(suspended)
    if shrunk:
        release_ended_tasks(shrunk)
    ended = changes.ended
    for first in range(0, len(ended), BATCH):
        settle_many(ended[first : first + BATCH])
    return changes.stale


# ---------------------------------------------------------------- read


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


def _read_changes(node: Node, reports: Sequence[Report]) -> _Changes:
    """Lock the jobs of the reported tasks, and see what the reports change."""
    ids = int_array(sorted({report["task"] for report in reports}))
    _, found = ask_together((_LOCK_JOBS, [ids, node.pk]), (_READ_TASKS, [ids, node.pk]))
    rows = {row[0]: _TaskRow(*row) for row in found}
    changes = _Changes(timezone.now())
    for report in reports:
        row = rows.get(report["task"])
        if row is None or row.epoch != report["epoch"]:
            changes.stale.append((report["task"], report["epoch"]))
        elif row.attempt_state not in LIVE_ATTEMPT:
            changes.stale.append((row.task, row.epoch))
            if row.state == TaskState.LOST:
                log.warning(
                    "late_report", job=row.number, epoch=row.epoch, state=report["state"], node=node.name
                )
        else:
            changes.add(report, row)
    return changes


def _change(row: _TaskRow, state: TaskState, report: Report, now: datetime) -> _Change:
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


# ---------------------------------------------------------------- write


def _write_suspended(suspended: dict[int, bool]) -> list[int]:
    """Note which tasks are suspended; answers the attempts of which one more is."""
    rows = run(
        "UPDATE scheduler_task t SET suspended = v.still FROM unnest(%s::bigint[], %s::bool[]) AS v(id, still)"
        " WHERE t.id = v.id RETURNING t.attempt_id, t.suspended",
        [list(suspended), list(suspended.values())],
    )
    return sorted({attempt for attempt, is_suspended in rows if is_suspended})


def _save_checkpoint(number: int, checkpoint: _Checkpoint, node: Node) -> None:
    """Note a checkpoint that a task wrote; the same one twice, or an older one, changes nothing."""
    job = Job.objects.get(pk=number)
    if job.saved_at is None or checkpoint.at > job.saved_at + timedelta(seconds=1):
        because = f"saved its work on {node.name}"
        save_checkpoint(job, path=checkpoint.path, because=because, at=checkpoint.at)


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


def _write_tasks(changes: Sequence[_Change]) -> Statement:
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
    """Note how running tasks use their GPUs, so far."""
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


def _note_agent_stops(changes: Sequence[_Change]) -> list[Statement]:
    """Note on attempts that an agent stopped them: at their time limit, or refused by a quota."""
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


def _start_attempts(node: Node, changes: Sequence[_Change]) -> list[Statement]:
    """Make attempts and jobs running whose first task runs."""
    started: dict[int, datetime] = {}
    jobs: list[_TaskRow] = []
    for change in changes:
        row = change.row
        if change.started_at and not row.attempt_started:
            started[row.attempt] = min(change.started_at, started.get(row.attempt, change.started_at))
            jobs.append(row)
    if not started:
        return []
    outbox.announce_jobs(jobs, outbox.CLUSTER_TOPIC)
    values = [int_array(started), list(started.values())]
    because = [f"started on {node.name}", json.dumps({"node": node.name})]
    return [(_ATTEMPTS_RUN, values), (_JOBS_RUN, [*values, *because])]


def _stop_rest_of_gangs(changes: Sequence[_Change]) -> list[int]:
    """Stop the other tasks of attempts of which one has failed; answers the attempts that continue without some.

    Tasks of one attempt start together and fail together, as the others wait for one that will not come. Where the
    job's rule says that enough are left, they continue.
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
        [
            Event(job, epoch, "attempt.stopping", "one task has failed, so the others are stopped")
            for _, job, epoch in rows
        ]
        + [_continues(job, epoch, ended[attempt]) for attempt, job, epoch in going_on],
        at=timezone.now(),
    )
    announce_nodes_of([row[0] for row in rows])
    return sorted(without)


def _continues(job: int, epoch: int, change: _Change) -> Event:
    """One task has ended and the others are enough."""
    because = f"task {change.row.rank} has {change.state}; the others are enough and continue"
    return Event(job, epoch, "attempt.smaller", because, json.dumps({"rank": change.row.rank}))


def announce_nodes_of(attempt_ids: Sequence[int]) -> None:
    """Announce to the nodes where live tasks of these attempts run that their orders have changed."""
    nodes = run(
        "SELECT DISTINCT node_id FROM scheduler_task WHERE attempt_id = ANY(%s) AND state = ANY(%s)",
        [list(attempt_ids), _LIVE_TASK],
    )
    outbox.announce_many(outbox.node_topic(node_id) for (node_id,) in nodes)
