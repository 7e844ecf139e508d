"""Suspension: jobs that are suspended for other jobs, and when they may be resumed."""

from __future__ import annotations

from typing import Final

import numpy as np

from quotas.core.resources import Resources
from scheduler.core.backfill.backfill import FOREVER_MS
from scheduler.core.backfill.future_use import FutureUse
from scheduler.core.columns import Bools, Ints
from scheduler.core.context.cycle_context import CycleContext
from scheduler.core.context.reserved_parts import PartUse
from scheduler.core.context.running_jobs import Preemptor, RunningJobs
from scheduler.core.lifecycle import NodeState
from scheduler.core.plan import Resume
from scheduler.core.preemption.victim_search import VictimSearch, cheapest_first
from scheduler.core.preemption_policy import PreemptionPolicy
from scheduler.core.snapshot.snapshot import Pause

#: Why one is requeued although the policy suspends.
KEEPS_GPUS: Final = "a suspended job keeps the memory of its GPUs"
FREES_TOO_LITTLE: Final = "suspension frees CPUs only, and these are not enough"


class SuspendSearch(VictimSearch):
    """Finds jobs that can be suspended for another: those that hold CPUs and no GPU, cheapest first.

    Nothing of their work is lost, so what one costs is what it holds.
    """

    only_cpus = True

    def __init__(self, search: VictimSearch) -> None:
        # The same jobs are left, whether they be suspended or end.
        self.context, self.jobs, self.rules = search.context, search.jobs, search.rules
        self._open, self._budget, self._may_stop = search._open, search._budget, search._may_stop
        self.bound = search.bound
        self.standing = search.standing
        running = self.context.cluster.snapshot.running
        self.cost = np.maximum(self.jobs.cpu_millis, 1)
        self.loss = np.zeros(len(running), dtype=np.int64)
        self.rank = cheapest_first(running, self.cost, self.standing)
        self._able: Bools = (self.jobs.cpu_millis > 0) & (self.jobs.gpu_millis == 0)

    def allowed(self, wanted: Preemptor, priority: int) -> Bools:
        found: Bools = self.may_stop(priority) & self._able
        return found


def why_requeued(rules: PreemptionPolicy, jobs: RunningJobs, victim: int) -> str:
    """Why a victim does not be suspended, where the policy would have it so; "" where it would not."""
    if rules.mode != "suspend":
        return ""
    return rules.cannot_suspend or (KEEPS_GPUS if jobs.gpu_millis[victim] else FREES_TOO_LITTLE)


def suspended_rows(context: CycleContext) -> Ints:
    """Rows of suspended jobs, highest priority first, then those that began first."""
    running = context.cluster.snapshot.running
    rows = np.flatnonzero(running.pause == Pause.SUSPENDED)
    return rows[np.lexsort((running.id[rows], running.started_ms[rows], -running.priority[rows]))]


def before_them(
    context: CycleContext, rules: PreemptionPolicy, suspended: Ints, considered: Ints, *, strict: Bools | None
) -> Ints:
    """Pending rows that go first: they could have one of these be suspended again at once.

    They pass no job that has to start before them: none that is ahead of them in a `strict` queue (of each queue,
    whether it is); with None, none at all.
    """
    pending, running = context.cluster.snapshot.pending, context.cluster.snapshot.running
    if not rules.enabled:
        return considered[:0]
    lowest = int(running.priority[suspended].min())
    above = np.array([rules.may_stop(priority, lowest) for priority in range(101)], dtype=np.bool_)
    first = above[pending.priority[considered]]
    if strict is None:
        return considered[np.logical_and.accumulate(first)]
    for queue_row in np.flatnonzero(strict).tolist():
        here = context.cluster.pending.queue[considered] == queue_row
        first[here] = np.logical_and.accumulate(first[here])
    return considered[first]


def take_cpus(context: CycleContext, jobs: RunningJobs, row: int) -> list[FutureUse]:
    """Take the CPUs of one that goes on, of its nodes and limits; what it holds by that until it is to end."""
    cluster, running = context.cluster, context.cluster.snapshot.running
    per_task = Resources(
        cpu_millis=cluster.snapshot.classes[running.class_index.item(row)].per_task.cpu_millis
    )
    until_ms, holds = cluster.allocations.job_end_ms.item(row) or FOREVER_MS, []
    for seat in jobs.seats(row):
        context.workspace.take(seat.row, per_task, [], 0, domain=seat.domain)
        holds.append(FutureUse(cluster.snapshot.now_ms, until_ms, seat.row, per_task, [], 0, seat.domain))
    context.workspace.limits.tree.take(jobs.charges(row, only_cpus=True))
    return holds


def resume(context: CycleContext, suspended: Ints) -> tuple[list[Resume], list[FutureUse]]:
    """Those whose CPUs are free where they are, and within every limit; their CPUs are taken.

    And what they hold by that, until they are expected to end.
    """
    cluster, workspace = context.cluster, context.workspace
    running, jobs = cluster.snapshot.running, RunningJobs(context)
    resumed: list[Resume] = []
    holds: list[FutureUse] = []
    for row in suspended.tolist():
        if running.stop_by_ms[row]:
            continue  # it is asked to end
        each = cluster.snapshot.classes[int(running.class_index[row])].per_task.cpu_millis
        seats = jobs.seats(row)
        nodes, domains = [seat.row for seat in seats], [seat.domain for seat in seats if seat.domain >= 0]
        numa, until_ms = workspace.numa, cluster.allocations.job_end_ms.item(row) or FOREVER_MS
        view = context.parts.view_of_running(running.reservation_id.item(row), until_ms)
        seen = workspace if view is None else context.view(view)
        seen.sync()
        room = all(
            cluster.snapshot.nodes.state[node] == NodeState.UP
            and seen.free_on(node)[0] >= each * nodes.count(node)
            for node in set(nodes)
        ) and (
            numa is None or all(numa.free[domain] >= each * domains.count(domain) for domain in set(domains))
        )
        charges = jobs.charges(row, only_cpus=True)
        if not room or workspace.limits.short_quota(charges) is not None:
            continue
        taken = take_cpus(context, jobs, row)
        context.parts.start(-1, [PartUse(use.row, use.per_task.cpu_millis, 0, use.until_ms) for use in taken])
        holds += taken
        resumed.append(Resume(int(running.id[row]), int(running.attempt_id[row])))
    return resumed, holds
