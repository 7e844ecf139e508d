"""What a cluster's people really asked for lately, as a workload to play under other policies."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final, NamedTuple

import numpy as np

from scheduler.core.columns import Bools, Ints
from scheduler.core.snapshot.request_classes import ClassTable
from scheduler.core.snapshot.snapshot import (
    DeviceColumns,
    NodeColumns,
    PendingColumns,
    QueueColumns,
    QuotaColumns,
    RunningColumns,
    Snapshot,
)
from scheduler.simulator.cluster_workload import DEFAULT_RUN_MS, ClusterWorkload, amounts_of, capacity_of
from scheduler.state.db.fragments import ANY_OF, ms
from scheduler.state.db.query import Batch, ColumnQuery, Table, fetch
from scheduler.state.db.sql import int_array
from scheduler.state.load import node_rows, queue_rows
from scheduler.state.load.cluster_rows import CLUSTER, ClusterRow, the_cluster
from scheduler.state.load.job_rows import (
    CLOSED,
    PAST,
    ClosedRow,
    OwnColumns,
    moment_of,
    named,
    own_columns,
    pending_columns,
)
from scheduler.state.load.project_rows import (
    LOST,
    PROJECTS,
    ProjectRow,
    organizations_of,
    pairs_of,
    project_columns,
)
from scheduler.state.load.quota_rows import BOUNDED, Lines, ask_lines
from scheduler.state.load.snapshots import one_picture


@dataclass(frozen=True, slots=True)
class Past:
    """A span of time of a cluster: its workload, and what of it is not known for certain."""

    workload: ClusterWorkload
    #: Jobs that run on or wait still: how long they will run is taken from their limit.
    unfinished: int


def load_past(*, cluster_id: int, since: datetime, until: datetime) -> Past:
    """Every job that waited or ran between two moments, on the nodes, queues and limits of today, all idle at first.

    A job comes when it was submitted; one that waited for others, when they had ended. What waited or ran as
    the span began comes first, and runs for what was left of it. Each runs as long as its last attempt did, without
    the time it was suspended; one whose size is open does as much work as its tasks did.
    The nodes are taken as they are now, so a cordoned one takes nothing. Raises LookupError for an unknown
    cluster, or where nothing ran.
    """
    begin_ms = int(since.timestamp() * 1000)
    with one_picture():
        tables = _load_cluster(cluster_id, since, until)
        classes = ClassTable()
        own = own_columns(tables.jobs, classes)
        projects, lines, closed = _load_owners(own)
        pending = pending_columns(own, moment_of(begin_ms, awaited=(), closed=closed))
        pending, _ = named(pending, RunningColumns(), classes, ())
        runs = runs_of(fetch(PAST_RUNS, [int_array(pending.id.tolist())]))
    run_ms = _run_ms(pending, runs)
    ran_before = np.where(runs.started_ms >= 0, np.clip(begin_ms - runs.started_ms, 0, None), 0)
    pending = _as_submitted(pending, np.maximum(runs.came_ms, begin_ms))
    quotas = lines.columns()
    snapshot = Snapshot.build(
        now_ms=begin_ms,
        nodes=_idle_nodes(node_rows.node_columns(tables.nodes)),
        devices=_idle_devices(node_rows.device_columns(tables.devices)),
        classes=classes.classes,
        pending=pending,
        queues=_open_queues(
            queue_rows.queue_columns(tables.queues, cluster_paused=tables.cluster.paused_text)
        ),
        projects=project_columns(projects, lines, quotas, pairs_of(pending)),
        quotas=_unused_quotas(quotas),
        pools=node_rows.pool_columns(tables.nodes, node_rows.ALLOCATIONS.read([])),
    )
    workload = ClusterWorkload(
        f"{tables.cluster.name} since {since:%Y-%m-%d %H:%M} UTC",
        snapshot,
        np.maximum(run_ms - ran_before, 1),
        amounts_of(snapshot),
        capacity_of(snapshot),
        started_ms=np.where(runs.started_ms >= 0, np.maximum(runs.started_ms, begin_ms), -1),
        ended_ms=runs.ended_ms,
    )
    return Past(workload, int((~runs.ended).sum()))


# ------------------------------------------------------------------ read


@dataclass(frozen=True, slots=True)
class _ClusterTables:
    """The cluster of today, and the jobs of the span."""

    cluster: ClusterRow
    jobs: Table
    nodes: Table
    devices: Table
    queues: Table


def _load_cluster(cluster_id: int, since: datetime, until: datetime) -> _ClusterTables:
    own = [cluster_id]
    batch = Batch()
    cluster = batch.add(CLUSTER, own)
    jobs = batch.add(PAST, [cluster_id, until, since])
    nodes = batch.add(node_rows.NODES, own, which=node_rows.NODES_OF_CLUSTER, lock="")
    devices = batch.add(node_rows.DEVICES, own, which=node_rows.DEVICES_OF_CLUSTER, lock="")
    queues = batch.add(queue_rows.QUEUES, own, which=queue_rows.QUEUES_OF_CLUSTER, counted="false", lock="")
    batch.send()
    tables = _ClusterTables(
        the_cluster(cluster.read(), cluster_id), jobs.read(), nodes.read(), devices.read(), queues.read()
    )
    if not tables.jobs["id"]:
        raise LookupError(
            f"no job waited or ran between {since:%Y-%m-%d %H:%M} and {until:%Y-%m-%d %H:%M} UTC"
        )
    return tables


def _load_owners(own: OwnColumns) -> tuple[list[ProjectRow], Lines, list[ClosedRow]]:
    project_ids, people = np.unique(own["project_id"]).tolist(), np.unique(own["user_id"]).tolist()
    batch = Batch()
    projects = batch.add(PROJECTS, [int_array(project_ids)], lost=LOST)
    lines = ask_lines(batch, project_ids, people, bounded=BOUNDED)
    closed = batch.add(CLOSED, [int_array(project_ids), int_array(people)], users=ANY_OF)
    batch.send()
    found = projects.read()
    return found, lines.read(organizations_of(found)), closed.read()


# ------------------------------------------------------------------ how each job went

_ENDED: Final = "coalesce(last.ended_at, statement_timestamp())"
#: When a job could start at the earliest and did, how long its last attempt ran (to now, where it runs on), whether
#: that is all, for how long it was suspended in that, and for how long its tasks held something, added up, where
#: its size is open.
PAST_RUNS: Final = ColumnQuery(
    {
        "came_ms": ms(
            "CASE WHEN EXISTS (SELECT 1 FROM scheduler_jobdependency edge WHERE edge.job_id = job.number)"
            " THEN coalesce(job.eligible_at, request.created_at) ELSE request.created_at END"
        ),
        "started_ms": f"coalesce({ms('last.started_at')}, -1)",
        "ran_ms": f"coalesce({ms(_ENDED)} - {ms('last.started_at')}, 0)",
        "ended": "last.ended_at IS NOT NULL",
        "suspended_ms": f"""coalesce(last.suspended_ms
        + coalesce({ms(_ENDED)} - {ms("last.suspended_at")}, 0), 0)""",
        "held_ms": f"""CASE WHEN request.min_tasks IS NULL THEN 0 ELSE coalesce((SELECT
        sum({ms("coalesce(held.released_at, statement_timestamp())")} - {ms("held.held_at")})
        FROM scheduler_allocation held WHERE held.attempt_id = last.id), 0) END::bigint""",
    },
    f"""SELECT {{columns}}
FROM scheduler_job job JOIN scheduler_jobrequest request ON request.number = job.number
    LEFT JOIN LATERAL (
    SELECT attempt.id, attempt.started_at, attempt.ended_at, attempt.suspended_at, attempt.suspended_ms
    FROM scheduler_attempt attempt
    WHERE attempt.job_id = job.number AND attempt.started_at IS NOT NULL ORDER BY attempt.epoch DESC LIMIT 1
) last ON true
WHERE job.number = {ANY_OF} ORDER BY job.number""",
)


class Runs(NamedTuple):
    """How each job went, in the order of the pending columns; -1 = it did not start, or has not ended."""

    came_ms: Ints
    started_ms: Ints
    ended_ms: Ints
    ran_ms: Ints  # without the time it was suspended
    held_ms: Ints  # of all its tasks, added up
    ended: Bools


def runs_of(found: Table) -> Runs:
    """From what `PAST_RUNS` found."""
    ended = np.array(found["ended"], dtype=np.bool_)
    names = ("came_ms", "started_ms", "ran_ms", "suspended_ms", "held_ms")
    of: dict[str, Ints] = {name: np.array(found[name], dtype=np.int64) for name in names}
    return Runs(
        came_ms=of["came_ms"],
        started_ms=of["started_ms"],
        ended_ms=np.where(ended & (of["started_ms"] >= 0), of["started_ms"] + of["ran_ms"], -1),
        ran_ms=np.maximum(of["ran_ms"] - of["suspended_ms"], 0),
        held_ms=of["held_ms"],
        ended=ended,
    )


def _run_ms(pending: PendingColumns, runs: Runs) -> Ints:
    """How long each job runs when it is played: as it did, at least as long as it has, else its limit."""
    limit_ms = pending.time_limit_seconds * 1000
    expected = np.where(limit_ms > 0, limit_ms, DEFAULT_RUN_MS)
    run_ms = np.where(runs.ended, runs.ran_ms, np.maximum(runs.ran_ms, expected)).astype(np.int64)
    # Work is tasks times seconds: with the fewest that are enough it would have taken longer than it did.
    fewest = np.maximum(pending.tasks, 1)
    of_open_size = np.where(
        runs.ended & (runs.held_ms > 0), runs.held_ms // fewest, run_ms * pending.most_tasks // fewest
    )
    return np.where(pending.most_tasks > 0, of_open_size, run_ms)


# ------------------------------------------------------------------ as it was before anything ran


def _as_submitted(pending: PendingColumns, submitted_ms: Ints) -> PendingColumns:
    nothing = np.zeros(len(pending), dtype=np.int64)
    return replace(
        pending,
        submitted_ms=submitted_ms,
        eligible_ms=nothing, gate=nothing, promised_ms=nothing, assembling_until_ms=nothing,
        assemblies_failed=nothing, awaited=np.zeros(len(pending), dtype=np.bool_),
    )  # fmt: skip


def _idle_nodes(nodes: NodeColumns) -> NodeColumns:
    free = np.zeros(len(nodes), dtype=np.int64)
    return replace(nodes, used_cpu_millis=free, used_memory_mib=free, used_storage_mib=free)


def _idle_devices(devices: DeviceColumns) -> DeviceColumns:
    return replace(devices, used_millis=np.zeros(len(devices), dtype=np.int64))


def _open_queues(queues: QueueColumns) -> QueueColumns:
    return replace(queues, paused=np.zeros(len(queues), dtype=np.bool_))


def _unused_quotas(quotas: QuotaColumns) -> QuotaColumns:
    return replace(quotas, used=np.zeros(len(quotas), dtype=np.int64))
