"""Where running jobs would go if they had to leave their nodes now: what a cycle decides if they hold nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from scheduler.core.cluster.index import ClusterIndex
from scheduler.core.columns import Ints
from scheduler.core.context.cycle_context import CycleContext
from scheduler.core.context.running_jobs import RunningJobs
from scheduler.core.cycle import plan_cycle
from scheduler.core.placement.plugins import NO_PLUGINS, Plugins, resolve
from scheduler.core.plan import Plan
from scheduler.core.policy import Policy
from scheduler.core.preemption.elastic import devices_without, nodes_without
from scheduler.core.preemption_policy import PreemptionPolicy
from scheduler.core.reasons.messages import sentence
from scheduler.core.snapshot.request_classes import RequestClass
from scheduler.core.snapshot.snapshot import PendingColumns, Snapshot


@dataclass(frozen=True, slots=True)
class MovedJob:
    """A running job as it would wait again: its request with the nodes that it leaves, and its shape."""

    number: int
    request: RequestClass
    submitted_ms: int
    tasks: int = 1
    most_tasks: int = 0
    nodes: int = 0
    tasks_per_node: int = 0


@dataclass(frozen=True, slots=True)
class Place:
    """The nodes that a moved job would be given, () where it would wait, and then why."""

    nodes: tuple[str, ...]
    why_not: str = ""


def plan_moved(
    snapshot: Snapshot,
    policy: Policy,
    jobs: Sequence[MovedJob],
    *,
    closed: Collection[int] = (),
    plugins: Plugins = NO_PLUGINS,
) -> Plan:
    """What a cycle decides while these running jobs wait again, with what they hold free, and nothing is preempted.

    `closed` are ids of nodes that take no jobs. All other jobs wait as they do. Raises KeyError for a job that does not
    run in the snapshot.
    """
    plain = replace(policy, resize_seconds=0, assemblies=0, preemption=PreemptionPolicy())
    return plan_cycle(waiting_again(snapshot, policy, jobs, closed=closed, plugins=plugins), plain, plugins)


def places_of(
    snapshot: Snapshot,
    policy: Policy,
    jobs: Sequence[MovedJob],
    *,
    closed: Collection[int] = (),
    plugins: Plugins = NO_PLUGINS,
) -> dict[int, Place]:
    """Where each of these jobs would start, all of them moved together."""
    plan = plan_moved(snapshot, policy, jobs, closed=closed, plugins=plugins) if jobs else Plan()
    names = dict(zip(snapshot.nodes.id.tolist(), snapshot.nodes.name, strict=True))
    return {job.number: _place(plan, job.number, names, closed) for job in jobs}


def _place(plan: Plan, number: int, names: dict[int, str], closed: Collection[int]) -> Place:
    start = plan.start_of(number)
    if start is not None:
        return Place(tuple(names[node] for node in start.node_ids))
    decision = plan.decision_of(number)
    # That the nodes which are to be drained have room tells nothing.
    drained = {names[node] for node in closed if node in names}
    is_another = dict(decision.facts).get("closed_node") not in drained
    facts = [fact for fact in decision.facts if is_another or not fact[0].startswith("closed_")]
    return Place((), sentence(decision.reason, facts))


def waiting_again(
    snapshot: Snapshot,
    policy: Policy,
    jobs: Sequence[MovedJob],
    *,
    closed: Collection[int] = (),
    plugins: Plugins = NO_PLUGINS,
) -> Snapshot:
    """The snapshot in which these running jobs hold nothing and wait, beside all others that wait."""
    context = CycleContext(ClusterIndex(snapshot), resolve(policy, plugins))
    cluster, running, held = context.cluster, snapshot.running, snapshot.allocations
    row_of = {number: row for row, number in enumerate(running.id.tolist())}
    rows = [row_of[job.number] for job in jobs]
    mine = np.isin(held.job_id, [job.number for job in jobs])
    nodes = nodes_without(cluster, mine)
    quota_used, pool_used, queue_running = _given_back(context, rows)
    others = {
        f.name: getattr(snapshot, f.name)
        for f in fields(snapshot)
        if f.name in ("reservations", "projects", "shares", "budgets")
    }
    return Snapshot.build(
        now_ms=snapshot.now_ms,
        classes=(*snapshot.classes, *(job.request for job in jobs)),
        nodes=replace(nodes, draining=nodes.draining | np.isin(nodes.id, sorted(closed))),
        devices=devices_without(cluster, mine),
        pending=_joined(snapshot, zip(jobs, rows, strict=True)),
        running=running.take(~np.isin(running.id, [job.number for job in jobs])),
        allocations=held.take(~mine),
        queues=replace(snapshot.queues, running_jobs=queue_running),
        quotas=replace(snapshot.quotas, used=quota_used),
        pools=replace(snapshot.pools, used=pool_used),
        **others,
    )


def _given_back(context: CycleContext, rows: Iterable[int]) -> tuple[Ints, Ints, Ints]:
    """What is in use of quota lines and pools, and runs in each queue, without these running jobs."""
    snapshot, jobs = context.cluster.snapshot, RunningJobs(context)
    quota_used, pool_used = snapshot.quotas.used.copy(), snapshot.pools.used.copy()
    queue_running = snapshot.queues.running_jobs.copy()
    for row in rows:
        for line, amount in jobs.charges(row):
            quota_used[line] -= amount
        for name, amount in snapshot.classes[int(snapshot.running.class_index[row])].per_task.extras:
            if name in snapshot.pools.name:
                pool_used[snapshot.pools.name.index(name)] -= amount * int(jobs.tasks[row])
        queue_running[jobs.queue_row[row]] -= 1
    return quota_used, np.maximum(pool_used, 0), queue_running


def _joined(snapshot: Snapshot, moved: Iterable[tuple[MovedJob, int]]) -> PendingColumns:
    """The pending jobs, and these."""
    running, first = snapshot.running, len(snapshot.classes)
    rows: list[dict[str, Any]] = [
        {
            "id": job.number,
            "class_index": first + place,
            "queue_id": running.queue_id[row],
            "project_id": running.project_id[row],
            "user_id": running.user_id[row],
            "priority": running.priority[row],
            "submitted_ms": job.submitted_ms,
            "tasks": job.tasks,
            "most_tasks": job.most_tasks,
            "nodes": job.nodes,
            "tasks_per_node": job.tasks_per_node,
            "time_limit_seconds": max(running.expected_end_ms[row] - running.started_ms[row], 0) // 1000,
            "pack": running.pack[row],
            "job_type": running.job_type[row],
            "array_id": running.array_id[row],
            "name": running.name[row],
            "labels": running.labels[row],
        }
        for place, (job, row) in enumerate(moved)
    ]
    columns: dict[str, Any] = {}
    for f in fields(snapshot.pending):
        more = [row.get(f.name, f.metadata["default"]) for row in rows]
        old = getattr(snapshot.pending, f.name)
        columns[f.name] = (
            (*old, *more)
            if f.metadata["kind"] == "objects"
            else np.concatenate([old, np.array(more, dtype=old.dtype)])
        )
    return PendingColumns(**columns)
