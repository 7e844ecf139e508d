"""The simulation of a whole cluster: arrivals and ends, under a virtual clock, with the planner of production."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from scheduler.core.columns import Ints
from scheduler.core.forecast.event_loop import EventLoop
from scheduler.core.forecast.virtual_cluster import Requeue, VirtualCluster, moments_of
from scheduler.core.ordering.choice import choices_of, choose
from scheduler.core.placement.plugins import NO_PLUGINS, Plugins
from scheduler.core.plan import Plan, Start
from scheduler.core.policy import Policy
from scheduler.core.snapshot.snapshot import ChoiceColumns, Snapshot
from scheduler.simulator.cluster_workload import DEFAULT_RUN_MS, ClusterWorkload
from scheduler.simulator.meters import HoldingMeter, IdleMeter
from scheduler.simulator.usage_history import UsageHistory

#: Called now and then with the number of jobs that have ended.
Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Outcome:
    """When each pending job of a workload started for good and ended (-1 = never), and what happened meanwhile."""

    started_ms: Ints
    cycles: int = 0
    #: Of all GPUs while jobs that ask for GPUs waited, on average: the idle ones, and those of them that were of no
    #: use to the usual requests (`fragmentation`).
    idle_while_waiting_percent: float = 0.0
    fragmentation_percent: float = 0.0
    preemptions: int = 0
    lost_ms: int = 0  # work that preempted jobs do again: GPUs times ms
    stopped: tuple[int, ...] = ()  # row of the preempted job, for each preemption
    suspensions: int = 0
    resizes: int = 0
    ended_ms: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    busy_before: float = 0.0  # what the jobs that ran at the beginning held from then on: amounts times ms

    __hash__ = None  # type: ignore[assignment]


def simulate(
    workload: ClusterWorkload,
    policy: Policy,
    *,
    each_event: bool = False,
    plugins: Plugins = NO_PLUGINS,
    progress: Progress = lambda ended: None,
) -> Outcome:
    """Let every job of a workload arrive, start and end under a policy.

    One cycle follows each moment at which a job arrived or ended. With `each_event` one cycle follows each event,
    arrivals first, and a job that has reached its limit holds nothing any more even if its end is still to be
    handled: the rules under which published schedules were made. A preempted job waits again and starts from its
    beginning, or from the checkpoint that it had at the first moment; a suspended job resumes where it was. Elastic
    jobs save their work as they go, and their speed grows with their size.
    """
    simulation = _Simulation(workload, policy, each_event=each_event, progress=progress)
    while simulation.advance():
        simulation.take_events()
        if simulation.has_to_plan:
            simulation.plan(policy, plugins)
    return simulation.outcome()


class _Arrivals:
    """The pending jobs of a workload in the order in which they arrive, and how many have arrived."""

    def __init__(self, snapshot: Snapshot) -> None:
        pending = snapshot.pending
        order = np.lexsort((pending.id, pending.submitted_ms))
        self._rows: list[int] = order.tolist()
        self._moments: list[int] = pending.submitted_ms[order].tolist()
        self._arrived = 0

    @property
    def next_ms(self) -> int | None:
        """The moment of the next arrival; None = all jobs have arrived."""
        return self._moments[self._arrived] if self._arrived < len(self._moments) else None

    def take(self, now_ms: int, *, one: bool) -> list[int]:
        """The rows that arrive until now; with `one` only the first of them."""
        began = self._arrived
        while (at_ms := self.next_ms) is not None and at_ms <= now_ms:
            self._arrived += 1
            if one:
                break
        return self._rows[began : self._arrived]


class _Lengths:
    """By row: how long each job runs, which amount it holds, and the serial part of its work in thousandths."""

    def __init__(self, workload: ClusterWorkload, cluster: VirtualCluster) -> None:
        coming = len(workload.snapshot.pending)
        limits_ms = cluster.jobs.time_limit_seconds[coming:] * 1000
        again = np.where(
            limits_ms > 0, limits_ms, DEFAULT_RUN_MS
        ).tolist()  # running jobs, if they start again
        nothing = [0] * len(again)
        serial = workload.serial_millis
        self.run_ms: list[int] = [*workload.run_ms.tolist(), *again]
        self.amounts: list[int] = [*workload.amounts.tolist(), *nothing]
        self.serial_millis: list[int] = [*([0] * coming if serial is None else serial.tolist()), *nothing]


class _Tally:
    """What is counted of a simulation: by row of `VirtualCluster.jobs`, and in all."""

    def __init__(self, jobs: int, progress: Progress) -> None:
        self.started: Ints = np.full(jobs, -1, dtype=np.int64)
        self.ended: Ints = np.full(jobs, -1, dtype=np.int64)
        self.stopped: list[int] = []
        self.cycles = self.lost_ms = self.suspensions = self.resizes = 0
        self._ended_jobs, self._progress = 0, progress

    def planned(self, plan: Plan) -> None:
        self.cycles += 1
        self.suspensions += sum(preempt.mode == "suspend" for preempt in plan.preempts)
        self.resizes += len(plan.resizes)

    def began(self, row: int, now_ms: int) -> None:
        if self.started[row] < 0:
            self.started[row] = now_ms

    def finished(self) -> None:
        self._ended_jobs += 1
        if self._ended_jobs % 100 == 0:
            self._progress(self._ended_jobs)

    def requeued(self, requeue: Requeue, amount: int) -> None:
        """A job waits again; unless it only grows, that is a preemption and its start does not count."""
        if not requeue.grown:
            self.stopped.append(requeue.row)
            self.lost_ms += requeue.lost_ms * amount // 1000
            self.started[requeue.row] = -1


class _Simulation:
    """One run of a workload: the event loop, the arrivals, and what is measured on the way.

    Rows are rows of `VirtualCluster.jobs`: first the jobs that will arrive, then those that run at the beginning.
    """

    def __init__(
        self, workload: ClusterWorkload, policy: Policy, *, each_event: bool, progress: Progress
    ) -> None:
        snapshot, now_ms = workload.snapshot, workload.snapshot.now_ms
        self._each_event, self._coming = each_event, len(snapshot.pending)
        self._cluster = cluster = VirtualCluster(snapshot, resize_seconds=policy.resize_seconds)
        self._arrivals = _Arrivals(snapshot)
        self._loop = EventLoop(cluster, now_ms, moments=() if each_event else moments_of(snapshot))
        self._lengths = _Lengths(workload, cluster)
        self._tally = _Tally(len(cluster.jobs), progress)
        self._usage = UsageHistory(snapshot, policy, workload.tree)
        self._held_before = HoldingMeter(cluster, bool(len(snapshot.devices)), now_ms)
        self._idle = IdleMeter(snapshot, cluster)
        self._choices = ChoiceColumns()
        for number in cluster.running:
            end_ms = cluster.expected_end_ms(number)
            self._loop.run(number, max(end_ms - now_ms, 0) if end_ms else DEFAULT_RUN_MS)

    def advance(self) -> bool:
        """Go to the next moment at which a job arrives or may end; False when there is none."""
        loop = self._loop
        moments = [at_ms for at_ms in (self._arrivals.next_ms, loop.next_ms) if at_ms is not None]
        if not moments:
            return False
        moment = max(min(moments), loop.now_ms)
        self._idle.count(moment - loop.now_ms, loop.waiting)
        loop.now_ms = moment
        return True

    def take_events(self) -> None:
        """Let the jobs of this moment arrive and end; with `each_event` only the next of them."""
        arrived = self._arrivals.take(self._loop.now_ms, one=self._each_event)
        self._loop.waiting += arrived
        if not (arrived and self._each_event):
            self._take_ends()
        if self._each_event:
            self._end_at_limits()

    def _take_ends(self) -> None:
        for number, requeue in self._loop.ends(self._loop.now_ms):
            self._count_end(number)
            if requeue is None:
                self._tally.finished()
            else:
                self._tally.requeued(requeue, self._lengths.amounts[requeue.row])
            if self._each_event:
                break

    def _end_at_limits(self) -> None:
        for number in self._cluster.running:
            at_limit = 0 < self._cluster.expected_end_ms(number) <= self._loop.now_ms
            if at_limit and not self._cluster.is_suspended(number):
                self._count_end(number)
                self._cluster.end(number, self._loop.now_ms)
                self._tally.finished()

    def _count_end(self, number: int) -> None:
        now_ms = self._loop.now_ms
        self._usage.end(number, now_ms)
        self._held_before.end(number, now_ms)
        self._tally.ended[self._cluster.row_of[number]] = now_ms

    @property
    def has_to_plan(self) -> bool:
        """Whether a cycle could decide something now."""
        return bool(self._loop.waiting) or self._cluster.may_change

    def plan(self, policy: Policy, plugins: Plugins) -> None:
        """Plan a cycle for this moment, apply it, and measure what it changed."""
        plan = self._loop.plan(policy, plugins, self._usage.add_to, self._choose)
        self._tally.planned(plan)
        for start in plan.starts:
            self._begin(start)
        moved = [one.job_id for one in plan.resizes] + [one.job_id for one in plan.resumes]
        for number in moved + [one.job_id for one in plan.preempts]:
            self._usage.change(number, self._cluster.amounts_held(number), self._loop.now_ms)
            self._held_before.change(number, self._loop.now_ms)

    def _choose(self, snapshot: Snapshot, policy: Policy) -> Policy:
        """The policy as its rules have it now, as in production: the last choice is kept for its time."""
        chosen = choose(replace(snapshot, choices=self._choices), policy)
        self._choices = choices_of(chosen)
        return chosen

    def _begin(self, start: Start) -> None:
        now_ms, number, jobs = self._loop.now_ms, start.job_id, self._cluster.jobs
        row = self._cluster.row_of[number]
        self._tally.began(row, now_ms)
        self._usage.start(start, jobs.user_id.item(row), now_ms)
        if row >= self._coming:
            self._held_before.begin(number, now_ms)
        self._loop.run(
            number,
            self._lengths.run_ms[row],
            tasks=jobs.tasks.item(row),
            serial_millis=self._lengths.serial_millis[row],
        )

    def outcome(self) -> Outcome:
        tally, coming = self._tally, self._coming
        return Outcome(
            started_ms=tally.started[:coming],
            cycles=tally.cycles,
            idle_while_waiting_percent=self._idle.idle_percent,
            fragmentation_percent=self._idle.fragmented_percent,
            preemptions=len(tally.stopped),
            lost_ms=tally.lost_ms,
            stopped=tuple(row for row in tally.stopped if row < coming),
            suspensions=tally.suspensions,
            resizes=tally.resizes,
            ended_ms=tally.ended[:coming],
            busy_before=self._held_before.busy,
        )
