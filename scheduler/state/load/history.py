"""What a cluster's people really asked for lately, as a workload to play under other policies."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

import numpy as np

from scheduler.core.snapshot.request_classes import ClassTable
from scheduler.core.snapshot.snapshot import RunningColumns, Snapshot
from scheduler.simulator.cluster_workload import DEFAULT_RUN_MS, ClusterWorkload, amounts_of, capacity_of
from scheduler.state.db.sql import int_array, run, select_together
from scheduler.state.load import job_rows, load_sql, snapshots
from scheduler.state.load.node_rows import device_columns, node_columns, pool_columns


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
    the time it stood still; one whose size is open does as much work as its tasks did.
    The nodes are taken as they are now, so a cordoned one takes nothing. Raises LookupError for an unknown
    cluster, or where nothing ran.
    """
    with snapshots.one_picture():
        clusters, jobs, nodes, devices, queues = select_together(
            (load_sql.CLUSTER, [cluster_id]),
            (load_sql.PAST, [cluster_id, until, since]),
            (load_sql.NODES.format(which="node.cluster_id = %s", lock=""), [cluster_id]),
            (load_sql.DEVICES.format(which=load_sql.DEVICES_OF_CLUSTER, lock=""), [cluster_id]),
            (load_sql.QUEUES.format(which="queue.cluster_id = %s", lock="", counted="false"), [cluster_id]),
        )
        if not clusters:
            raise LookupError(f"there is no cluster with id {cluster_id}")
        if not jobs:
            raise LookupError(
                f"no job waited or ran between {since:%Y-%m-%d %H:%M} and {until:%Y-%m-%d %H:%M} UTC"
            )
        cluster = snapshots.ClusterRow(*clusters[0])
        table = ClassTable()
        begin_ms = int(since.timestamp() * 1000)
        pending, _ = job_rows.pending_columns(jobs, table, now_ms=begin_ms)
        pending = job_rows.named(pending, RunningColumns(), table, ())[0]
        runs = run(load_sql.PAST_RUNS, [int_array(pending.id.tolist())])
        projects, *rows = select_together(
            (load_sql.PROJECTS, [int_array(np.unique(pending.project_id).tolist())]),
            *snapshots.lines_statements(
                np.unique(pending.project_id).tolist(),
                np.unique(pending.user_id).tolist(),
                bounded=load_sql.BOUNDED,
            ),
        )
        lines = snapshots.lines_of(rows, projects)
        bounds = lines.columns()
    came_ms, started_ms, ran_ms, ended, still_ms, held_ms = (
        np.array(column) for column in list(zip(*runs, strict=True))[1:]
    )
    ended_ms = np.where(ended & (started_ms >= 0), started_ms + ran_ms, -1)
    ran_ms = np.maximum(ran_ms - still_ms, 0)
    limit_ms = pending.time_limit_seconds * 1000
    run_ms = np.where(
        ended, ran_ms, np.maximum(ran_ms, np.where(limit_ms > 0, limit_ms, DEFAULT_RUN_MS))
    ).astype(np.int64)
    # Work is tasks times seconds: with the fewest that are enough it would have taken longer than it did.
    open_size = pending.most_tasks > 0
    longest = run_ms * pending.most_tasks // np.maximum(pending.tasks, 1)
    run_ms = np.where(
        open_size, np.where(ended & (held_ms > 0), held_ms // np.maximum(pending.tasks, 1), longest), run_ms
    )
    ran_before = np.where(started_ms >= 0, np.clip(begin_ms - started_ms, 0, None), 0)
    nothing = np.zeros(len(pending), dtype=np.int64)
    pending = replace(
        pending,
        submitted_ms=np.maximum(came_ms, begin_ms),
        eligible_ms=nothing, gate=nothing, promised_ms=nothing, assembling_until_ms=nothing,
        assemblies_failed=nothing, awaited=np.zeros(len(pending), dtype=np.bool_),
    )  # fmt: skip
    node_rows, device_rows = node_columns(nodes), device_columns(devices)
    free = np.zeros(len(node_rows), dtype=np.int64)
    snapshot = Snapshot.build(
        now_ms=begin_ms,
        nodes=replace(node_rows, used_cpu_millis=free, used_memory_mib=free, used_storage_mib=free),
        devices=replace(device_rows, used_millis=np.zeros(len(device_rows), dtype=np.int64)),
        classes=table.classes,
        pending=pending,
        queues=replace(
            snapshots.queue_columns(queues, cluster), paused=np.zeros(len(queues), dtype=np.bool_)
        ),
        projects=snapshots.project_columns(projects, lines, bounds, snapshots.pairs(pending), []),
        quotas=replace(bounds, used=np.zeros(len(bounds), dtype=np.int64)),
        pools=pool_columns(nodes, []),
    )
    workload = ClusterWorkload(
        f"{cluster.name} since {since:%Y-%m-%d %H:%M} UTC",
        snapshot,
        np.maximum(run_ms - ran_before, 1),
        amounts_of(snapshot),
        capacity_of(snapshot),
        started_ms=np.where(started_ms >= 0, np.maximum(started_ms, begin_ms), -1),
        ended_ms=ended_ms,
    )
    return Past(workload, int((~ended).sum()))
