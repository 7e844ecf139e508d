"""Reports of agents taken over: what became of tasks, their checkpoints, suspensions and use of GPUs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

import structlog
from django.db import transaction
from django.utils import timezone

from infra.db.prepared import ask, ask_together
from scheduler import outbox
from scheduler.agent.protocol import Report
from scheduler.core.lifecycle import LIVE_ATTEMPT, LIVE_TASK, AttemptState, StopReason, TaskState
from scheduler.core.restart_rules import CLASSES
from scheduler.models import Job, Node
from scheduler.services.execution.elements import ElementResult, EndedElement, write_ended
from scheduler.services.jobs.datasets import save_checkpoint
from scheduler.state.apply import suspension
from scheduler.state.db.query import Batch, RowQuery
from scheduler.state.db.sql import Statement, int_array, run
from scheduler.state.load.quota_rows import Lines
from scheduler.state.settle import partial_failure
from scheduler.state.settle.events import Event, event_statements, unzipped, write_events
from scheduler.state.settle.locked_attempts import (
    AskedRows,
    LockedAttempts,
    ask_rows,
    lock_held,
)
from scheduler.state.settle.outcomes import BEFORE_RUNNING, Start, running_event
from scheduler.state.settle.release import RELEASED, ReleasedRow, release_ended_tasks
from scheduler.state.settle.settle import settle_locked

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


class _Reported(NamedTuple):
    """A report, the node whose agent made it, and when it came: its ages count from then."""

    node: Node
    report: Report
    came_at: datetime


class TaskRow(NamedTuple):
    """A reported task with its attempt and job."""

    task: int
    node: int
    state: str
    rank: int
    attempt: int
    epoch: int
    attempt_state: str
    attempt_started: bool
    scheduled_at: datetime
    number: int
    job_state: str
    user_id: int
    project_id: int
    #: Its attempt has no other task.
    alone: bool
    suspended: bool
    #: It has not released what it was given.
    holds: bool


@dataclass(slots=True)
class _Change:
    """One task's row after a report."""

    row: TaskRow
    node: Node
    state: TaskState
    report: Report
    started_at: datetime | None
    ended_at: datetime | None

    @property
    def releases(self) -> bool:
        """It ends, and its attempt with it: what it holds is released in the same write."""
        return self.ended_at is not None and self.row.alone and self.row.holds


@dataclass(slots=True)
class _Checkpoint:
    """The newest work that a task of a job has saved."""

    at: datetime
    path: str
    node: Node


@dataclass(slots=True)
class _Changes:
    """What some reports change."""

    #: By task.
    moved: dict[int, _Change] = field(default_factory=dict)
    #: By node (task, epoch) that are not live there: to be stopped.
    stale: list[tuple[int, tuple[int, int]]] = field(default_factory=list)
    #: Attempts of which a task is reported ended once more: they may wait to be settled.
    ended_before: set[int] = field(default_factory=set)
    #: By job.
    checkpoints: dict[int, _Checkpoint] = field(default_factory=dict)
    #: By task whether its processes are suspended now, where that has changed.
    suspended: dict[int, bool] = field(default_factory=dict)
    elements: list[EndedElement] = field(default_factory=list)

    def add(self, one: _Reported, row: TaskRow) -> None:
        """Take over a report about a live attempt; a task moves forwards only, and its end stays."""
        report = one.report
        if "saved_ago_ms" in report:
            ago = timedelta(milliseconds=min(report["saved_ago_ms"], _HUNDRED_YEARS_MS))
            at = max(one.came_at - ago, row.scheduled_at)
            self.checkpoints[row.number] = _Checkpoint(at, report.get("saved_path", ""), one.node)
        if report.get("suspended", row.suspended) != row.suspended:
            self.suspended[row.task] = report["suspended"]
        if row.state in LIVE_TASK:
            results = (ElementResult(*values) for values in report.get("elements", ()))
            self.elements += [
                EndedElement(row.number, row.epoch, row.scheduled_at, one.came_at, result)
                for result in results
            ]
        state, earlier = _REPORTED[report["state"]], self.moved.get(row.task)
        if row.state not in LIVE_TASK:
            self.ended_before.add(row.attempt)
        elif state == TaskState.RUNNING and row.state in (TaskState.RUNNING, TaskState.STOPPING):
            pass  # as it is
        elif earlier is None or not earlier.ended_at:
            self.moved[row.task] = _change(row, state, one)

    @property
    def ended(self) -> set[int]:
        """Attempts that may be settled now."""
        ended = {change.row.attempt for change in self.moved.values() if change.ended_at}
        return ended | self.ended_before

    @property
    def ends_with_start(self) -> list[int]:
        """Attempts of one task that has ended: what there is to write of their beginning goes with the end.

        Not where work was saved: the event of that comes after the one of the beginning.
        """
        return [
            change.row.attempt
            for change in self.moved.values()
            if change.ended_at and change.row.alone and change.row.number not in self.checkpoints
        ]


class NodeReports(NamedTuple):
    """What one message of a node's agent reports."""

    node: Node
    reports: Sequence[Report]
    came_at: datetime


#: (task, epoch) that are not live on a node, by node: to be stopped there.
Stale = dict[int, list[tuple[int, int]]]


def apply_reports(*, node: Node, reports: Sequence[Report]) -> list[tuple[int, int]]:
    """Take over what became of tasks; answers the (task, epoch) that are not live here: to be stopped."""
    return apply_together([NodeReports(node, reports, timezone.now())])[node.pk]


def apply_together(messages: Sequence[NodeReports]) -> Stale:
    """Take over what became of tasks on several nodes; answers what is to be stopped there.

    Reports may come twice, late, and in any order: only a live task of the reported epoch on the node that reports
    it moves, and only forwards. Up to `BATCH` reports share a transaction: tasks are written, attempts whose tasks
    have all ended are settled, and the beginning of a task that has ended by now is written with its end.
    """
    stale: Stale = {message.node.pk: [] for message in messages}
    reported = [_Reported(m.node, report, m.came_at) for m in messages for report in m.reports]
    for first in range(0, len(reported), BATCH):
        for node_id, pair in _apply(reported[first : first + BATCH]):
            stale[node_id].append(pair)
    return stale


def _apply(reported: Sequence[_Reported]) -> list[tuple[int, tuple[int, int]]]:
    """One transaction for these reports."""
    with transaction.atomic():
        locked = _lock_and_read(reported)
        changes = _changes_of(reported, locked.rows)
        _write_gpu_use(
            [r for r in reported if r.report["state"] == "running" and "gpu_watched_ms" in r.report]
        )
        if with_probes := [r for r in reported if "probes" in r.report]:
            _write_probes(with_probes)
        if changes.elements:
            ask(*write_ended(changes.elements))
        moved = list(changes.moved.values())
        starts = _starts_of(moved)
        with_end = {attempt: starts[attempt] for attempt in changes.ends_with_start if attempt in starts}
        ended = sorted(changes.ended & locked.attempts)
        at = timezone.now()
        written = _write_moved(moved, {a: s for a, s in starts.items() if a not in with_end}, ended, at)
        for number, checkpoint in sorted(changes.checkpoints.items()):
            _save_checkpoint(number, checkpoint)
        suspended = _write_suspended(changes.suspended) if changes.suspended else []
        if locked.lines is not None and written.rows is not None:
            live, ends = written.rows.read()
            attempts = LockedAttempts(locked.lines, live, ends)
            settle_locked(attempts, at=at, starts=with_end, released=written.released)
    if suspended:
        suspension.suspend_attempts(suspended)
    if written.shrunk:
        release_ended_tasks(written.shrunk)
    return changes.stale


# ---------------------------------------------------------------- read


_LOCK_JOBS: Final = """
SELECT number FROM scheduler_job WHERE number IN (SELECT a.job_id FROM scheduler_attempt a
    JOIN scheduler_task t ON t.attempt_id = a.id
    JOIN unnest(%s::bigint[], %s::bigint[]) AS v(task, node) ON t.id = v.task AND t.node_id = v.node)
ORDER BY number FOR NO KEY UPDATE
"""
_READ_TASKS: Final = RowQuery(
    TaskRow,
    {
        "task": "t.id",
        "node": "t.node_id",
        "state": "t.state",
        "rank": "t.rank",
        "attempt": "a.id",
        "epoch": "a.epoch",
        "attempt_state": "a.state",
        "attempt_started": "a.started_at IS NOT NULL",
        "scheduled_at": "a.scheduled_at",
        "number": "j.number",
        "job_state": "j.state",
        "user_id": "j.user_id",
        "project_id": "j.project_id",
        "alone": "NOT EXISTS (SELECT 1 FROM scheduler_task o WHERE o.attempt_id = a.id AND o.id <> t.id)",
        "suspended": "t.suspended",
        "holds": "t.held_at IS NOT NULL AND t.released_at IS NULL",
    },
    """SELECT {columns}
FROM unnest(%s::bigint[], %s::bigint[]) AS v(task, node)
    JOIN scheduler_task t ON t.id = v.task AND t.node_id = v.node
    JOIN scheduler_attempt a ON a.id = t.attempt_id JOIN scheduler_job j ON j.number = a.job_id""",
)
#: Which attempt a task is of, and on which node, never changes.
_ATTEMPTS_OF: Final = """
SELECT DISTINCT t.attempt_id FROM scheduler_task t
    JOIN unnest(%s::bigint[], %s::bigint[]) AS v(task, node) ON t.id = v.task AND t.node_id = v.node ORDER BY 1
"""


class _Locked(NamedTuple):
    """The reported tasks, by (node, task), and the quota lines of those that have ended; None where none has."""

    rows: dict[tuple[int, int], TaskRow]
    lines: Lines | None
    #: The attempts of those that have ended.
    attempts: frozenset[int]


def _lock_and_read(reported: Sequence[_Reported]) -> _Locked:
    """Lock what the reports change, in the one order: what is held by tasks that have ended, then jobs."""
    ended = [(r.node.pk, r.report["task"]) for r in reported if r.report["state"] != "running"]
    attempts = [row[0] for row in ask(_ATTEMPTS_OF, _pairs(ended))] if ended else []
    batch = Batch()
    lines = lock_held(batch, attempts) if attempts else None
    tasks = _pairs([(r.node.pk, r.report["task"]) for r in reported])
    batch.lock(_LOCK_JOBS, tasks)
    rows = batch.add(_READ_TASKS, tasks)
    batch.send(ask_together)
    by_task = {(row.node, row.task): row for row in rows.read()}
    return _Locked(by_task, lines.read() if lines else None, frozenset(attempts))


def _pairs(found: Iterable[tuple[int, int]]) -> list[str]:
    """(node, task) as the parameters of `v(task, node)`, each once."""
    once = sorted(set(found))
    return [int_array(task for _, task in once), int_array(node for node, _ in once)]


def _changes_of(reported: Sequence[_Reported], rows: Mapping[tuple[int, int], TaskRow]) -> _Changes:
    """What the reports change."""
    changes = _Changes()
    for one in reported:
        node, report = one.node, one.report
        row = rows.get((node.pk, report["task"]))
        if row is None or row.epoch != report["epoch"]:
            changes.stale.append((node.pk, (report["task"], report["epoch"])))
        elif row.attempt_state not in LIVE_ATTEMPT:
            changes.stale.append((node.pk, (row.task, row.epoch)))
            if row.state == TaskState.LOST:
                log.warning(
                    "late_report", job=row.number, epoch=row.epoch, state=report["state"], node=node.name
                )
        else:
            changes.add(one, row)
    return changes


def _change(row: TaskRow, state: TaskState, one: _Reported) -> _Change:
    """Ages become times, never before the attempt was scheduled nor after the report came."""
    report, now = one.report, one.came_at

    def moment(ago_ms: int | None) -> datetime:
        when = now - timedelta(milliseconds=min(max(ago_ms or 0, 0), _HUNDRED_YEARS_MS))
        return min(now, max(when, row.scheduled_at))

    started = "pid" in report or state == TaskState.RUNNING
    started_at = moment(report.get("started_ago_ms")) if started else None
    ended_at = moment(report.get("ended_ago_ms")) if state not in LIVE_TASK else None
    if started_at and ended_at:
        ended_at = max(started_at, ended_at)
    return _Change(row, one.node, state, report, started_at, ended_at)


# ---------------------------------------------------------------- write


class _Written(NamedTuple):
    """What followed from writing tasks."""

    #: What the attempts that ended are then; None where none has.
    rows: AskedRows | None
    #: What tasks held that had ended alone.
    released: list[ReleasedRow]
    #: The attempts that go on with fewer tasks.
    shrunk: list[int]


def _write_moved(
    moved: Sequence[_Change], starts: Mapping[int, Start], ended: Sequence[int], at: datetime
) -> _Written:
    """Write tasks and beginnings, and ask what the attempts `ended` are then."""
    batch = Batch()
    tasks = batch.add(_WRITE_TASKS, _task_parameters(moved, at), when=bool(moved))
    if moved:
        batch.write([*_note_agent_stops(moved), *_start_attempts(moved, starts)])
    shrunk: list[int] = []
    if any(change.ended_at and change.state != TaskState.SUCCEEDED for change in moved):
        batch.send(ask_together)
        shrunk = _stop_rest_of_gangs(moved)
        batch = Batch()
    rows = ask_rows(batch, ended) if ended else None
    batch.send(ask_together)
    releasing = {change.row.attempt for change in moved if change.releases}
    return _Written(rows, [row for row in tasks.read() if row.attempt_id in releasing], shrunk)


def _write_suspended(suspended: dict[int, bool]) -> list[int]:
    """Note which tasks are suspended; answers the attempts of which one more is."""
    rows = run(
        "UPDATE scheduler_task t SET suspended = v.still FROM unnest(%s::bigint[], %s::bool[]) AS v(id, still)"
        " WHERE t.id = v.id RETURNING t.attempt_id, t.suspended",
        [list(suspended), list(suspended.values())],
    )
    return sorted({attempt for attempt, is_suspended in rows if is_suspended})


def _save_checkpoint(number: int, checkpoint: _Checkpoint) -> None:
    """Note a checkpoint that a task wrote; the same one twice, or an older one, changes nothing."""
    job = Job.objects.get(pk=number)
    if job.saved_at is None or checkpoint.at > job.saved_at + timedelta(seconds=1):
        because = f"saved its work on {checkpoint.node.name}"
        save_checkpoint(job, path=checkpoint.path, because=because, at=checkpoint.at)


_TASK_COLUMNS: Final = (
    ("pid", "int"), ("exit_code", "int"), ("exit_signal", "int"), ("peak_memory_mib", "bigint"),
    ("cpu_time_ms", "bigint"), ("gpu_watched_ms", "bigint"), ("gpu_busy_ms", "bigint"),
    ("peak_gpu_memory_mib", "bigint"), ("stdout_bytes", "bigint"), ("stderr_bytes", "bigint"),
)  # fmt: skip


#: Writes tasks, and releases what some hold. Answers all of them.
_WRITE_TASKS: Final = RowQuery(
    ReleasedRow,
    RELEASED,
    f"""
UPDATE scheduler_task held SET state = v.state, started_at = coalesce(held.started_at, v.started_at),
    ended_at = v.ended_at, end_text = v.text, failure_class = v.failure,
    released_at = CASE WHEN v.releases THEN greatest(%s, held.held_at) ELSE held.released_at END,
    {", ".join(f"{name} = coalesce(v.{name}, held.{name})" for name, _ in _TASK_COLUMNS)}
FROM unnest(%s::bigint[], %s::text[], %s::timestamptz[], %s::timestamptz[], %s::text[], %s::text[], %s::bool[],
        {", ".join(f"%s::{kind}[]" for _, kind in _TASK_COLUMNS)})
    AS v(id, state, started_at, ended_at, text, failure, releases, {", ".join(name for name, _ in _TASK_COLUMNS)})
WHERE held.id = v.id RETURNING {{columns}}""",  # noqa: S608  names and types come from the constant above
)


def _task_parameters(changes: Sequence[_Change], at: datetime) -> list[Any]:
    """The parameters of `_WRITE_TASKS`; what ends alone releases what it holds at this moment."""
    return [
        at,
        int_array(c.row.task for c in changes),
        [c.state.value for c in changes],
        [c.started_at for c in changes],
        [c.ended_at for c in changes],
        [c.report.get("text", "")[:300] for c in changes],
        [failure if (failure := c.report.get("failure", "")) in CLASSES else "" for c in changes],
        [c.releases for c in changes],
        *(int_array(c.report.get(name) for c in changes) for name, _ in _TASK_COLUMNS),  # type: ignore[misc]
    ]


def _write_gpu_use(reported: Sequence[_Reported]) -> None:
    """Note how running tasks use their GPUs, so far."""
    if not reported:
        return
    reports = [one.report for one in reported]
    rows = run(
        "UPDATE scheduler_task t SET gpu_watched_ms = v.watched, gpu_busy_ms = v.busy, peak_gpu_memory_mib = v.peak"
        " FROM unnest(%s::bigint[], %s::int[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[])"
        " AS v(id, epoch, watched, busy, peak, node), scheduler_attempt a"
        " WHERE t.id = v.id AND a.id = t.attempt_id AND a.epoch = v.epoch AND t.node_id = v.node"
        " AND t.state IN ('starting', 'running', 'stopping') RETURNING a.job_id",
        [
            [report["task"] for report in reports],
            [report["epoch"] for report in reports],
            [report["gpu_watched_ms"] for report in reports],
            [report.get("gpu_busy_ms", 0) for report in reports],
            [report.get("peak_gpu_memory_mib", 0) for report in reports],
            [one.node.pk for one in reported],
        ],
    )
    outbox.announce_many(outbox.job_topic(number) for (number,) in rows)


def _write_probes(reported: Sequence[_Reported]) -> None:
    """Note the last results of the probes of live tasks."""
    rows = run(
        "UPDATE scheduler_task t SET probe_results = v.results::jsonb"
        " FROM unnest(%s::bigint[], %s::int[], %s::text[], %s::bigint[]) AS v(id, epoch, results, node),"
        " scheduler_attempt a"
        " WHERE t.id = v.id AND a.id = t.attempt_id AND a.epoch = v.epoch AND t.node_id = v.node"
        " AND t.state IN ('starting', 'running', 'stopping') RETURNING a.job_id",
        [
            [one.report["task"] for one in reported],
            [one.report["epoch"] for one in reported],
            [json.dumps(_probe_results(one)) for one in reported],
            [one.node.pk for one in reported],
        ],
    )
    outbox.announce_many(outbox.job_topic(number) for (number,) in rows)


def _probe_results(one: _Reported) -> list[dict[str, Any]]:
    """With the time of each in the place of its age."""
    return [
        {
            "number": result["number"],
            "ok": result["ok"],
            "failures": result["failures"],
            "text": result["text"],
            "at": (one.came_at - timedelta(milliseconds=result["ago_ms"])).isoformat(),
        }
        for result in one.report["probes"]
    ]


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
UPDATE scheduler_job j SET started_at = v.at, generation = j.generation + 1,
    state = CASE WHEN j.state IN ('scheduled', 'starting') THEN 'running' ELSE j.state END
FROM unnest(%s::bigint[], %s::timestamptz[]) AS v(id, at), scheduler_attempt a
WHERE a.id = v.id AND j.number = a.job_id
"""


def _starts_of(changes: Sequence[_Change]) -> dict[int, Start]:
    """By attempt the beginning of its first task, where that is new."""
    starts: dict[int, Start] = {}
    for change in changes:
        row = change.row
        if change.started_at and not row.attempt_started:
            start, earlier = Start(change.started_at, change.node.name), starts.get(row.attempt)
            if earlier is None or start.at < earlier.at:
                starts[row.attempt] = start
    return starts


def _start_attempts(changes: Sequence[_Change], starts: Mapping[int, Start]) -> list[Statement]:
    """Make these attempts and their jobs running."""
    if not starts:
        return []
    rows = {change.row.attempt: change.row for change in changes if change.row.attempt in starts}
    outbox.announce_jobs(rows.values(), outbox.CLUSTER_TOPIC)
    values = [int_array(starts), [start.at for start in starts.values()]]
    begun = sorted((start.at, rows[attempt].number, attempt) for attempt, start in starts.items())
    events = [
        (running_event(number, rows[attempt].epoch, starts[attempt].node), at)
        for at, number, attempt in begun
        if rows[attempt].job_state in BEFORE_RUNNING
    ]
    return [(_ATTEMPTS_RUN, values), (_JOBS_RUN, values), *event_statements(*unzipped(events))]


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
    because = f"task {change.row.rank} has {change.state}; the other tasks are enough and continue"
    return Event(job, epoch, "attempt.smaller", because, json.dumps({"rank": change.row.rank}))


def announce_nodes_of(attempt_ids: Sequence[int]) -> None:
    """Announce to the nodes where live tasks of these attempts run that their orders have changed."""
    nodes = run(
        "SELECT DISTINCT node_id FROM scheduler_task WHERE attempt_id = ANY(%s) AND state = ANY(%s)",
        [list(attempt_ids), _LIVE_TASK],
    )
    outbox.announce_many(outbox.node_topic(node_id) for (node_id,) in nodes)
