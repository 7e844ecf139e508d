"""Gang reservations to rows: nodes that a gang reserves nodes, and those it releases when its time is up."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from infra.times_in_text import written
from scheduler import outbox
from scheduler.core.lifecycle import JobState
from scheduler.core.plan import GiveBack, Plan, Reserve
from scheduler.state.apply.apply_context import ApplyContext
from scheduler.state.apply.apply_sql import PLANNED_STATES
from scheduler.state.apply.refusals import JOB_CHANGED, Refusal
from scheduler.state.db.sql import int_array, run


class GangRow(NamedTuple):
    """A gang whose reservation was written."""

    number: int
    user_id: int
    project_id: int
    state_before: str


def write(plan: Plan, context: ApplyContext) -> list[Refusal]:
    """Reserve nodes for gangs, and release those of gangs whose time is up; answers the gangs left alone.

    One statement checks and writes: a gang that has changed since it was planned, or that another transaction has
    locked, is left to the next cycle. The plan's transaction holds victims by now and must wait for nobody.
    """
    if not plan.reserves and not plan.given_back:
        return []
    reserved = _reserve(plan.reserves) if plan.reserves else []
    released = _release(plan.given_back) if plan.given_back else []
    names = dict(zip(context.snapshot.nodes.id.tolist(), context.snapshot.nodes.name, strict=True))
    by_number = {one.job_id: one for one in plan.reserves}
    _insert_events(
        [_reserved_event(row, by_number[row.number], names, context.cycle_id) for row in reserved]
        + [_released_event(row, context.cycle_id) for row in released],
        at=context.at,
    )
    outbox.announce_jobs([*reserved, *released], outbox.CLUSTER_TOPIC)
    written = {row.number for row in (*reserved, *released)}
    planned = [one.job_id for one in plan.reserves] + [one.job_id for one in plan.given_back]
    return [
        Refusal(number, JOB_CHANGED, f"Gang {number} has changed or is being changed.")
        for number in planned
        if number not in written
    ]


def _reserve(reserves: Sequence[Reserve]) -> list[GangRow]:
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
            list(PLANNED_STATES),
        ],
    )  # fmt: skip
    return [GangRow(*row) for row in rows]


def _release(releases: Sequence[GiveBack]) -> list[GangRow]:
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
            JobState.QUEUED.value, int_array(g.job_id for g in releases),
            int_array(g.generation for g in releases), int_array(g.retry_ms for g in releases),
            int_array(sorted(g.job_id for g in releases)), JobState.RESERVED.value,
        ],
    )  # fmt: skip
    return [GangRow(number, user, project, JobState.RESERVED) for number, user, project in rows]


# ------------------------------------------------------------------ events


class _Event(NamedTuple):
    number: int
    kind: str
    because: str
    details: str  # JSON


def _reserved_event(row: GangRow, reserve: Reserve, names: Mapping[int, str], cycle_id: int | None) -> _Event:
    nodes = [names.get(node, str(node)) for node in reserve.node_ids]
    until = datetime.fromtimestamp(reserve.until_ms / 1000, tz=UTC)
    begins = "reserves nodes" if row.state_before == JobState.QUEUED else "reserves other nodes:"
    because = f"{begins} {', '.join(nodes)}, until {written(until)} at the latest"
    details = json.dumps({"nodes": nodes, "until": until.isoformat(), "cycle": cycle_id})
    return _Event(row.number, "job.reserved", because[:300], details)


def _released_event(row: GangRow, cycle_id: int | None) -> _Event:
    because = "node assembly timed out: not all nodes became free"
    return _Event(row.number, "job.queued", because, json.dumps({"cycle": cycle_id}))


def _insert_events(events: Iterable[_Event], *, at: datetime) -> None:
    events = list(events)
    if not events:
        return
    numbers, kinds, texts, details = zip(*events, strict=True)
    run(
        "INSERT INTO scheduler_jobevent (job_id, at, kind, because, epoch, details)"
        " SELECT number, %s, kind, because, NULL, details::jsonb"
        " FROM unnest(%s::bigint[], %s::text[], %s::text[], %s::text[]) AS e(number, kind, because, details)",
        [at, int_array(numbers), list(kinds), list(texts), list(details)],
    )
