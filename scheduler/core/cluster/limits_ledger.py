"""The limits ledger: what jobs count on quota lines, queues, job arrays and pools, and what these still allow."""

from __future__ import annotations

import copy
from typing import NamedTuple

from quotas.core.limits import LimitTree
from scheduler.core.cluster.job_charges import LineCharges
from scheduler.core.cluster.quota_paths import QuotaPaths
from scheduler.core.snapshot.request_classes import RequestClass
from scheduler.core.snapshot.snapshot import Snapshot


class _Counts(NamedTuple):
    """All counts of a ledger at one moment."""

    used: list[int]
    kept: list[int]
    queue_running: list[int]
    pool_used: list[int]
    array_running: dict[int, int]


class LimitsLedger:
    """The counts of one cycle. `take` counts a job, and with `sign` -1 counts it no more.

    Budgets are not among them: what a job sets aside of a budget is not freed when the job ends.
    """

    def __init__(self, snapshot: Snapshot, paths: QuotaPaths) -> None:
        quotas, queues, pools = snapshot.quotas, snapshot.queues, snapshot.pools
        #: The quota lines: what is in use on each, and what may be.
        self.tree = LimitTree(
            parent=paths.parent,
            used=quotas.used.tolist(),
            hard=quotas.hard.tolist(),
            nominal=quotas.nominal.tolist(),
            borrowing_limit=quotas.borrowing_limit.tolist(),
            lending_limit=quotas.lending_limit.tolist(),
            enforce=quotas.enforce.tolist(),
            is_pool=quotas.is_pool.tolist(),
        )
        self.queue_running: list[int] = queues.running_jobs.tolist()
        #: The most jobs that each queue may run; 0 = any number.
        self.queue_bound: list[int] = queues.max_concurrent_jobs.tolist()
        self.pool_used: list[int] = pools.used.tolist()
        self._pool_capacity: list[int] = pools.capacity.tolist()
        self._pool_row = {name: row for row, name in enumerate(pools.name)}
        #: Array id -> how many of its jobs run.
        self.array_running: dict[int, int] = {}
        for array_id in snapshot.running.array_id[snapshot.running.array_id > 0].tolist():
            self.array_running[array_id] = self.array_running.get(array_id, 0) + 1

    def short_quota(self, charges: LineCharges) -> tuple[int, int] | None:
        """The first (line, amount) that the quota lines have no room for."""
        return self.tree.short(charges)

    def short_pool(self, request: RequestClass, tasks: int) -> tuple[str, int, int, int] | None:
        """The first extra of which a pool has too little: its name, what is needed, what is free, the capacity."""
        for name, amount in request.per_task.extras:
            row = self._pool_row.get(name)
            total = 0 if row is None else self._pool_capacity[row]
            free = 0 if row is None else max(total - self.pool_used[row], 0)
            if amount * tasks > free:
                return name, amount * tasks, free, total
        return None

    def pool_left(self, row: int) -> int:
        """What a pool has left; below 0 where more is in use than there is."""
        return self._pool_capacity[row] - self.pool_used[row]

    def queue_is_full(self, queue_row: int) -> bool:
        return 0 < self.queue_bound[queue_row] <= self.queue_running[queue_row]

    def array_is_full(self, array_id: int, bound: int) -> bool:
        """Whether an array runs as many jobs as `bound` allows; 0 allows any number."""
        return bound > 0 and self.array_running.get(array_id, 0) >= bound

    def admits(self, queue_row: int, charges: LineCharges, request: RequestClass, tasks: int) -> bool:
        """Whether queue, quota lines and pools have room for one more job."""
        # As `queue_is_full`, without a call: every start asks.
        if (
            0 < self.queue_bound[queue_row] <= self.queue_running[queue_row]
            or self.tree.short(charges) is not None
        ):
            return False
        return not request.per_task.extras or self.short_pool(request, tasks) is None

    def take(
        self,
        *,
        queue_row: int,
        array_id: int,
        charges: LineCharges,
        request: RequestClass,
        tasks: int,
        sign: int = 1,
    ) -> None:
        """Count one job on its quota lines, queue, array (0 = none) and pools; `sign` -1 takes it off these."""
        self.tree.take(charges, sign=sign)
        self.queue_running[queue_row] += sign
        if array_id:
            self.array_running[array_id] = self.array_running.get(array_id, 0) + sign
        if request.per_task.extras:
            self.take_extras(request, tasks, sign=sign)

    def take_extras(self, request: RequestClass, tasks: int, *, sign: int = 1) -> None:
        """Count some tasks on the pools only."""
        for name, amount in request.per_task.extras:
            if name in self._pool_row:
                self.pool_used[self._pool_row[name]] += sign * amount * tasks

    def copy(self) -> LimitsLedger:
        """The same bounds, with counts of their own."""
        other = copy.copy(self)
        other.tree = self.tree.copy()
        other.queue_running = list(self.queue_running)
        other.pool_used = list(self.pool_used)
        other.array_running = dict(self.array_running)
        return other

    def counts(self) -> _Counts:
        """What is counted now, for `restore`."""
        return _Counts(
            list(self.tree.used),
            list(self.tree.kept),
            list(self.queue_running),
            list(self.pool_used),
            dict(self.array_running),
        )

    def restore(self, counts: _Counts) -> None:
        """Count what was counted then, in the same lists: callers hold these."""
        self.tree.used[:], self.tree.kept[:] = counts.used, counts.kept
        self.queue_running[:], self.pool_used[:] = counts.queue_running, counts.pool_used
        self.array_running.clear()
        self.array_running.update(counts.array_running)
