"""Jobs that wait and jobs that run: their queries, and the columns of a snapshot from what these find."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import numpy as np
from django.conf import settings

from scheduler.core.columns import Bools, Ints
from scheduler.core.snapshot.constraints import Labels
from scheduler.core.snapshot.request_classes import ClassTable
from scheduler.core.snapshot.snapshot import JobGate, PendingColumns, RunningColumns
from scheduler.state.db.fragments import (
    ANY_OF,
    OF_CLUSTER,
    live_attempts,
    ms,
    number_of_type,
    reason_mark,
)
from scheduler.state.db.query import ColumnQuery, RowQuery, Table
from scheduler.state.db.sql import run
from scheduler.state.load.node_rows import labels_of
from scheduler.state.load.request_rows import REQUEST_COLUMNS, class_numbers

#: What an operator has added to a job's priority for now.
_BOOST: Final = "CASE WHEN job.boost_until_at > statement_timestamp() THEN job.boost ELSE 0 END"

#: The lower half of the array's UUID: one number per array, the same in every cycle.
ARRAY_NUMBER: Final = """CASE WHEN request.array_id IS NULL THEN 0
        ELSE ('x' || right(replace(request.array_id::text, '-', ''), 15))::bit(60)::bigint END"""

#: Whether it may be stopped for another: one that runs at most once would be over.
_PREEMPTIBLE: Final = "(request.preemptible AND request.restart_policy <> 'never')"

#: How near to each other its tasks are to be, as the snapshot numbers it.
_PACK: Final = """array_position(ARRAY['', 'node', 'rack', 'zone'], request.pack::text) - 1
        + CASE WHEN request.pack_required OR request.relax <> '[]'
            AND request.relax @> jsonb_build_array(jsonb_build_object('constraint', 'pack'))
            THEN CASE WHEN coalesce(job.relaxed @> '["pack"]', false) THEN 0 ELSE 8 END ELSE 0 END"""

# ------------------------------------------------------------------ jobs that wait

#: Columns of `PendingColumns` that are there as the planner reads them.
_PENDING_AS_STORED: Final = {
    "id": "job.number",
    "queue_id": "job.queue_id",
    "project_id": "job.project_id",
    "user_id": "job.user_id",
    "submitted_ms": ms("request.created_at"),
    "tasks": "coalesce(request.min_tasks, request.tasks)",
    "nodes": "coalesce(request.nodes, 0)",
    "tasks_per_node": "coalesce(request.tasks_per_node, 0)",
    "time_limit_seconds": "coalesce(request.time_limit_seconds, 0)",
    "generation": "job.generation",
    "array_id": ARRAY_NUMBER,
    "array_max_running": "coalesce(request.array_max_running, 0)",
    "deadline_ms": f"coalesce({ms('request.deadline_at')}, 0)",
    "promised_ms": f"coalesce({ms('job.expected_start_at')}, 0)",
    "most_tasks": "CASE WHEN request.min_tasks IS NULL THEN 0 ELSE request.tasks END",
    "pack": _PACK,
    "assembly_seconds": "coalesce(request.assembly_timeout_seconds, 0)",
    "assembling_until_ms": f"""CASE WHEN job.state = 'reserved'
        THEN coalesce({ms("job.assembly_until_at")}, 1) ELSE 0 END""",
    "assemblies_failed": "job.assemblies_failed",
    "job_type": number_of_type("request.job_type"),
    "elastic": "request.elastic",
    "preemptible": _PREEMPTIBLE,
    "reservation_id": "coalesce(request.reservation_id, 0)",
}
#: What of a pending job is in its own row, all of it numbers that no passing of time changes.
_OWN_NUMBERS: Final = {
    **_PENDING_AS_STORED,
    "own_priority": "request.priority",
    "boost": "job.boost",
    "boost_until_ms": f"coalesce({ms('job.boost_until_at')}, 0)",
    "eligible_ms": f"coalesce({ms('job.eligible_at')}, 0)",
    "begin_ms": f"coalesce({ms('request.begin_at')}, 0)",
    "epoch": "job.epoch",
    "reason_mark": reason_mark("job.reason_code", "job.reason_text"),
}
PENDING_COLUMNS: Final = {**_OWN_NUMBERS, **REQUEST_COLUMNS}
#: A job as it is now, and what it asked for.
JOBS_AS_REQUESTED: Final = (
    "scheduler_job job JOIN scheduler_jobrequest request ON request.number = job.number"
)
_FROM_JOBS: Final = f"SELECT {{columns}}\nFROM {JOBS_AS_REQUESTED}\nWHERE "
#: Which jobs: these, or those that wait or run in a cluster (`UNFINISHED_OF_CLUSTER`).
THESE_JOBS: Final = """job.number = ANY(%s::bigint[])
    AND job.queue_id = ANY(%s::bigint[]) AND job.project_id = ANY(%s::bigint[])"""
#: A limit is in the text only where there is one: planned once, for whatever limit, the server would count on few.
PENDING: Final = ColumnQuery(
    PENDING_COLUMNS,
    _FROM_JOBS + "{which} AND job.state IN ('queued', 'reserved') ORDER BY job.number {limit} {lock}",
)
#: Every job that waited or ran in a span of time, in the columns of a pending one; `request.created_at` decides
#: which came before. Those that were given up before they ever started are left out.
PAST: Final = ColumnQuery(
    PENDING_COLUMNS,
    _FROM_JOBS
    + OF_CLUSTER
    + """ AND request.created_at < %s AND (job.completed_at IS NULL OR job.completed_at > %s)
    AND (job.started_at IS NOT NULL OR job.state IN ('queued', 'reserved')) ORDER BY job.number""",
)


#: Columns of numbers, one value a pending job: what its own row says.
OwnColumns = Mapping[str, Ints]
OWN_NAMES: Final = (*_OWN_NUMBERS, "class_index")


def own_columns(jobs: Table, classes: ClassTable) -> dict[str, Ints]:
    """What the own rows of pending jobs say, from what `PENDING` or `PAST` found."""
    return {name: _ints(jobs, name) for name in _OWN_NUMBERS} | {"class_index": class_numbers(jobs, classes)}


@dataclass(frozen=True, slots=True)
class Moment:
    """What decides about pending jobs beside their own rows: the time, and what other rows say just then."""

    now_ms: int
    #: (where a priority class begins, thousandths of a point an hour).
    ageing: Sequence[tuple[int, int]] = ()
    #: (job, epoch) for which others were stopped, suspended or made smaller a short while ago.
    awaited: AbstractSet[tuple[int, int]] = frozenset()
    #: Projects and people who may start nothing.
    closed_projects: Sequence[int] = ()
    closed_people: Sequence[int] = ()


class AwaitedRow(NamedTuple):
    """A job, in one of its epochs, for which others were stopped."""

    number: int
    epoch: int


AWAITED: Final = RowQuery(
    AwaitedRow,
    {"number": "number", "epoch": "epoch"},
    """SELECT {columns} FROM (
    SELECT stopped_for AS number, stopped_for_epoch AS epoch FROM scheduler_attempt
        WHERE stopped_for IS NOT NULL AND stopped_for_epoch IS NOT NULL
        AND stop_asked_at > statement_timestamp() - interval '15 minutes'
    UNION ALL SELECT for_job, for_epoch FROM scheduler_suspension
        WHERE asked_at > statement_timestamp() - interval '15 minutes'
    UNION ALL SELECT resized_for, resized_for_epoch FROM scheduler_attempt
        WHERE resized_for IS NOT NULL AND resized_for_epoch IS NOT NULL
        AND resized_at > statement_timestamp() - interval '15 minutes') awaited
WHERE number IS NOT NULL AND epoch IS NOT NULL""",
)


class ClosedRow(NamedTuple):
    """A project that is closed, or a person whose account is."""

    kind: str  # "project" or "person"
    id: int


#: Of these projects and people; `users` says how the people are named.
CLOSED: Final = RowQuery(
    ClosedRow,
    {"kind": "kind", "id": "id"},
    f"""SELECT {{columns}} FROM (
    SELECT 'project' AS kind, id FROM accounts_project WHERE id = {ANY_OF} AND NOT active
    UNION ALL SELECT 'person', id FROM accounts_user WHERE id = {{users}} AND NOT is_active) closed""",
)


def moment_of(
    now_ms: int,
    *,
    awaited: Iterable[AwaitedRow],
    closed: Sequence[ClosedRow],
    ageing: Sequence[tuple[int, int]] = (),
) -> Moment:
    """A moment from what `AWAITED` and `CLOSED` found."""
    return Moment(
        now_ms=now_ms,
        ageing=ageing,
        awaited={(row.number, row.epoch) for row in awaited},
        closed_projects=[row.id for row in closed if row.kind == "project"],
        closed_people=[row.id for row in closed if row.kind == "person"],
    )


def pending_columns(own: OwnColumns, moment: Moment) -> PendingColumns:
    """Columns of pending jobs from their own rows and the moment: the only way to them, also from memory."""
    if not len(own["id"]):
        return PendingColumns()
    return PendingColumns.from_columns(
        **{name: own[name] for name in _PENDING_AS_STORED},
        eligible_ms=np.maximum(own["eligible_ms"], own["begin_ms"]),
        priority=_effective_priority(own, moment),
        class_index=own["class_index"],
        gate=gates(own, moment),
        predicted_seconds=np.where(own["time_limit_seconds"] > 0, 0, settings.UNLIMITED_JOB_SECONDS),
        awaited=awaited_jobs(own, moment),
    )


def gates(own: OwnColumns, moment: Moment) -> Ints:
    """The gate (`JobGate`) of each job: a back-off that is not over, or an account that is closed."""
    eligible, begin = own["eligible_ms"], own["begin_ms"]
    gate = np.zeros(len(eligible), dtype=np.int64)
    gate[(eligible > begin) & (eligible > moment.now_ms)] = JobGate.BACKOFF
    for column, closed in (("project_id", moment.closed_projects), ("user_id", moment.closed_people)):
        if closed:
            gate[np.isin(own[column], closed)] = JobGate.ACCOUNT_EXPIRED
    return gate


def awaited_jobs(own: OwnColumns, moment: Moment) -> Bools:
    """Whether others were stopped for this job, and it has not started since."""
    found = np.zeros(len(own["id"]), dtype=np.bool_)
    if moment.awaited:
        rows = np.flatnonzero(np.isin(own["id"], [number for number, _ in moment.awaited]))
        pairs = zip(own["id"][rows].tolist(), own["epoch"][rows].tolist(), strict=True)
        found[rows] = [pair in moment.awaited for pair in pairs]
    return found


def _effective_priority(own: OwnColumns, moment: Moment) -> Ints:
    """Priorities with what boosts and the ageing of their class add, by which jobs take turns and stop others.

    Neither leads above PRIORITY_BOOST_CAP; a job that asked for more, within the ceiling granted, keeps that.
    """
    asked = own["own_priority"]
    added = np.where(own["boost_until_ms"] > moment.now_ms, own["boost"], 0)
    if moment.ageing:
        begins, millis = np.array(moment.ageing, dtype=np.int64).T
        place = np.searchsorted(begins, asked, side="right") - 1
        rate = np.where(place >= 0, millis[np.maximum(place, 0)], 0)
        since = np.maximum(own["submitted_ms"], own["eligible_ms"])
        added = added + rate * np.maximum(moment.now_ms - since, 0) // 3_600_000_000
    if not added.any():
        return asked
    led: Ints = np.maximum(asked, np.minimum(asked + added, min(settings.PRIORITY_BOOST_CAP, 100)))
    return led


def _ints(jobs: Table, name: str) -> Ints:
    return np.array(jobs[name], dtype=np.int64)


# ------------------------------------------------------------------ jobs that run

#: Since when it is asked to end, or to suspend and has not yet.
_ASKED_TO_STOP: Final = """coalesce(attempt.stop_asked_at,
        CASE WHEN attempt.suspended_at IS NULL THEN attempt.suspend_asked_at END)"""
_STARTED: Final = "coalesce(attempt.started_at, attempt.scheduled_at)"

#: Columns of `RunningColumns`.
_RUNNING_AS_STORED: Final = {
    "id": "job.number",
    "attempt_id": "attempt.id",
    "queue_id": "job.queue_id",
    "project_id": "job.project_id",
    "user_id": "job.user_id",
    "priority": f"least(100, request.priority + {_BOOST})",
    "started_ms": ms(_STARTED),
    "expected_end_ms": f"""coalesce({ms(_STARTED)} + 1000 * request.time_limit_seconds + attempt.suspended_ms
        + coalesce({ms("statement_timestamp()")} - {ms("attempt.suspended_at")}, 0), 0)""",
    # -1 = it has neither a time limit nor a prediction.
    "predicted_seconds": """CASE WHEN request.time_limit_seconds IS NOT NULL THEN 0
        ELSE coalesce(attempt.predicted_seconds + attempt.suspended_ms / 1000, -1) END""",
    "array_id": ARRAY_NUMBER,
    "preemptible": _PREEMPTIBLE,
    "times_preempted": """CASE WHEN attempt.epoch > 1 THEN (SELECT count(*) FROM scheduler_attempt earlier
        WHERE earlier.job_id = job.number AND earlier.stopped_for IS NOT NULL) ELSE 0 END
        + CASE WHEN attempt.suspended_ms > 0 THEN (SELECT count(*) FROM scheduler_suspension before
            WHERE before.attempt_id = attempt.id) ELSE 0 END""",
    "stop_by_ms": f"coalesce({ms(_ASKED_TO_STOP)} + 1000 * coalesce(attempt.grace_seconds, 60), 0)",
    "stopped_for": """CASE WHEN attempt.suspend_asked_at IS NULL OR attempt.stop_asked_at IS NOT NULL
        THEN coalesce(attempt.stopped_for, 0)
        ELSE coalesce((SELECT still.for_job FROM scheduler_suspension still
            WHERE still.attempt_id = attempt.id ORDER BY still.id DESC LIMIT 1), 0) END""",
    "saved_ms": f"CASE WHEN job.saved_at >= {_STARTED} THEN {ms('job.saved_at')} ELSE 0 END",
    "job_type": number_of_type("request.job_type"),
    "least_tasks": "CASE WHEN request.elastic THEN coalesce(request.min_tasks, request.tasks) ELSE 0 END",
    "most_tasks": "CASE WHEN request.elastic THEN request.tasks ELSE 0 END",
    "resized_ms": f"coalesce({ms('attempt.resized_at')}, 0)",
    "resized_for": "coalesce(attempt.resized_for, 0)",
    "pack": _PACK,
    "reservation_id": "coalesce(request.reservation_id, 0)",
    "pause": """CASE WHEN attempt.suspended_at IS NOT NULL THEN 2
        WHEN attempt.suspend_asked_at IS NOT NULL AND attempt.stop_asked_at IS NULL THEN 1 ELSE 0 END""",
}
RUNNING_COLUMNS: Final = {**_RUNNING_AS_STORED, **REQUEST_COLUMNS}
#: Jobs one by one by their keys. Left to choose, the server reads every job that ever was once some thousands
#: run: of 12,000 among a million in 1.3 s instead of 0.5 s, and the difference grows with the jobs that are kept.
RUNNING: Final = ColumnQuery(
    RUNNING_COLUMNS,
    f"""SELECT {{columns}}
FROM {live_attempts()}
    CROSS JOIN LATERAL (SELECT * FROM scheduler_job WHERE number = attempt.job_id OFFSET 0) job
    CROSS JOIN LATERAL (SELECT * FROM scheduler_jobrequest WHERE number = attempt.job_id OFFSET 0) request
WHERE {OF_CLUSTER} ORDER BY job.number""",
)
RUNNING_IN_ARRAYS_OF: Final = ColumnQuery(
    RUNNING_COLUMNS,
    f"""SELECT {{columns}}
FROM {live_attempts()} JOIN scheduler_job job ON job.number = attempt.job_id
    JOIN scheduler_jobrequest request ON request.number = attempt.job_id
WHERE request.array_id = ANY(ARRAY(
        SELECT DISTINCT array_id FROM scheduler_jobrequest
        WHERE number = {ANY_OF} AND array_max_running IS NOT NULL
    )) AND job.queue_id = {ANY_OF} AND job.project_id = {ANY_OF}
ORDER BY job.number""",
)


def running_columns(jobs: Table, classes: ClassTable) -> RunningColumns:
    """Columns of running jobs from what `RUNNING` or `RUNNING_IN_ARRAYS_OF` found."""
    if not jobs["id"]:
        return RunningColumns()
    own: dict[str, Sequence[Any]] = {name: jobs[name] for name in _RUNNING_AS_STORED}
    own["predicted_seconds"] = [
        settings.UNLIMITED_JOB_SECONDS if seconds < 0 else seconds for seconds in own["predicted_seconds"]
    ]
    return RunningColumns.from_columns(**own, class_index=class_numbers(jobs, classes))


# ------------------------------------------------------------------ names and labels

#: Read only where a job has terms about others of its project.
_NAMES: Final = """
SELECT job.number, request.name, request.labels::text
FROM scheduler_job job JOIN scheduler_jobrequest request ON request.number = job.number
WHERE job.number = ANY(%s::bigint[]) AND job.project_id = ANY(%s::bigint[])
"""


def named(
    pending: PendingColumns, running: RunningColumns, classes: ClassTable, project_ids: Sequence[int]
) -> tuple[PendingColumns, RunningColumns]:
    """The jobs with their names and labels, where some job of their project has terms about others.

    The jobs of `project_ids` get theirs in any case.
    """
    has_terms = np.array([bool(request.job_terms) for request in classes.classes], dtype=np.bool_)
    if not has_terms.any() and not project_ids:
        return pending, running
    projects = set(project_ids)
    for jobs in (pending, running):
        projects |= set(jobs.project_id[has_terms[jobs.class_index]].tolist() if len(has_terms) else ())
    numbers = [*pending.id.tolist(), *running.id.tolist()]
    rows = run(_NAMES, [numbers, sorted(projects)])
    known = {number: (name, labels_of(labels)) for number, name, labels in rows}
    return (
        replace(pending, **_names_and_labels(pending.id, known)),
        replace(running, **_names_and_labels(running.id, known)),
    )


def _names_and_labels(numbers: Ints, known: dict[int, tuple[str, Labels]]) -> dict[str, Any]:
    found = [known.get(number, ("", ())) for number in numbers.tolist()]
    return {"name": tuple(name for name, _ in found), "labels": tuple(labels for _, labels in found)}
