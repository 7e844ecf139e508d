"""Attempts that are to end: the rows that change with them, locked in the one order, and what they are by then."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple

from infra.db.prepared import ask_together
from scheduler.core.lifecycle import TaskFailure
from scheduler.state.db.query import Answer, Batch, RowQuery
from scheduler.state.db.sql import int_array
from scheduler.state.ledger.ledger_sql import PERIODS_OF_ATTEMPTS
from scheduler.state.lifecycle.verdicts import TaskEnd
from scheduler.state.load.quota_rows import (
    LINES,
    ORGANIZATIONS,
    LineRow,
    Lines,
    OrganizationRow,
)


class AttemptRow(NamedTuple):
    """A live attempt with what settling reads of its job."""

    id: int
    epoch: int
    stop_reason: str
    was_suspended: bool  # it is suspended for another job, or has been
    number: int
    state: str  # of the job
    user_id: int
    project_id: int
    cluster_id: int
    job_type: str
    restart_policy: str
    max_restarts: int
    restart_rules: str  # JSON
    restart_delay_seconds: int | None
    restart_delay_max_seconds: int | None
    time_limit_seconds: int | None
    saved_at: datetime | None
    tasks: int
    min_tasks: int | None
    elastic: bool
    on_task_failure: str

    @property
    def may_go_on_smaller(self) -> bool:
        """Tasks of it may have released what they held before the others."""
        return self.elastic or self.on_task_failure == TaskFailure.CONTINUE


class TaskEndRow(NamedTuple):
    """A task, and how it ended if it has."""

    attempt_id: int
    rank: int
    node: str
    state: str
    exit_code: int | None
    exit_signal: int | None
    text: str
    failure: str

    def end(self) -> TaskEnd:
        return TaskEnd(
            self.rank, self.node, self.state, self.exit_code, self.exit_signal, self.text, self.failure
        )


class ProjectOfJobRow(NamedTuple):
    """A project, and the organization it is in."""

    id: int
    organization_id: int | None


OF_ATTEMPTS: Final = "ANY(%s::bigint[])"
_HELD: Final = f"""SELECT {{}} FROM scheduler_allocation a
    WHERE a.attempt_id = {OF_ATTEMPTS} AND a.released_at IS NULL"""
_JOBS: Final = f"SELECT job_id FROM scheduler_attempt WHERE id = {OF_ATTEMPTS}"
_OF_JOBS: Final = f"ANY(ARRAY(SELECT {{}} FROM scheduler_job WHERE number IN ({_JOBS})))"
_PROJECTS: Final = _OF_JOBS.format("project_id")

_LOCK_NODES: Final = (
    f"SELECT id FROM scheduler_node WHERE id IN ({_HELD.format('a.node_id')}) ORDER BY id FOR NO KEY UPDATE"
)
_LOCK_DEVICES: Final = (
    f"SELECT id FROM scheduler_device WHERE id IN ({_HELD.format('unnest(a.device_ids)')}) ORDER BY id"
    " FOR NO KEY UPDATE"
)
#: The lock of a job is that of its attempts, too: whoever changes an attempt, or writes its lines of the ledger, holds
#: its job. A lock of the attempt's own row would write a record of the log for each attempt that ends.
LOCK_JOBS: Final = (
    f"SELECT number FROM scheduler_job WHERE number IN ({_JOBS}) ORDER BY number FOR NO KEY UPDATE"
)
_PROJECTS_OF_JOBS: Final = RowQuery(
    ProjectOfJobRow,
    {"id": "project.id", "organization_id": "project.organization_id"},
    f"SELECT {{columns}} FROM accounts_project project WHERE project.id = {_PROJECTS}",
)
_LIVE_ATTEMPTS: Final = RowQuery(
    AttemptRow,
    {
        "id": "attempt.id",
        "epoch": "attempt.epoch",
        "stop_reason": "attempt.stop_reason",
        "was_suspended": "attempt.suspended_at IS NOT NULL OR attempt.suspended_ms > 0",
        "number": "job.number",
        "state": "job.state",
        "user_id": "job.user_id",
        "project_id": "job.project_id",
        "cluster_id": "queue.cluster_id",
        "job_type": "request.job_type",
        "restart_policy": "request.restart_policy",
        "max_restarts": "request.max_restarts",
        "restart_rules": "request.restart_rules::text",
        "restart_delay_seconds": "request.restart_delay_seconds",
        "restart_delay_max_seconds": "request.restart_delay_max_seconds",
        "time_limit_seconds": "request.time_limit_seconds",
        "saved_at": "job.saved_at",
        "tasks": "request.tasks",
        "min_tasks": "request.min_tasks",
        "elastic": "request.elastic",
        "on_task_failure": "request.on_task_failure",
    },
    f"""SELECT {{columns}}
FROM scheduler_attempt attempt JOIN scheduler_job job ON job.number = attempt.job_id
    JOIN scheduler_jobrequest request ON request.number = attempt.job_id
    JOIN scheduler_queue queue ON queue.id = job.queue_id
WHERE attempt.id = {OF_ATTEMPTS} AND attempt.is_live ORDER BY attempt.id""",
)
_TASK_ENDS: Final = RowQuery(
    TaskEndRow,
    {
        "attempt_id": "task.attempt_id",
        "rank": "task.rank",
        "node": "node.name",
        "state": "task.state",
        "exit_code": "task.exit_code",
        "exit_signal": "task.exit_signal",
        "text": "task.end_text",
        "failure": "task.failure_class",
    },
    f"""SELECT {{columns}}
FROM scheduler_task task JOIN scheduler_node node ON node.id = task.node_id
WHERE task.attempt_id = {OF_ATTEMPTS} ORDER BY task.attempt_id, task.rank""",
)


@dataclass(frozen=True, slots=True)
class LockedAttempts:
    """The quota lines that the jobs count on, the attempts that live, and the ends of their tasks."""

    lines: Lines
    live: list[AttemptRow]
    ends: dict[int, list[TaskEnd]]


def lock_rows(attempt_ids: Collection[int]) -> Lines:
    """Take the rows that will change, in the one order; answers the quota lines that the jobs count on."""
    batch = Batch()
    lines = _lock(batch, attempt_ids)
    batch.send(ask_together)
    return lines.read()


def lock_and_read(attempt_ids: Collection[int]) -> LockedAttempts:
    """The same, and what attempts, jobs and tasks are once the locks are taken, in one round trip."""
    batch = Batch()
    lines = _lock(batch, attempt_ids)
    rows = ask_rows(batch, attempt_ids)
    batch.send(ask_together)
    return LockedAttempts(lines.read(), *rows.read())


def read_ends(attempt_ids: Collection[int]) -> dict[int, list[TaskEnd]]:
    """How the tasks of each of these attempts ended."""
    batch = Batch()
    ends = batch.add(_TASK_ENDS, [int_array(attempt_ids)])
    batch.send(ask_together)
    return _by_attempt(ends.read())


class AskedRows(NamedTuple):
    """What attempts and their tasks are, once the batch was sent."""

    live: Answer[list[AttemptRow]]
    ends: Answer[list[TaskEndRow]]

    def read(self) -> tuple[list[AttemptRow], dict[int, list[TaskEnd]]]:
        return self.live.read(), _by_attempt(self.ends.read())


def ask_rows(batch: Batch, attempt_ids: Collection[int]) -> AskedRows:
    """Ask what these attempts, whose jobs are locked by then, and their tasks are."""
    ids = int_array(attempt_ids)
    return AskedRows(batch.add(_LIVE_ATTEMPTS, [ids]), batch.add(_TASK_ENDS, [ids]))


class LockedLines(NamedTuple):
    """What the locking statements found of quota lines."""

    rows: Answer[list[LineRow]]
    organizations: Answer[list[OrganizationRow]]
    projects: Answer[list[ProjectOfJobRow]]

    def read(self) -> Lines:
        return Lines(self.rows.read(), self.organizations.read(), self.projects.read())


def _lock(batch: Batch, attempt_ids: Collection[int]) -> LockedLines:
    """The rows that settling changes, in the one order."""
    ids = int_array(attempt_ids)
    lines = lock_held(batch, attempt_ids)
    batch.lock(LOCK_JOBS, [ids])
    return lines


def lock_held(batch: Batch, attempt_ids: Collection[int]) -> LockedLines:
    """The first rows of the one order: what attempts hold. Their jobs are locked next."""
    ids = int_array(attempt_ids)
    batch.lock(_LOCK_NODES, [ids])
    batch.lock(_LOCK_DEVICES, [ids])
    lines = LockedLines(
        batch.add(
            LINES, [ids] * 4,
            projects=_PROJECTS, users=_OF_JOBS.format("user_id"), bounded="", lock="FOR NO KEY UPDATE OF quota",
        ),
        batch.add(ORGANIZATIONS, [ids], projects=_PROJECTS),
        batch.add(_PROJECTS_OF_JOBS, [ids]),
    )  # fmt: skip
    batch.lock(PERIODS_OF_ATTEMPTS, [ids, ids])
    return lines


def _by_attempt(rows: list[TaskEndRow]) -> dict[int, list[TaskEnd]]:
    ends: Mapping[int, list[TaskEnd]] = defaultdict(list)
    for row in rows:
        ends[row.attempt_id].append(row.end())
    return dict(ends)
