"""Elastic gangs: running jobs that give up tasks for other jobs, and grow again when capacity is idle."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, Final

import numpy as np

from scheduler.core.cluster.index import ClusterIndex
from scheduler.core.cluster.numa import bind, bound_column, bound_in
from scheduler.core.columns import Bools
from scheduler.core.context.cycle_context import CycleContext
from scheduler.core.context.running_jobs import Preemptor, RunningJobs, leaving_rows, place_preemptor
from scheduler.core.plan import Plan, Resize
from scheduler.core.policy import Policy
from scheduler.core.preemption.reclaim import ReclaimSearch
from scheduler.core.preemption.victim_search import VictimSearch
from scheduler.core.preemption_policy import PreemptionPolicy
from scheduler.core.snapshot.snapshot import (
    DeviceColumns,
    NodeColumns,
    PendingColumns,
    RunningColumns,
    Snapshot,
)

#: Tasks that are removed in simulation for one job at most.
_MOST_SEATS: Final = 512
#: Jobs that are each looked at as the one that grows.
_TRIED: Final = 8


def settled_for(cluster: ClusterIndex, jobs: RunningJobs, seconds: int) -> Bools:
    """Running jobs whose size may change now: elastic, left alone for long enough, and nothing under way."""
    running = cluster.snapshot.running
    since = np.maximum(running.started_ms, running.resized_ms)
    may: Bools = (
        (running.least_tasks > 0)
        & (running.stop_by_ms == 0)
        & (running.pause == 0)
        & (cluster.snapshot.now_ms - since >= seconds * 1000)
    )
    may[leaving_rows(cluster)] = False
    return may


class Shrinking:
    """Finds elastic jobs that give up their last tasks, so that one that waits can start.

    By the rights of preemption and reclaim, and in their order: a job that may be stopped for another may be made
    smaller for it, down to its least size.
    """

    def __init__(self, context: CycleContext, jobs: RunningJobs, seconds: int) -> None:
        self._context, self._jobs = context, jobs
        least = context.cluster.snapshot.running.least_tasks
        self._open: Bools = settled_for(context.cluster, jobs, seconds) & (jobs.tasks > least)

    def alone(self, wanted: Preemptor, by: VictimSearch, priority: int, most: int) -> dict[int, int]:
        """How many tasks each running row gives up so that the job can start: few, of the cheapest; {} = none suffice.

        From the cheapest job on until it fits, then spared what can be.
        """
        with self._jobs.trial():
            given = self._thought_away(wanted, by, priority, until_it_fits=True)
            fits = bool(given) and place_preemptor(self._context, wanted) is not None
            given = self.without_needless(wanted, by, given) if fits else {}
        return given if len(given) <= most else {}

    def beside(
        self, wanted: Preemptor, by: VictimSearch, priority: int, most: int
    ) -> tuple[dict[int, int], list[int]]:
        """The same where victims have to end too: as few and cheap as if all such tasks were away, then spared both.

        A victim gives up no tasks before it ends. ({}, []) = none suffice.
        """
        with self._jobs.trial():
            given = self._thought_away(wanted, by, priority)
            others = (
                by.leaving_alone(given) if by.only_cpus else nullcontext()
            )  # it is suspended, or gets smaller
            with others:
                victims = by.victims_of(wanted, priority, most) if given else []
            for victim in victims:
                by.release(victim)
                given.pop(victim, None)
            given = self.without_needless(wanted, by, given) if victims else {}
        return (given, victims) if len(given) + len(victims) <= most else ({}, [])

    def orders(
        self, wanted: Preemptor, given: dict[int, int], by: VictimSearch, rules: PreemptionPolicy
    ) -> list[Resize]:
        """Simulate the removal of these tasks for good, as resizes."""
        kind = "reclaim" if isinstance(by, ReclaimSearch) else "preempt"
        lines = {victim: by.line_of(victim) if isinstance(by, ReclaimSearch) else "" for victim in given}
        for victim, count in given.items():
            for number in range(1, count + 1):
                self._jobs.give_up(victim, number)
            self._open[victim] = False
        by.close(given)
        return [
            self._order(wanted, victim, given[victim], rules, kind, lines[victim]) for victim in sorted(given)
        ]

    def _thought_away(
        self, wanted: Preemptor, by: VictimSearch, priority: int, *, until_it_fits: bool = False
    ) -> dict[int, int]:
        """Tasks of those who may be asked, the cheapest job first; how many of each."""
        allowed = by.allowed(wanted, priority) & self._open
        least = self._context.cluster.snapshot.running.least_tasks
        rows = np.flatnonzero(allowed)
        given: dict[int, int] = {}
        seats = 0
        for victim in rows[np.argsort(by.rank[rows])].tolist():
            for number in range(1, int(self._jobs.tasks[victim] - least[victim]) + 1):
                if by.spares(victim) or seats >= _MOST_SEATS or not by.bound.spend(1):
                    break
                self._jobs.give_up(victim, number)
                given[victim] = number
                seats += 1
                if until_it_fits and place_preemptor(self._context, wanted) is not None:
                    return given
        return given

    def without_needless(self, wanted: Preemptor, by: VictimSearch, given: dict[int, int]) -> dict[int, int]:
        """Without those that were not needed; of each job the first ranks stay, so the lowest is tried first."""
        for victim in sorted(given, key=lambda one: -int(by.rank[one])):  # the dearest first
            while given[victim]:
                self._jobs.give_up(victim, given[victim], back=True)
                if place_preemptor(self._context, wanted) is None:
                    self._jobs.give_up(victim, given[victim])
                    break
                given[victim] -= 1
        return {victim: count for victim, count in given.items() if count}

    def _order(
        self, wanted: Preemptor, victim: int, count: int, rules: PreemptionPolicy, kind: str, line: str
    ) -> Resize:
        running, pending = self._context.cluster.snapshot.running, self._context.cluster.snapshot.pending
        ranks = self._jobs.ranks(victim)
        return Resize(
            job_id=int(running.id[victim]),
            attempt_id=int(running.attempt_id[victim]),
            before=len(ranks),
            tasks=len(ranks) - count,
            ranks=tuple(ranks[-count:]),
            for_job_id=int(pending.id[wanted.row]),
            for_generation=int(pending.generation[wanted.row]),
            priority=int(running.priority[victim]),
            for_priority=int(pending.priority[wanted.row]),
            grace_seconds=rules.grace_seconds,
            kind=kind,
            line=line,
        )


def grow(context: CycleContext, policy: Policy, plan_of: Callable[[Snapshot, Policy], Plan]) -> list[Resize]:
    """The one elastic job that stops and starts again with more tasks; [] where none would get more.

    To be asked when no job waits for capacity. Nothing can be added to processes that run, so a job has to have saved
    its work, and lately: it loses `resize_seconds` of work at most. What it would get is what the planner gives it
    in the world in which it waits. One at a time: what the first takes is known only once it has it.
    """
    cluster = context.cluster
    snapshot, running = cluster.snapshot, cluster.snapshot.running
    in_motion = (
        snapshot.pending.awaited.any() or (running.stop_by_ms > 0).any() or snapshot.allocations.leaving.any()
    )
    if in_motion or not running.most_tasks.any():
        return []
    jobs = RunningJobs(context)
    saved = (running.saved_ms > 0) & (running.saved_ms >= running.started_ms)
    fresh = snapshot.now_ms - running.saved_ms <= policy.resize_seconds * 1000
    rows = np.flatnonzero(
        settled_for(cluster, jobs, policy.resize_seconds) & saved & fresh & (running.most_tasks > jobs.tasks)
    )
    rows = rows[np.lexsort((running.id[rows], running.started_ms[rows], -running.priority[rows]))]
    plain = replace(policy, resize_seconds=0, backfill="none", assemblies=0, preemption=PreemptionPolicy())
    for row in rows[:_TRIED].tolist():
        number = int(running.id[row])
        start = plan_of(as_pending_again(context, jobs, row), plain).start_of(number)
        if start is not None and len(start.placements) > jobs.tasks[row]:
            return [
                Resize(
                    job_id=number,
                    attempt_id=int(running.attempt_id[row]),
                    before=int(jobs.tasks[row]),
                    tasks=len(start.placements),
                    priority=int(running.priority[row]),
                    grace_seconds=policy.preemption.grace_seconds,
                    kind="grow",
                )
            ]
    return []


def as_pending_again(context: CycleContext, jobs: RunningJobs, row: int) -> Snapshot:
    """The snapshot in which this running job holds nothing, and is the only one that waits."""
    snapshot = context.cluster.snapshot
    running, held = snapshot.running, snapshot.allocations
    mine = held.job_id == running.id[row]
    quota_used, pool_used = snapshot.quotas.used.copy(), snapshot.pools.used.copy()
    for line, amount in jobs.charges(row):
        quota_used[line] -= amount
    for name, amount in snapshot.classes[int(running.class_index[row])].per_task.extras:
        if name in snapshot.pools.name:
            pool_used[snapshot.pools.name.index(name)] -= amount * int(jobs.tasks[row])
    queue_running = snapshot.queues.running_jobs.copy()
    queue_running[jobs.queue_row[row]] -= 1
    return _with(
        snapshot,
        nodes=nodes_without(context.cluster, mine),
        devices=devices_without(context.cluster, mine),
        pending=_as_pending(running, row),
        running=running.take(running.id != running.id[row]),
        allocations=held.take(~mine),
        queues=replace(snapshot.queues, running_jobs=queue_running),
        quotas=replace(snapshot.quotas, used=quota_used),
        pools=replace(snapshot.pools, used=pool_used),
    )


def nodes_without(cluster: ClusterIndex, mine: Bools) -> NodeColumns:
    """The nodes without what these allocations hold of them and of their NUMA domains."""
    nodes, held, node = cluster.snapshot.nodes, cluster.snapshot.allocations, cluster.allocations.node
    used = {
        name: getattr(nodes, f"used_{name}").copy() for name in ("cpu_millis", "memory_mib", "storage_mib")
    }
    for name, column in used.items():
        np.subtract.at(column, node[mine], getattr(held, name)[mine])
    bound = bound_in(nodes)
    for row in np.flatnonzero(mine & (held.numa >= 0)).tolist():
        cpu_millis, memory_mib = held.cpu_millis.item(row), held.memory_mib.item(row)
        bind(bound, node.item(row), held.numa.item(row), -cpu_millis, -memory_mib)
    return replace(
        nodes,
        bound=bound_column(bound, len(nodes)),
        **{f"used_{name}": column for name, column in used.items()},
    )


def devices_without(cluster: ClusterIndex, mine: Bools) -> DeviceColumns:
    """The devices without what these allocations hold of them."""
    devices, held = cluster.snapshot.devices, cluster.snapshot.allocations
    used = devices.used_millis.copy()
    for allocation in np.flatnonzero(mine).tolist():
        for device in held.device_ids[allocation]:
            if device in cluster.devices.row:
                used[cluster.devices.row[device]] -= held.gpu_millis[allocation]
    return replace(devices, used_millis=used)


def _as_pending(running: RunningColumns, row: int) -> PendingColumns:
    """The running job in this row as the only pending job, of any size from its least tasks to its most."""
    limit_ms = (
        int(running.expected_end_ms[row] - running.started_ms[row]) if running.expected_end_ms[row] else 0
    )
    columns: dict[str, Any] = {
        "id": [int(running.id[row])],
        "class_index": [int(running.class_index[row])],
        "queue_id": [int(running.queue_id[row])],
        "project_id": [int(running.project_id[row])],
        "user_id": [int(running.user_id[row])],
        "priority": [int(running.priority[row])],
        "submitted_ms": [int(running.started_ms[row])],
        "tasks": [int(running.least_tasks[row])],
        "most_tasks": [int(running.most_tasks[row])],
        "time_limit_seconds": [limit_ms // 1000],
        "pack": [int(running.pack[row])],
        "reservation_id": [int(running.reservation_id[row])],
        "job_type": [int(running.job_type[row])],
        "name": [running.name[row]],
        "labels": [running.labels[row]],
    }
    return PendingColumns(**columns)


def _with(snapshot: Snapshot, **job_classes: Any) -> Snapshot:
    """The snapshot with these groups instead, built anew."""
    names = ("reservations", "projects", "shares", "budgets")
    kept = {name: getattr(snapshot, name) for name in names}
    return Snapshot.build(now_ms=snapshot.now_ms, classes=snapshot.classes, **kept, **job_classes)
