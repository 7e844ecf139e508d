"""Suspension: jobs that stand still for others and go on where they were, and when they may."""

from __future__ import annotations

from typing import Final

import numpy as np

from quotas.core.resources import Resources
from scheduler.core.backfill import FOREVER_MS
from scheduler.core.blockers import Answers
from scheduler.core.columns import Bools, Ints
from scheduler.core.horizon import Hold
from scheduler.core.lifecycle import NodeState
from scheduler.core.plan import Resume
from scheduler.core.seats import RunningJobs, Wanted
from scheduler.core.snapshot import Pause
from scheduler.core.standing import Preemption
from scheduler.core.victims import Search

#: Why one is requeued although the policy suspends.
KEEPS_GPUS: Final = "a job that stands still keeps the memory of its GPUs"
FREES_TOO_LITTLE: Final = "standing still gives back CPUs only, and those are not enough"


class Suspend(Search):
    """Finds jobs that can stand still for another: those that hold CPUs and no GPU, cheapest first.

    Nothing of their work is lost, so what one costs is what it holds.
    """

    only_cpus = True

    def __init__(self, search: Search) -> None:
        # The same jobs are left, whether they stand still or end.
        self.answers, self.jobs, self.rules = search.answers, search.jobs, search.rules
        self._open, self._budget, self._may_stop = search._open, search._budget, search._may_stop
        self.standing = search.standing
        running = self.answers.world.snapshot.running
        self.cost = np.maximum(self.jobs.cpu_millis, 1)
        self.loss = np.zeros(len(running), dtype=np.int64)
        order = np.lexsort((-running.id, -running.started_ms, self.cost, self.standing))
        self.rank = np.empty(len(order), dtype=np.int64)
        self.rank[order] = np.arange(len(order))
        self._able: Bools = (self.jobs.cpu_millis > 0) & (self.jobs.gpu_millis == 0)

    def allowed(self, wanted: Wanted, priority: int) -> Bools:
        found: Bools = self.may_stop(priority) & self._able
        return found


def why_requeued(rules: Preemption, jobs: RunningJobs, victim: int) -> str:
    """Why a victim does not stand still, where the policy would have it so; "" where it would not."""
    if rules.mode != "suspend":
        return ""
    return rules.cannot_suspend or (KEEPS_GPUS if jobs.gpu_millis[victim] else FREES_TOO_LITTLE)


def suspended_rows(answers: Answers) -> Ints:
    """Running rows that stand still, highest priority first, then those that began first."""
    running = answers.world.snapshot.running
    rows = np.flatnonzero(running.pause == Pause.SUSPENDED)
    return rows[np.lexsort((running.id[rows], running.started_ms[rows], -running.priority[rows]))]


def before_them(
    answers: Answers, rules: Preemption, suspended: Ints, considered: Ints, *, strict: Bools | None
) -> Ints:
    """Pending rows that go first: they could have one of these stand still again at once.

    They pass nobody who has to start before them: none that is ahead of them in a `strict` queue (of each queue,
    whether it is); with None, none at all.
    """
    pending, running = answers.world.snapshot.pending, answers.world.snapshot.running
    if not rules.enabled:
        return considered[:0]
    lowest = int(running.priority[suspended].min())
    above = np.array([rules.may_stop(priority, lowest) for priority in range(101)], dtype=np.bool_)
    first = above[pending.priority[considered]]
    if strict is None:
        return considered[np.logical_and.accumulate(first)]
    for queue_row in np.flatnonzero(strict).tolist():
        here = answers.world.pending_queue[considered] == queue_row
        first[here] = np.logical_and.accumulate(first[here])
    return considered[first]


def take_cpus(answers: Answers, jobs: RunningJobs, row: int) -> list[Hold]:
    """Take the CPUs of one that goes on, of its nodes and limits; what it holds by that until it is to end."""
    world, running = answers.world, answers.world.snapshot.running
    per_task = Resources(cpu_millis=world.snapshot.classes[running.class_index.item(row)].per_task.cpu_millis)
    until_ms, holds = running.expected_end_ms.item(row) or FOREVER_MS, []
    for seat in jobs.seats(row):
        answers.workspace.take(seat.row, per_task, [], 0, domain=seat.domain)
        holds.append(Hold(world.snapshot.now_ms, until_ms, seat.row, per_task, [], 0, seat.domain))
    answers.workspace.limits.take(jobs.charges(row, only_cpus=True))
    return holds


def resume(answers: Answers, suspended: Ints) -> tuple[list[Resume], list[Hold]]:
    """Those whose CPUs are free where they are, and within every limit; their CPUs are taken.

    And what they hold by that, until they are expected to end.
    """
    world, workspace = answers.world, answers.workspace
    running, jobs = world.snapshot.running, RunningJobs(answers)
    resumed: list[Resume] = []
    holds: list[Hold] = []
    for row in suspended.tolist():
        if running.stop_by_ms[row]:
            continue  # it is told to end
        each = world.snapshot.classes[int(running.class_index[row])].per_task.cpu_millis
        seats = jobs.seats(row)
        nodes, domains = [seat.row for seat in seats], [seat.domain for seat in seats if seat.domain >= 0]
        room = all(
            world.snapshot.nodes.state[node] == NodeState.UP
            and workspace.free_on(node)[0] >= each * nodes.count(node)
            for node in set(nodes)
        ) and all(workspace.domain_free[domain] >= each * domains.count(domain) for domain in set(domains))
        charges = jobs.charges(row, only_cpus=True)
        if not room or workspace.short_quota(charges) is not None:
            continue
        holds += take_cpus(answers, jobs, row)
        resumed.append(Resume(int(running.id[row]), int(running.attempt_id[row])))
    return resumed, holds
