"""The event loop under a virtual clock: a cluster, its waiting jobs, and the moments at which jobs may end."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from scheduler.core.cycle import plan_cycle
from scheduler.core.forecast.virtual_cluster import Event, Requeue, VirtualCluster
from scheduler.core.placement.plugins import NO_PLUGINS, Plugins
from scheduler.core.plan import Plan
from scheduler.core.policy import Policy
from scheduler.core.snapshot.snapshot import Snapshot


def as_seen(snapshot: Snapshot) -> Snapshot:
    """The snapshot as the virtual cluster gives it."""
    return snapshot


def as_given(snapshot: Snapshot, policy: Policy) -> Policy:
    """The policy as it is."""
    return policy


class EventLoop:
    """What a forecast and a simulation have in common: plan a cycle, apply it, go on to the next end.

    `waiting` holds rows of `cluster.jobs`. Of ends of one moment the job that started first ends first. An event may
    come late: a job that was suspended or resized ends at another moment, and its earlier event is then ignored.
    """

    def __init__(
        self,
        cluster: VirtualCluster,
        now_ms: int,
        *,
        waiting: Sequence[int] = (),
        moments: Iterable[int] = (),
        least_step_ms: int = 0,
    ) -> None:
        """`moments`: when a cycle is wanted although no job ends. No later event comes before `least_step_ms`."""
        self.cluster, self.now_ms, self.waiting = cluster, now_ms, list(waiting)
        self._least_step_ms = least_step_ms
        self._order = {number: order for order, number in enumerate(cluster.running)}  # of starts
        self._started = len(self._order)
        #: (moment, order of the job's start, job id; 0 = of no job)
        self._events = [(at_ms, -1, 0) for at_ms in moments]
        heapq.heapify(self._events)

    @property
    def next_ms(self) -> int | None:
        """The moment of the next event; None = there is none."""
        return self._events[0][0] if self._events else None

    def expect(self, events: Iterable[Event]) -> None:
        """Add events; one that should have come already comes as soon as events may."""
        soonest_ms = self.now_ms + self._least_step_ms
        for at_ms, number in events:
            heapq.heappush(self._events, (max(at_ms, soonest_ms), self._order.get(number, -1), number))

    def plan(
        self,
        policy: Policy,
        plugins: Plugins = NO_PLUGINS,
        complete: Callable[[Snapshot], Snapshot] = as_seen,
        choose: Callable[[Snapshot, Policy], Policy] = as_given,
    ) -> Plan:
        """Plan a cycle for this moment and apply its decisions; say for each start how long it runs (`run`).

        `complete` adds to the snapshot what the virtual cluster does not know; `choose` is which policy to plan by:
        a forecast keeps the rule that is in force at its beginning.
        """
        snapshot = self.cluster.snapshot_at(self.now_ms, np.array(self.waiting, dtype=np.int64))
        whole = complete(snapshot)
        policy = choose(whole, policy)
        plan = plan_cycle(whole, policy, plugins)
        for start in plan.starts:
            self._order[start.job_id] = self._started
            self._started += 1
        self.expect(self.cluster.apply(plan, self.now_ms))
        if plan.starts:
            self.cluster.count_turns(whole, policy, plan)
            started = {self.cluster.row_of[start.job_id] for start in plan.starts}
            self.waiting = [row for row in self.waiting if row not in started]
        return plan

    def run(self, job_id: int, length_ms: int | None, *, tasks: int = 0, serial_millis: int = 0) -> None:
        """Say how long a running job takes from now on, as `VirtualCluster.run` does."""
        self.expect(
            self.cluster.run(job_id, self.now_ms, length_ms, tasks=tasks, serial_millis=serial_millis)
        )

    def ends(self, through_ms: int) -> Iterator[tuple[int, Requeue | None]]:
        """End the jobs that are due, one after the other, each at its own moment; a requeued job waits again."""
        while self._events and self._events[0][0] <= through_ms:
            self.now_ms, _, number = heapq.heappop(self._events)
            due_ms = self.cluster.due_ms(number)
            if due_ms is None or due_ms > self.now_ms:
                continue
            requeue = self.cluster.end(number, self.now_ms)
            if requeue is not None:
                self.waiting.append(requeue.row)
            yield number, requeue
