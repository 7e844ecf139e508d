"""What the next cycle sees: a snapshot after a plan was carried out."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields, replace
from typing import Any

import numpy as np

from quotas.core.limits import charge
from scheduler.core.cluster.numa import bind, bound_column, bound_in
from scheduler.core.plan import Plan
from scheduler.core.snapshot.snapshot import (
    AllocationColumns,
    RunningColumns,
    Snapshot,
)

#: What a running job has of the pending job.
_CARRIED = ("job_type", "name", "labels", "reservation_id")


def applied(snapshot: Snapshot, plan: Plan) -> Snapshot:
    """The world once a plan is applied: what the next cycle sees if nothing else happens.

    Its starts run, and those it stops have been told and not ended yet.
    """
    nodes, devices, quotas, queues, pools = (
        snapshot.nodes, snapshot.devices, snapshot.quotas, snapshot.queues, snapshot.pools,
    )  # fmt: skip
    used = {
        name: getattr(nodes, f"used_{name}").copy() for name in ("cpu_millis", "memory_mib", "storage_mib")
    }
    node_row = {number: row for row, number in enumerate(nodes.id.tolist())}
    device_row = {number: row for row, number in enumerate(devices.id.tolist())}
    line_row = {number: row for row, number in enumerate(quotas.id.tolist())}
    used_millis, quota_used = devices.used_millis.copy(), quotas.used.copy()
    queue_running, pool_used = queues.running_jobs.copy(), pools.used.copy()
    bound = bound_in(nodes)
    running = list(zip(*(getattr(snapshot.running, name) for name in _names(RunningColumns)), strict=True))
    allocations = list(
        zip(*(getattr(snapshot.allocations, name) for name in _names(AllocationColumns)), strict=True)
    )
    after_array = fields(RunningColumns)[_names(RunningColumns).index("array_id") + 1 :]
    younger = {column.name: column.metadata["default"] for column in after_array}
    for start in plan.starts:
        row = snapshot.job_row(start.job_id)
        pending = snapshot.pending
        demands = snapshot.job_class(start.job_id).one_domain
        for placement in start.placements:
            for name, column in used.items():
                column[node_row[placement.node_id]] += getattr(start.per_task, name)
            for device in placement.device_ids:
                used_millis[device_row[device]] += placement.gpu_millis
            if demands:
                bind(
                    bound, node_row[placement.node_id], placement.numa,
                    start.per_task.cpu_millis, start.per_task.memory_mib,
                )  # fmt: skip
            allocations.append(
                (
                    len(allocations) + 1_000_000,
                    start.job_id,
                    placement.rank,
                    placement.node_id,
                    start.per_task.cpu_millis,
                    start.per_task.memory_mib,
                    start.per_task.storage_mib,
                    placement.device_ids,
                    placement.gpu_millis,
                    False,
                    placement.numa if demands else -1,
                )
            )
        project = snapshot.projects.id.tolist().index(start.project_id)
        held: Counter[str] = Counter()
        for placement in start.placements:
            for device in placement.device_ids:
                held[devices.model[device_row[device]]] += placement.gpu_millis
        for line in snapshot.projects.quota_line_ids[project]:
            at = line_row[line]
            if quotas.user_id[at] in (0, pending.user_id[row]) and quotas.job_type[at] in (
                0,
                pending.job_type[row],
            ):
                quota_used[at] += charge(
                    quotas.resource[at], start.per_task, len(start.placements),
                    gpu_model=quotas.gpu_model[at], devices=held,
                )  # fmt: skip
        queue_running[queues.id.tolist().index(start.queue_id)] += 1
        for name, amount in start.per_task.extras:
            pool_used[pools.name.index(name)] += amount * len(start.placements)
        limit = int(pending.time_limit_seconds[row])
        running.append(
            (start.job_id, 1, int(pending.class_index[row]), start.queue_id, start.project_id,
             int(pending.user_id[row]), int(pending.priority[row]), snapshot.now_ms,
             snapshot.now_ms + limit * 1000 if limit else 0, int(pending.array_id[row]),
             *(younger | {name: getattr(pending, name)[row] for name in _CARRIED}).values())
        )  # fmt: skip
    told = {preempt.job_id: preempt for preempt in plan.preempts}
    names = _names(RunningColumns)
    for place, columns in enumerate(running):
        preempt = told.get(int(columns[0]))
        if preempt is not None:
            row_of_job = dict(zip(names, columns, strict=True))
            row_of_job["stop_by_ms"] = snapshot.now_ms + preempt.grace_seconds * 1000
            row_of_job["stopped_for"] = preempt.for_job_id
            row_of_job["pause"] = int(preempt.mode == "suspend")
            running[place] = tuple(row_of_job.values())
    started = {start.job_id for start in plan.starts}
    keep = [row for row, number in enumerate(snapshot.pending.id.tolist()) if number not in started]
    return Snapshot.build(
        now_ms=snapshot.now_ms,
        nodes=replace(
            nodes,
            bound=bound_column(bound, len(nodes)),
            **{f"used_{name}": column for name, column in used.items()},
        ),
        devices=replace(devices, used_millis=used_millis),
        classes=snapshot.classes,
        pending=snapshot.pending.take(np.array(keep, dtype=np.int64)),
        running=RunningColumns.from_rows(running),
        allocations=AllocationColumns.from_rows(allocations),
        reservations=snapshot.reservations,
        queues=replace(queues, running_jobs=queue_running),
        projects=snapshot.projects,
        quotas=replace(quotas, used=quota_used),
        pools=replace(pools, used=pool_used),
    )


def _names(columns: type[Any]) -> list[str]:
    return [column.name for column in fields(columns)]
