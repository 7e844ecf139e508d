"""The statements that write a plan: one a table, however many starts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from infra.db.prepared import ask
from scheduler.core.lifecycle import LIVE_ATTEMPT, AttemptState, JobState, StopReason, TaskState
from scheduler.core.plan import GiveBack, Preempt, Reserve, Start
from scheduler.state.db.sql import Statement, int_array, run, run_together
from scheduler.state.load.quota_rows import Lines, charges_of, held_by_model

#: What the planner looks at: jobs in line, and gangs that gather nodes.
IN_LINE: Final = (JobState.QUEUED.value, JobState.RESERVED.value)


class Moved(NamedTuple):
    """A job that went from queued to scheduled."""

    number: int
    epoch: int
    user_id: int
    project_id: int
    attempt_id: int
    job_type: str


def schedule_jobs(
    starts: Sequence[Start], *, backend: str, cycle_id: int | None, at: datetime
) -> list[Moved]:
    """QUEUED to SCHEDULED by compare-and-set, each with its new attempt.

    A job that is no longer as planned is not in the answer.
    """
    rows = ask(
        """
        WITH moved AS (
            UPDATE scheduler_job AS job SET state = %s, generation = job.generation + 1,
                epoch = job.epoch + 1, scheduled_at = %s, reason_code = '', reason_category = '',
                reason_text = '', reason_details = '{}', reason_at = NULL, expected_start_at = NULL
            FROM unnest(%s::bigint[], %s::int[]) AS planned(number, generation)
            WHERE job.number = planned.number AND job.generation = planned.generation AND job.state = ANY(%s)
            RETURNING job.number, job.epoch, job.user_id, job.project_id, job.job_type
        ), attempt AS (
            INSERT INTO scheduler_attempt
                (job_id, epoch, backend, state, stop_reason, backend_ref, cycle_id, scheduled_at, end_text)
            SELECT number, epoch, %s, %s, '', '', %s, %s, '' FROM moved
            RETURNING job_id, id
        )
        SELECT number, epoch, user_id, project_id, job_type, NULL::bigint FROM moved
        UNION ALL SELECT job_id, 0, 0, 0, '', id FROM attempt
        """,
        [
            JobState.SCHEDULED.value, at, int_array(s.job_id for s in starts),
            int_array(s.generation for s in starts), list(IN_LINE),
            backend, AttemptState.ASSIGNED.value, cycle_id, at,
        ],
    )  # fmt: skip
    # Put together here: the database would compare each row with every other.
    attempts = {row[0]: row[5] for row in rows if row[5] is not None}
    return [
        Moved(number, epoch, user_id, project_id, attempts[number], job_type)
        for number, epoch, user_id, project_id, job_type, attempt_id in rows
        if attempt_id is None
    ]


def insert_tasks(starts: Sequence[Start], attempts: Mapping[int, int]) -> Statement:
    """What each rank runs on."""
    placed = [(attempts[start.job_id], p) for start in starts for p in start.placements]
    return (
        """
        INSERT INTO scheduler_task (attempt_id, rank, node_id, state, end_text)
        SELECT attempt_id, rank, node_id, %s, ''
        FROM unnest(%s::bigint[], %s::int[], %s::bigint[]) AS t(attempt_id, rank, node_id)
        """,
        [
            TaskState.ASSIGNED.value,
            int_array(attempt for attempt, _ in placed),
            int_array(p.rank for _, p in placed),
            int_array(p.node_id for _, p in placed),
        ],
    )


def insert_allocations(starts: Sequence[Start], attempts: Mapping[int, int], *, at: datetime) -> Statement:
    """What each rank holds there; amounts are those of the job, the same for all its ranks."""
    placed = [(number, p) for number, start in enumerate(starts, start=1) for p in start.placements]
    amounts = [start.per_task for start in starts]
    return (
        """
        INSERT INTO scheduler_allocation (attempt_id, rank, node_id, cpu_millis, memory_mib, storage_mib,
            gpu_millis, device_ids, numa_domain, extras, held_at)
        SELECT start.attempt_id, a.rank, a.node_id, start.cpu_millis, start.memory_mib, start.storage_mib,
            a.gpu_millis, a.device_ids::bigint[], nullif(a.numa, -1), start.extras, %s
        FROM json_to_recordset(%s::json) AS start(number int, attempt_id bigint, cpu_millis bigint,
                memory_mib bigint, storage_mib bigint, extras jsonb)
            JOIN json_to_recordset(%s::json) AS a(number int, rank int, node_id bigint, gpu_millis bigint,
                device_ids text, numa int) ON a.number = start.number
        """,
        [
            at,
            json.dumps(
                [
                    {
                        "number": number, "attempt_id": attempts[start.job_id], "cpu_millis": a.cpu_millis,
                        "memory_mib": a.memory_mib, "storage_mib": a.storage_mib, "extras": dict(a.extras),
                    }
                    for number, (start, a) in enumerate(zip(starts, amounts, strict=True), start=1)
                ]
            ),
            json.dumps(
                [
                    {
                        "number": number, "rank": p.rank, "node_id": p.node_id,
                        "gpu_millis": p.gpu_millis * len(p.device_ids), "numa": p.numa,
                        "device_ids": int_array(p.device_ids),
                    }
                    for number, p in placed
                ]
            ),
        ],
    )  # fmt: skip


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
    starts: Iterable[Start], moved: Mapping[int, Moved], lines: Lines, models: Mapping[int, str]
) -> Statement:
    """Every line on the way up counts what a job uses, whether it limits it or only reports it.

    `models` are the names of the devices that were given.
    """
    used: Counter[int] = Counter()
    for start in starts:
        job = moved[start.job_id]
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
    moved: Sequence[Moved], *, nodes: Mapping[int, Sequence[str]], cycle_id: int | None, at: datetime
) -> Statement:
    """`job.scheduled`, with the names of the nodes each job was placed on."""
    return (
        """
        INSERT INTO scheduler_jobevent (job_id, at, kind, because, epoch, details)
        SELECT number, %s, %s, because, epoch, details
        FROM json_to_recordset(%s::json) AS e(number bigint, epoch int, because text, details jsonb)
        """,
        [
            at,
            f"job.{JobState.SCHEDULED.value}",
            json.dumps(
                [
                    {
                        "number": m.number, "epoch": m.epoch,
                        "because": f"placed on {', '.join(nodes[m.number])}"[:300],
                        "details": {"nodes": nodes[m.number], "cycle": cycle_id},
                    }
                    for m in moved
                ]
            ),
        ],
    )  # fmt: skip


class PreemptionRow(NamedTuple):
    """A job that is stopped, or for which one is."""

    number: int
    state: str
    generation: int
    epoch: int
    user_id: int
    project_id: int
    project: str


def lock_for_preemption(
    numbers: Iterable[int], attempts: Iterable[int]
) -> tuple[dict[int, PreemptionRow], set[int]]:
    """(number -> its row, attempts that live and were not told yet); a job that somebody else is changing
    at this moment is not in the answer: it may be ending by itself.
    """
    rows = run(
        """
        SELECT job.number, job.state, job.generation, job.epoch, job.user_id, job.project_id, project.slug
        FROM scheduler_job job JOIN accounts_project project ON project.id = job.project_id
        WHERE job.number = ANY(%s::bigint[]) ORDER BY job.number FOR NO KEY UPDATE OF job SKIP LOCKED
        """,
        [int_array(sorted(set(numbers)))],
    )
    live = run(
        """
        SELECT id FROM scheduler_attempt
        WHERE id = ANY(%s::bigint[]) AND job_id = ANY(%s::bigint[]) AND state = ANY(%s)
            AND stop_asked_at IS NULL ORDER BY id FOR NO KEY UPDATE
        """,
        [
            int_array(sorted(attempts)),
            int_array(row[0] for row in rows),
            sorted(s.value for s in LIVE_ATTEMPT),
        ],
    )
    return {row[0]: PreemptionRow(*row) for row in rows}, {row[0] for row in live}


def stop_jobs(preempts: Sequence[Preempt], epochs: Mapping[int, int], *, at: datetime) -> None:
    """Running to being preempted, each attempt with for whom and how long it has; the rows are locked."""
    run_together(
        (
            "UPDATE scheduler_job SET state = %s, generation = generation + 1"
            " WHERE number = ANY(%s::bigint[])",
            [JobState.PREEMPTING.value, int_array(p.job_id for p in preempts)],
        ),
        (
            "UPDATE scheduler_attempt a SET stop_reason = t.reason, stop_asked_at = %s,"
            " stopped_for = nullif(t.job, 0),"
            " stopped_for_epoch = CASE WHEN t.job <> 0 THEN t.epoch END, grace_seconds = t.grace"
            " FROM unnest(%s::bigint[], %s::text[], %s::bigint[], %s::int[], %s::int[])"
            " AS t(id, reason, job, epoch, grace) WHERE a.id = t.id",
            [
                at, int_array(p.attempt_id for p in preempts),
                [(StopReason.EVICTED if p.node_id else StopReason.PREEMPTED).value for p in preempts],
                int_array(p.for_job_id for p in preempts),
                int_array(epochs.get(p.for_job_id, 0) for p in preempts),
                int_array(p.grace_seconds for p in preempts),
            ],
        ),
    )  # fmt: skip


class TaintRow(NamedTuple):
    """A taint as a node has it now, with who put it there and why."""

    node: str
    added_by: str
    reason: str


def taints_of(node_ids: Iterable[int]) -> dict[tuple[int, str, str], TaintRow]:
    """(node, key, value) -> the NoExecute taints that these nodes have now."""
    rows = run(
        """
        SELECT node.id, taint->>'key', coalesce(taint->>'value', ''), node.name,
            coalesce(taint->>'added_by', ''), coalesce(taint->>'reason', '')
        FROM scheduler_node node, jsonb_array_elements(node.taints) taint
        WHERE node.id = ANY(%s::bigint[]) AND taint->>'effect' = 'NoExecute'
        """,
        [int_array(node_ids)],
    )
    return {(row[0], row[1], row[2]): TaintRow(*row[3:]) for row in rows}


def tell_stopped(
    preempts: Sequence[Preempt],
    rows: Mapping[int, PreemptionRow],
    *,
    cycle_id: int | None,
    at: datetime,
    taints: Mapping[tuple[int, str, str], TaintRow],
) -> None:
    """The receipt of each victim: for whom, by which right, what it costs, and how long it has."""
    told = []
    for p in preempts:
        details: dict[str, Any] = {
            "lost_seconds": p.lost_seconds,
            "grace_seconds": p.grace_seconds,
            "cycle": cycle_id,
        }
        if p.for_job_id:
            waits = rows[p.for_job_id]
            verb = "suspended" if p.mode == "suspend" else "stopped"
            because = f"{verb} for job {p.for_job_id} of project {waits.project}"
            if p.kind == "reclaim":
                because += f", which reclaims what {p.line} had borrowed"
                details |= {"kind": p.kind, "line": p.line}
            else:
                because += f": its priority is {p.for_priority}, this job's {p.priority}"
            details |= {
                "for_job": p.for_job_id, "for_project": waits.project, "for_priority": p.for_priority,
                "priority": p.priority,
            }  # fmt: skip
        elif p.kind == "converge":
            because = f"stopped because a limit of {p.line} was lowered below the usage"
            details |= {"kind": p.kind, "line": p.line}
        else:
            taint = taints[p.node_id, *p.taint]
            name = "=".join(filter(None, p.taint))
            who = f", put there by {taint.added_by}" if taint.added_by else ""
            why = f" ({taint.reason})" if taint.reason else ""
            because = f"has to leave {taint.node}: it has the taint {name}:NoExecute{who}{why}"
            details |= {"node": taint.node, "taint": name, "by": taint.added_by, "why": taint.reason}
        if p.mode == "suspend":
            because += "; suspended, and resumes on the same nodes when the CPUs are free"
            details["mode"] = p.mode
        else:
            because += f"; it has {p.grace_seconds} s to end and is requeued"
        if p.instead:
            because += f" (not suspended: {p.instead})"
            details["instead"] = p.instead
        told.append(
            {"number": p.job_id, "epoch": rows[p.job_id].epoch, "because": because[:300], "details": details}
        )
    run(
        """
        INSERT INTO scheduler_jobevent (job_id, at, kind, because, epoch, details)
        SELECT number, %s, %s, because, epoch, details
        FROM json_to_recordset(%s::json) AS e(number bigint, epoch int, because text, details jsonb)
        """,
        [at, f"job.{JobState.PREEMPTING.value}", json.dumps(told)],
    )


def nodes_of_attempts(attempts: Iterable[int]) -> list[int]:
    rows = run(
        "SELECT DISTINCT node_id FROM scheduler_allocation"
        " WHERE attempt_id = ANY(%s::bigint[]) AND released_at IS NULL ORDER BY 1",
        [int_array(attempts)],
    )
    return [row[0] for row in rows]


class Told(NamedTuple):
    """A reason, as the columns of a job say it."""

    code: str
    category: str
    text: str
    details: str  # JSON


def expect_starts(due: Mapping[int, int]) -> list[int]:
    """Write when each of these jobs is expected to start (ms; 0 = nobody knows); answers those that still wait."""
    rows = run(
        """
        UPDATE scheduler_job AS job SET expected_start_at = to_timestamp(nullif(due.at_ms, 0) / 1000.0)
        FROM (SELECT job.number, due.at_ms FROM scheduler_job job
                JOIN unnest(%s::bigint[], %s::bigint[]) AS due(number, at_ms) ON due.number = job.number
                WHERE job.state = ANY(%s) ORDER BY job.number FOR NO KEY UPDATE OF job SKIP LOCKED) AS due
        WHERE job.number = due.number RETURNING job.number
        """,
        [int_array(due), int_array(due.values()), list(IN_LINE)],
    )
    return [row[0] for row in rows]


def tell_reasons(
    jobs: Sequence[int], which: Sequence[int], reasons: Sequence[Told], *, at: datetime
) -> list[tuple[int, int, int]]:
    """Write the reason `reasons[which[i]]` to `jobs[i]`; answers number, user and project of those told.

    A job that somebody else is changing at this moment is left to the next cycle: a reason is never worth
    waiting for.
    """
    return [
        (row[0], row[1], row[2])
        for row in run(
            """
            WITH waiting AS (
                SELECT number FROM scheduler_job WHERE number = ANY(%s::bigint[]) AND state = ANY(%s)
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
                int_array(jobs), list(IN_LINE), at, int_array(jobs), int_array(which),
                [r.code for r in reasons], [r.category for r in reasons], [r.text for r in reasons],
                [r.details for r in reasons],
            ],
        )
    ]  # fmt: skip


def reserve_nodes(reserves: Sequence[Reserve]) -> list[tuple[int, int, int, str]]:
    """Keep nodes for gangs by compare-and-set; answers number, user, project and the state before of each."""
    rows = run(
        """
        UPDATE scheduler_job job SET state = %s, generation = job.generation + 1,
            assembly_until_at = to_timestamp(r.until_ms / 1000.0), assembly_node_ids = r.nodes::jsonb
        FROM unnest(%s::bigint[], %s::int[], %s::bigint[], %s::text[]) AS r(number, generation, until_ms, nodes),
            (SELECT number, state FROM scheduler_job WHERE number = ANY(%s::bigint[])
                ORDER BY number FOR NO KEY UPDATE SKIP LOCKED) was
        WHERE job.number = r.number AND was.number = r.number AND job.generation = r.generation
            AND job.state = ANY(%s)
        RETURNING job.number, job.user_id, job.project_id, was.state
        """,
        [
            JobState.RESERVED.value, int_array(r.job_id for r in reserves),
            int_array(r.generation for r in reserves), int_array(r.until_ms for r in reserves),
            [json.dumps(list(r.node_ids)) for r in reserves], int_array(sorted(r.job_id for r in reserves)),
            list(IN_LINE),
        ],
    )  # fmt: skip
    return [(row[0], row[1], row[2], row[3]) for row in rows]


def give_nodes_back(given_back: Sequence[GiveBack]) -> list[tuple[int, int, int]]:
    """End gatherings whose time is up; answers number, user and project of each."""
    rows = run(
        """
        UPDATE scheduler_job job SET state = %s, generation = job.generation + 1, assembly_until_at = NULL,
            assembly_node_ids = '[]', assemblies_failed = least(job.assemblies_failed + 1, 1000),
            eligible_at = to_timestamp(g.retry_ms / 1000.0), expected_start_at = NULL
        FROM unnest(%s::bigint[], %s::int[], %s::bigint[]) AS g(number, generation, retry_ms),
            (SELECT number FROM scheduler_job WHERE number = ANY(%s::bigint[])
                ORDER BY number FOR NO KEY UPDATE SKIP LOCKED) free
        WHERE job.number = g.number AND free.number = g.number AND job.generation = g.generation
            AND job.state = %s
        RETURNING job.number, job.user_id, job.project_id
        """,
        [
            JobState.QUEUED.value, int_array(g.job_id for g in given_back),
            int_array(g.generation for g in given_back), int_array(g.retry_ms for g in given_back),
            int_array(sorted(g.job_id for g in given_back)), JobState.RESERVED.value,
        ],
    )  # fmt: skip
    return [(row[0], row[1], row[2]) for row in rows]


def tell_gatherings(events: Sequence[tuple[int, str, str, str]], *, at: datetime) -> None:
    """(number, kind, because, details in JSON) of gangs that begin or end to gather."""
    if events:
        numbers, kinds, texts, details = zip(*events, strict=True)
        run(
            "INSERT INTO scheduler_jobevent (job_id, at, kind, because, epoch, details)"
            " SELECT number, %s, kind, because, NULL, details::jsonb"
            " FROM unnest(%s::bigint[], %s::text[], %s::text[], %s::text[]) AS e(number, kind, because, details)",
            [at, int_array(numbers), list(kinds), list(texts), list(details)],
        )
