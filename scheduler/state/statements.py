"""The bulk statements that write a plan: one statement a table, however many starts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from django.db import connection

from scheduler.core.lifecycle import AttemptState, JobState, TaskState
from scheduler.core.plan import Start

#: Columns of quota lines and what one start adds to each: amounts of the whole job, and the job itself.
RUNNING_JOBS: Final = "running_jobs"


class Moved(NamedTuple):
    """A job that went from queued to scheduled."""

    number: int
    epoch: int
    user_id: int
    project_id: int


def schedule_jobs(starts: Sequence[Start], *, at: datetime) -> list[Moved]:
    """QUEUED to SCHEDULED by compare-and-set; a job that is no longer as planned is not in the answer."""
    rows = _run(
        """
        UPDATE scheduler_job AS job SET state = %s, generation = job.generation + 1, epoch = job.epoch + 1,
            scheduled_at = %s, reason_code = '', reason_category = '', reason_text = '',
            reason_details = '{}', reason_at = NULL, expected_start_at = NULL
        FROM unnest(%s::bigint[], %s::int[]) AS planned(number, generation)
        WHERE job.number = planned.number AND job.generation = planned.generation AND job.state = %s
        RETURNING job.number, job.epoch, job.user_id, job.project_id
        """,
        [
            JobState.SCHEDULED.value, at, [s.job_id for s in starts], [s.generation for s in starts],
            JobState.QUEUED.value,
        ],
    )  # fmt: skip
    return [Moved(*row) for row in rows]


def insert_attempts(
    moved: Sequence[Moved], *, backend: str, cycle_id: int | None, at: datetime
) -> dict[int, int]:
    """One attempt for each job; answers job number -> attempt id."""
    rows = _run(
        """
        INSERT INTO scheduler_attempt
            (job_id, epoch, backend, state, stop_reason, backend_ref, cycle_id, scheduled_at, end_text)
        SELECT number, epoch, %s, %s, '', '', %s, %s, ''
        FROM unnest(%s::bigint[], %s::int[]) AS j(number, epoch)
        RETURNING job_id, id
        """,
        [
            backend,
            AttemptState.ASSIGNED.value,
            cycle_id,
            at,
            [m.number for m in moved],
            [m.epoch for m in moved],
        ],
    )
    return dict(rows)


def insert_tasks_and_allocations(
    starts: Sequence[Start], attempts: Mapping[int, int], *, at: datetime
) -> None:
    """What each rank runs on, and what it holds there."""
    placed = [(attempts[start.job_id], start.per_task, p) for start in starts for p in start.placements]
    attempt_ids = [attempt for attempt, _, _ in placed]
    ranks = [p.rank for _, _, p in placed]
    node_ids = [p.node_id for _, _, p in placed]
    _run(
        """
        INSERT INTO scheduler_task (attempt_id, rank, node_id, state, end_text)
        SELECT attempt_id, rank, node_id, %s, ''
        FROM unnest(%s::bigint[], %s::int[], %s::bigint[]) AS t(attempt_id, rank, node_id)
        """,
        [TaskState.ASSIGNED.value, attempt_ids, ranks, node_ids],
    )
    _run(
        """
        INSERT INTO scheduler_allocation (attempt_id, rank, node_id, cpu_millis, memory_mib, storage_mib,
            gpu_millis, device_ids, numa_domain, extras, held_at)
        SELECT attempt_id, rank, node_id, cpu_millis, memory_mib, storage_mib, gpu_millis,
            device_ids::bigint[], nullif(numa, -1), extras::jsonb, %s
        FROM unnest(%s::bigint[], %s::int[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[],
            %s::bigint[], %s::text[], %s::int[], %s::text[]) AS a(attempt_id, rank, node_id, cpu_millis,
            memory_mib, storage_mib, gpu_millis, device_ids, numa, extras)
        """,
        [
            at, attempt_ids, ranks, node_ids,
            [amounts.cpu_millis for _, amounts, _ in placed],
            [amounts.memory_mib for _, amounts, _ in placed],
            [amounts.storage_mib for _, amounts, _ in placed],
            [p.gpu_millis * len(p.device_ids) for _, _, p in placed],
            ["{" + ",".join(map(str, p.device_ids)) + "}" for _, _, p in placed],
            [p.numa for _, _, p in placed],
            [json.dumps(dict(amounts.extras)) for _, amounts, _ in placed],
        ],
    )  # fmt: skip


def raise_device_counters(starts: Iterable[Start]) -> None:
    used: Counter[int] = Counter()
    for start in starts:
        for placement in start.placements:
            for device_id in placement.device_ids:
                used[device_id] += placement.gpu_millis
    if used:
        _run(
            """
            UPDATE scheduler_device AS device SET used_millis = device.used_millis + more.millis
            FROM unnest(%s::bigint[], %s::int[]) AS more(id, millis) WHERE device.id = more.id
            """,
            [list(used), list(used.values())],
        )


def raise_node_counters(starts: Iterable[Start]) -> None:
    used: dict[int, list[int]] = {}
    for start in starts:
        amounts = start.per_task
        for placement in start.placements:
            node = used.setdefault(placement.node_id, [0, 0, 0, 0])
            node[0] += amounts.cpu_millis
            node[1] += amounts.memory_mib
            node[2] += amounts.storage_mib
            node[3] += placement.gpu_millis * len(placement.device_ids)
    _run(
        """
        UPDATE scheduler_node AS node SET used_cpu_millis = node.used_cpu_millis + more.cpu,
            used_memory_mib = node.used_memory_mib + more.memory,
            used_storage_mib = node.used_storage_mib + more.storage,
            used_gpu_millis = node.used_gpu_millis + more.gpu
        FROM unnest(%s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[])
            AS more(id, cpu, memory, storage, gpu)
        WHERE node.id = more.id
        """,
        [list(used), *(list(column) for column in zip(*used.values(), strict=True))],
    )


def raise_quota_counters(starts: Iterable[Start]) -> None:
    """Every line counts what its project uses, whether it limits it or only reports it."""
    used: Counter[tuple[int, str]] = Counter()
    for start in starts:
        for resource, amount in charged(start):
            used[start.project_id, resource] += amount
    _run(
        """
        UPDATE quotas_quota AS quota SET used = quota.used + more.amount
        FROM unnest(%s::bigint[], %s::text[], %s::bigint[]) AS more(project_id, resource, amount)
        WHERE quota.project_id = more.project_id AND quota.resource = more.resource
        """,
        [[project for project, _ in used], [resource for _, resource in used], list(used.values())],
    )


def charged(start: Start) -> list[tuple[str, int]]:
    """What a start adds to the quota lines of its project."""
    total, tasks = start.total, len(start.placements)
    return [
        ("cpu_millis", total.cpu_millis),
        ("memory_mib", total.memory_mib),
        ("storage_mib", total.storage_mib),
        ("gpu_millis", start.per_task.gpu_millis_charged * tasks),
        (RUNNING_JOBS, 1),
    ]


def insert_events(
    moved: Sequence[Moved],
    *,
    texts: Mapping[int, str],
    details: Mapping[int, Mapping[str, Any]],
    at: datetime,
) -> None:
    _run(
        """
        INSERT INTO scheduler_jobevent (job_id, at, kind, because, epoch, details)
        SELECT number, %s, %s, because, epoch, details::jsonb
        FROM unnest(%s::bigint[], %s::int[], %s::text[], %s::text[]) AS e(number, epoch, because, details)
        """,
        [
            at, f"job.{JobState.SCHEDULED.value}", [m.number for m in moved], [m.epoch for m in moved],
            [texts[m.number][:300] for m in moved], [json.dumps(details[m.number]) for m in moved],
        ],
    )  # fmt: skip


class Told(NamedTuple):
    """A reason, as the columns of a job say it."""

    code: str
    category: str
    text: str
    details: str  # JSON


def tell_reasons(
    jobs: Sequence[int], which: Sequence[int], reasons: Sequence[Told], *, at: datetime
) -> list[tuple[int, int, int]]:
    """Write the reason `reasons[which[i]]` to `jobs[i]`; answers number, user and project of those told.

    A job that somebody else is changing at this moment is left to the next cycle: a reason is never worth
    waiting for.
    """
    return [
        (row[0], row[1], row[2])
        for row in _run(
            """
            WITH waiting AS (
                SELECT number FROM scheduler_job WHERE number = ANY(%s) AND state = %s
                ORDER BY number FOR NO KEY UPDATE SKIP LOCKED
            )
            UPDATE scheduler_job AS job SET reason_code = reason.code, reason_category = reason.category,
                reason_text = reason.text, reason_details = reason.details::jsonb, reason_at = %s
            FROM waiting
                JOIN unnest(%s::bigint[], %s::int[]) AS told(number, which) ON told.number = waiting.number
                JOIN unnest(%s::text[], %s::text[], %s::text[], %s::text[]) WITH ORDINALITY
                    AS reason(code, category, text, details, place) ON reason.place = told.which + 1
            WHERE job.number = waiting.number
            RETURNING job.number, job.user_id, job.project_id
            """,
            [
                list(jobs), JobState.QUEUED.value, at, list(jobs), list(which),
                [r.code for r in reasons], [r.category for r in reasons], [r.text for r in reasons],
                [r.details for r in reasons],
            ],
        )
    ]  # fmt: skip


def _run(sql: str, parameters: list[Any]) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(sql, parameters)
        return cursor.fetchall() if cursor.description else []
