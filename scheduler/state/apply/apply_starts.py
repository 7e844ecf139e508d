"""Starts to rows: which still hold on fresh, locked rows, and what is written for those."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, NamedTuple

import structlog
from django.conf import settings
from django.db import IntegrityError, transaction

from infra.db.prepared import ask, ask_together
from quotas.core.resources import Resources
from scheduler import outbox
from scheduler.core.lifecycle import AttemptState, JobState, TaskState
from scheduler.core.plan import Placement, Plan, Start
from scheduler.core.reasons.messages import sentence
from scheduler.core.revalidate import Conflict, find_conflicts
from scheduler.core.snapshot.snapshot import Snapshot
from scheduler.state.apply.apply_context import ApplyContext
from scheduler.state.apply.apply_sql import PLANNED_STATES, insert_events_of_kind
from scheduler.state.apply.refusals import JOB_CHANGED, REFUSED_BY_CONSTRAINT, Refusal
from scheduler.state.db.parameter_rows import ParameterRows
from scheduler.state.db.sql import Rows, Statement, int_array
from scheduler.state.db.task_numbers import NEXT_TASK
from scheduler.state.ledger import ledger, provider_allocations
from scheduler.state.ledger.ledger import Books
from scheduler.state.load import locked_snapshot
from scheduler.state.load.locked_snapshot import Locked
from scheduler.state.load.quota_rows import Lines, charges_of, held_by_model

log = structlog.get_logger(__name__)

#: What has changed on a node since it was chosen, by the filter that rejects it now.
_CHANGE_OF_NODE: Final = {
    "gone": "no longer exists",
    "state": "is not responding",
    "cordoned": "is cordoned",
    "draining": "is draining",
    "reserved": "is reserved",
    "jobs": "violates affinity to other jobs",
    "device": "has that GPU in use or unhealthy",
    "gpu_health": "has too few healthy GPUs",
    "size": "is too small for one task",
    "gpus": "has too few free GPUs",
    "cpu_millis": "has too few free CPUs",
    "memory_mib": "has too little free memory",
    "storage_mib": "has too little free storage",
    "numa": "has too little free in that NUMA domain",
}


#: An array without a row: a statement with it would change nothing.
_NO_ROWS: Final = int_array([])


@dataclass(frozen=True, slots=True)
class LockedFacts:
    """What the statements need of the locked rows, by id."""

    lines: Lines
    books: Books
    node_names: Mapping[int, str]
    gpu_models: Mapping[int, str]
    #: For how long each job's budget is set aside.
    hold_seconds: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class CheckedStarts:
    """The starts that hold on the locked rows, and those that do not."""

    accepted: tuple[Start, ...] = ()
    refused: tuple[Refusal, ...] = ()
    facts: LockedFacts | None = field(default=None, repr=False)


# ------------------------------------------------------------------ check


def check(plan: Plan, context: ApplyContext, cluster_row: Rows) -> CheckedStarts:
    """Lock what the starts touch, in the order of this package, and decide each again on it.

    `cluster_row` is the answer to `locked_snapshot.applied_to`, read as the lease was fenced.
    """
    if not plan.starts:
        return CheckedStarts()
    locked = _lock(plan, context.cluster_id, cluster_row)
    refused = {
        conflict.job_id: Refusal(conflict.job_id, conflict.reason.value, _what_changed(conflict))
        for conflict in find_conflicts(plan, locked.snapshot, context.policy, context.plugins)
    }
    accepted = tuple(start for start in plan.starts if start.job_id not in refused)
    return CheckedStarts(accepted, tuple(refused.values()), _facts(locked))


def _lock(plan: Plan, cluster_id: int, cluster_row: Rows) -> Locked:
    placements = [placement for start in plan.starts for placement in start.placements]
    return locked_snapshot.load_for_apply(
        cluster_id=cluster_id,
        applied_to=cluster_row,
        queue_ids=sorted({start.queue_id for start in plan.starts}),
        node_ids=sorted({placement.node_id for placement in placements}),
        device_ids=sorted({device for placement in placements for device in placement.device_ids}),
        project_ids=sorted({start.project_id for start in plan.starts}),
        job_ids=sorted(start.job_id for start in plan.starts),
    )


def _facts(locked: Locked) -> LockedFacts:
    nodes, devices = locked.snapshot.nodes, locked.snapshot.devices
    return LockedFacts(
        lines=locked.lines,
        books=locked.books,
        node_names=dict(zip(nodes.id.tolist(), nodes.name, strict=True)),
        gpu_models=dict(zip(devices.id.tolist(), devices.model, strict=True)),
        hold_seconds=_hold_seconds(locked.snapshot),
    )


def _hold_seconds(fresh: Snapshot) -> dict[int, int]:
    """For how long each job's budget is set aside: its time limit, else its queue's, else the site's."""
    pending, queues = fresh.pending, fresh.queues
    queue_limits = dict(zip(queues.id.tolist(), queues.max_wall_seconds.tolist(), strict=True))
    rows = zip(
        pending.id.tolist(), pending.time_limit_seconds.tolist(), pending.queue_id.tolist(), strict=True
    )
    return {
        number: limit or queue_limits.get(queue_id, 0) or settings.LEDGER_OPEN_HOLD_SECONDS
        for number, limit, queue_id in rows
    }


def _what_changed(conflict: Conflict) -> str:
    """What changed between the snapshot and the moment of writing."""
    facts = dict(conflict.facts)
    if "change" in facts:
        return f"The start was planned, but {facts['change']}."
    if "gate" in facts:
        node, name = facts.get("node", facts.get("node_id")), str(facts["gate"])
        return f"The start was planned on {node}, which {_CHANGE_OF_NODE.get(name, f'{name} excludes')} now."
    return sentence(conflict.reason, conflict.facts)


# ------------------------------------------------------------------ write


def write(checked: CheckedStarts, context: ApplyContext) -> tuple[list[Start], list[Refusal]]:
    """Write the accepted starts, one statement a table; answers those written, and those refused by rows.

    Where a constraint refuses, the starts are halved until only the one that breaks it stays out.
    """
    if checked.facts is None:
        return [], []
    return _write_or_halve(checked.accepted, checked.facts, context)


def _write_or_halve(
    starts: Sequence[Start], facts: LockedFacts, context: ApplyContext
) -> tuple[list[Start], list[Refusal]]:
    if not starts:
        return [], []
    try:
        with transaction.atomic():
            return _write(starts, facts, context)
    except IntegrityError as error:
        if len(starts) == 1:
            # The checks and the constraint disagree: a fault of the planner that the database has caught.
            log.error("start_refused_by_constraint", job=starts[0].job_id, error=str(error))
            return [], [Refusal(starts[0].job_id, REFUSED_BY_CONSTRAINT, _first_line(error))]
    middle = len(starts) // 2
    first, first_refused = _write_or_halve(starts[:middle], facts, context)
    second, second_refused = _write_or_halve(starts[middle:], facts, context)
    return first + second, first_refused + second_refused


def _write(
    starts: Sequence[Start], facts: LockedFacts, context: ApplyContext
) -> tuple[list[Start], list[Refusal]]:
    at = context.at
    scheduled = schedule_jobs(starts, backend=context.backend, cycle_id=context.cycle_id, at=at)
    by_number = {row.number: row for row in scheduled}
    refused = [
        Refusal(start.job_id, JOB_CHANGED, f"Job {start.job_id} is no longer queued as planned.")
        for start in starts
        if start.job_id not in by_number
    ]
    starts = [start for start in starts if start.job_id in by_number]
    if not starts:
        return [], refused
    attempts = {row.number: row.attempt_id for row in scheduled}
    nodes = {start.job_id: [facts.node_names[node] for node in start.node_ids] for start in starts}
    holds = ledger.holds(
        starts, scheduled,
        known=facts.books, seconds=facts.hold_seconds, model_of=facts.gpu_models, at=at,
    )  # fmt: skip
    counters = (
        raise_node_counters(starts),
        raise_device_counters(starts),
        raise_quota_counters(starts, by_number, facts.lines, facts.gpu_models),
    )
    ask_together(
        insert_tasks(starts, attempts, at=at),
        *(raised for raised in counters if _NO_ROWS not in raised[1]),
        *ledger.write(holds, facts.books, at=at),
        insert_events(scheduled, nodes=nodes, cycle_id=context.cycle_id, at=at),
        *provider_allocations.statements(
            starts, attempts, providers=context.providers, asked=context.quota_starts, at=at
        ),
    )
    node_topics = {outbox.node_topic(node) for start in starts for node in start.node_ids}
    outbox.announce_jobs(scheduled, *node_topics, outbox.CLUSTER_TOPIC)
    return starts, refused


def _first_line(error: IntegrityError) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]


# ------------------------------------------------------------------ statements


class ScheduledJob(NamedTuple):
    """A job that went from queued to scheduled."""

    number: int
    epoch: int
    user_id: int
    project_id: int
    attempt_id: int
    job_type: str


def schedule_jobs(
    starts: Sequence[Start], *, backend: str, cycle_id: int | None, at: datetime
) -> list[ScheduledJob]:
    """QUEUED to SCHEDULED by compare-and-set, each with its new attempt.

    The attempt of a job without a time limit keeps how long it is expected to run, as of now.
    A job that is no longer as planned is not in the answer.
    """
    rows = ask(
        """
        WITH moved AS (
            UPDATE scheduler_job AS job SET state = %s, generation = job.generation + 1,
                epoch = job.epoch + 1, scheduled_at = %s, reason_code = '', reason_category = '',
                reason_text = '', reason_details = '{}', reason_at = NULL, expected_start_at = NULL
            FROM unnest(%s::bigint[], %s::int[]) AS planned(number, generation)
                JOIN scheduler_jobrequest request ON request.number = planned.number
            WHERE job.number = planned.number AND job.generation = planned.generation AND job.state = ANY(%s)
            RETURNING job.number, job.epoch, job.user_id, job.project_id, request.job_type,
                CASE WHEN request.time_limit_seconds IS NULL THEN request.name END AS unlimited, job.queue_id
        ), attempt AS (
            INSERT INTO scheduler_attempt (job_id, epoch, backend, state, stop_reason, backend_ref, cycle_id,
                scheduled_at, end_text, predicted_seconds, predicted_from_runs)
            SELECT number, epoch, %s, %s, '', '', %s, %s, '',
                CASE WHEN unlimited IS NOT NULL THEN coalesce(prediction.planned_seconds, %s) END,
                CASE WHEN unlimited IS NOT NULL THEN coalesce(prediction.runs, 0) END
            FROM moved LEFT JOIN scheduler_runtimeprediction prediction ON prediction.user_id = moved.user_id
                AND prediction.name = moved.unlimited AND prediction.cluster_id = (
                    SELECT cluster_id FROM scheduler_queue WHERE id = moved.queue_id)
            RETURNING job_id, id
        )
        SELECT number, epoch, user_id, project_id, job_type, NULL::bigint FROM moved
        UNION ALL SELECT job_id, 0, 0, 0, '', id FROM attempt
        """,
        [
            JobState.SCHEDULED.value, at, int_array(s.job_id for s in starts),
            int_array(s.generation for s in starts), list(PLANNED_STATES),
            backend, AttemptState.ASSIGNED.value, cycle_id, at, settings.UNLIMITED_JOB_SECONDS,
        ],
    )  # fmt: skip
    # Put together here: the database would compare each row with every other.
    attempts = {row[0]: row[5] for row in rows if row[5] is not None}
    return [
        ScheduledJob(number, epoch, user_id, project_id, attempts[number], job_type)
        for number, epoch, user_id, project_id, job_type, attempt_id in rows
        if attempt_id is None
    ]


#: A task: the attempt, what each of its tasks holds, the countable things of it as JSON, and the place.
_TASKS: Final[ParameterRows[tuple[int, Resources, str, Placement]]] = ParameterRows(
    "a",
    {
        "attempt_id": ("bigint", lambda row: row[0]),
        "cpu_millis": ("bigint", lambda row: row[1].cpu_millis),
        "memory_mib": ("bigint", lambda row: row[1].memory_mib),
        "storage_mib": ("bigint", lambda row: row[1].storage_mib),
        "extras": ("text", lambda row: row[2]),
        "rank": ("int", lambda row: row[3].rank),
        "node_id": ("bigint", lambda row: row[3].node_id),
        "gpu_millis": ("bigint", lambda row: row[3].gpu_millis * len(row[3].device_ids)),
        "device_ids": ("text", lambda row: int_array(row[3].device_ids)),
        "numa": ("int", lambda row: row[3].numa),
    },
)
_INSERT_TASKS: Final = f"""
INSERT INTO scheduler_task (id, attempt_id, rank, node_id, state, end_text, cpu_millis, memory_mib, storage_mib,
    gpu_millis, device_ids, numa_domain, extras, held_at)
SELECT {NEXT_TASK.replace("%", "%%")}, attempt_id, rank, node_id, '{TaskState.ASSIGNED.value}', '', cpu_millis,
    memory_mib, storage_mib, gpu_millis, device_ids::bigint[], nullif(numa, -1), extras::jsonb, %s
FROM {_TASKS.source}
"""


def insert_tasks(starts: Sequence[Start], attempts: Mapping[int, int], *, at: datetime) -> Statement:
    """What each rank runs on and holds there; amounts are those of the job, the same for all its ranks."""
    extras = {things: json.dumps(dict(things)) for things in {start.per_task.extras for start in starts}}
    placed = [
        (attempts[start.job_id], start.per_task, extras[start.per_task.extras], p)
        for start in starts
        for p in start.placements
    ]
    return _INSERT_TASKS, [at, *_TASKS.parameters(placed)]


def raise_device_counters(starts: Iterable[Start]) -> Statement:
    used: Counter[int] = Counter()
    for start in starts:
        for placement in start.placements:
            for device_id in placement.device_ids:
                used[device_id] += placement.gpu_millis
    return (
        """
        UPDATE scheduler_device AS device SET used_millis = device.used_millis + more.millis
        FROM unnest(%s::bigint[], %s::int[]) AS more(id, millis) WHERE device.id = more.id
        """,
        [int_array(used), int_array(used.values())],
    )


def raise_node_counters(starts: Iterable[Start]) -> Statement:
    used: dict[int, list[int]] = {}
    for start in starts:
        amounts = start.per_task
        for placement in start.placements:
            node = used.setdefault(placement.node_id, [0, 0, 0, 0])
            node[0] += amounts.cpu_millis
            node[1] += amounts.memory_mib
            node[2] += amounts.storage_mib
            node[3] += placement.gpu_millis * len(placement.device_ids)
    return (
        """
        UPDATE scheduler_node AS node SET used_cpu_millis = node.used_cpu_millis + more.cpu,
            used_memory_mib = node.used_memory_mib + more.memory,
            used_storage_mib = node.used_storage_mib + more.storage,
            used_gpu_millis = node.used_gpu_millis + more.gpu
        FROM unnest(%s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[])
            AS more(id, cpu, memory, storage, gpu)
        WHERE node.id = more.id
        """,
        [int_array(used), *(int_array(column) for column in zip(*used.values(), strict=True))],
    )


def raise_quota_counters(
    starts: Iterable[Start], scheduled: Mapping[int, ScheduledJob], lines: Lines, models: Mapping[int, str]
) -> Statement:
    """Every line on the way up counts what a job uses, whether it limits it or only reports it.

    `models` are the names of the devices that were given.
    """
    used: Counter[int] = Counter()
    for start in starts:
        job = scheduled[start.job_id]
        held: Counter[str] = Counter()
        if lines.has_models:
            for placement in start.placements:
                held += held_by_model(placement.device_ids, placement.gpu_millis, models)
        rows = lines.of_job(job.project_id, job.user_id, job.job_type)
        for line, amount in charges_of(rows, start.per_task, len(start.placements), held):
            used[line] += amount
    return (
        """
        UPDATE quotas_quota AS quota SET used = quota.used + more.amount
        FROM unnest(%s::bigint[], %s::bigint[]) AS more(id, amount) WHERE quota.id = more.id
        """,
        [int_array(used), int_array(used.values())],
    )


def insert_events(
    scheduled: Sequence[ScheduledJob],
    *,
    nodes: Mapping[int, Sequence[str]],
    cycle_id: int | None,
    at: datetime,
) -> Statement:
    """`job.scheduled`, with the names of the nodes each job was placed on: the text follows from these."""
    events = [
        {
            "number": job.number,
            "epoch": job.epoch,
            "because": "",
            "details": {"nodes": nodes[job.number], "cycle": cycle_id},
        }
        for job in scheduled
    ]
    return insert_events_of_kind(f"job.{JobState.SCHEDULED.value}", events, at=at)
