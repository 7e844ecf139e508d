"""Availability: what each node and device will have free at each moment."""

from __future__ import annotations

from bisect import bisect_right
from operator import itemgetter

import numpy as np

from scheduler.core.backfill.backfill import FOREVER_MS
from scheduler.core.backfill.future_use import Free, FutureUse, free_in
from scheduler.core.cluster.index import ClusterIndex
from scheduler.core.cluster.workspace import Workspace
from scheduler.core.columns import Bools, Ints, rows_of_groups
from scheduler.core.placement.filters import FilterQuery


class Availability:
    """Free capacity over time: it grows as running jobs end, and shrinks where reserved starts begin.

    Idea: free at a moment = free now, plus what all that ends by then holds, minus what the reserved starts hold that
    have begun. It is computed by columns for the few moments that a caller asks about, never for all.
    """

    def __init__(self, cluster: ClusterIndex, workspace: Workspace) -> None:
        self._cluster = cluster
        self._workspace = workspace
        ends = cluster.allocations.end_ms
        known = np.where(ends > 0, np.maximum(ends, cluster.snapshot.now_ms + 1), FOREVER_MS)
        order = cluster.allocations.by_end
        allocations = cluster.snapshot.allocations
        self._ends: Ints = known[order]
        self._node = cluster.allocations.node[order]
        self._cpu, self._memory = allocations.cpu_millis[order], allocations.memory_mib[order]
        held = allocations.storage_mib
        self._storage: Ints | None = held[order] if held.any() else None  # None = no task holds any
        #: The NUMA domain that each is bound to; None when no job demands one.
        self._domain: Ints | None = None
        if cluster.asks_one_domain:
            self._domain = np.array(cluster.numa.of_allocations(), dtype=np.int64)[order]
        allocation, device = cluster.allocations.devices
        device_order = rows_of_groups(order, np.bincount(allocation, minlength=len(order)))
        self._device: Ints = device[device_order]
        self._device_ends: Ints = known[allocation[device_order]]
        self._device_millis: Ints = allocations.gpu_millis[allocation[device_order]]
        #: What the workspace has handed out in this cycle, and what reserved starts will hold.
        self.started: list[FutureUse] = []
        self.reserved: list[FutureUse] = []
        self._known: dict[int, Free] = {}  # by moment, for as long as nothing starts or is reserved
        self._known_of = (0, 0, 0)
        #: (moment, allocations and devices released by then, what is free), for as long as nothing starts.
        self._ended: list[tuple[int, int, int, Free]] = []
        self._ended_of = -1

    def free_at(self, at_ms: int) -> Free:
        """What is free at a moment; not to be written to."""
        state = (self._workspace.columns.log_length, len(self.started), len(self.reserved))
        if state != self._known_of:
            self._known.clear()
            self._known_of = state
        if at_ms not in self._known:
            self._known[at_ms] = self._free_at(at_ms)
        return self._known[at_ms]

    def _free_at(self, at_ms: int) -> Free:
        free = self._ended_by(at_ms)
        for hold in self.started:
            if hold.until_ms <= at_ms:
                free.take(hold, -1)
        for hold in self.reserved:
            if hold.from_ms <= at_ms < hold.until_ms:
                free.take(hold)
        return free

    def _ended_by(self, at_ms: int) -> Free:
        """What is free now and what is released by then by jobs that ran before the cycle.

        It is worked out from the last moment before that is known.
        """
        cluster, log_length = self._cluster, self._workspace.columns.log_length
        if self._ended_of != log_length:
            self._ended = [(0, 0, 0, free_in(self._workspace))]
            self._ended_of = log_length
        place = bisect_right(self._ended, at_ms, key=itemgetter(0))
        _, begin, device_begin, before = self._ended[place - 1]
        some = slice(begin, int(np.searchsorted(self._ends, at_ms, side="right")))
        devices = slice(device_begin, int(np.searchsorted(self._device_ends, at_ms, side="right")))
        nodes = self._node[some]

        def grown(column: Ints, ending: Ints | None) -> Ints:
            if ending is None:
                return column
            freed = np.bincount(nodes, weights=ending[some], minlength=cluster.node_count)
            return column + freed.astype(np.int64)

        freed = np.bincount(
            self._device[devices], weights=self._device_millis[devices], minlength=len(cluster.devices.id)
        )
        free = Free(
            grown(before.cpu_millis, self._cpu),
            grown(before.memory_mib, self._memory),
            grown(before.storage_mib, self._storage),
            before.gpu_used - freed.astype(np.int64),
            before.domains if self._domain is None else self._unbound(before.domains, self._domain, some),
        )
        self._ended.insert(place, (at_ms, some.stop, devices.stop, free))
        return free.copy() if self.started or self.reserved else free

    def _unbound(self, free: Ints, domain: Ints, some: slice) -> Ints:
        """What is not bound in NUMA domains once these allocations have ended."""
        bound, count = domain[some] >= 0, len(free) // 2
        where = domain[some][bound]
        ended = [
            np.bincount(where, weights=held[some][bound], minlength=count)
            for held in (self._cpu, self._memory)
        ]
        return free + np.concatenate(ended).astype(np.int64)

    def free_through(self, from_ms: int, until_ms: int) -> Free:
        """What is free all the time from one moment to another: it only shrinks where a reserved start begins."""
        free = self.free_at(from_ms)
        for begin in sorted({hold.from_ms for hold in self.reserved if from_ms < hold.from_ms < until_ms}):
            free = free.least(self.free_at(begin))
        return free

    def ends_on(self, allowed: Bools) -> Ints:
        """When what ran before the cycle ends on these nodes, ascending; FOREVER_MS where that is unknown."""
        return self._ends[allowed[self._node]]

    def devices_by_ms(self, query: FilterQuery, allowed: Bools) -> int:
        """A moment before which no allowed node has as many idle devices as one task needs; 0 = unknown.

        Reserved starts only take away, so the moment is never too late.
        """
        cluster, request = self._cluster, query.request
        wanted = request.per_task.gpus
        if not wanted or request.shares_gpu or self.started:
            return 0
        used, count = self._workspace.devices.used, len(cluster.devices.id)
        held = np.bincount(self._device, weights=self._device_millis, minlength=count)
        # Of each device, which of all ends makes it idle: 0 = it is, or its holder is not known; `never` = none.
        never = len(self._device) + 1
        end = np.where(used == 0, 0, never)
        end[self._device] = np.arange(1, never)  # in order: the last to end decides
        end[(held > 0) & (held != used)] = 0
        usable = cluster.devices.matching(request.gpu_model, request.gpu_memory_mib) & cluster.devices.healthy
        rows = np.flatnonzero(usable & allowed[cluster.devices.node])
        in_order = cluster.devices.node[rows] * (never + 1) + end[rows]
        in_order.sort()
        counts = np.bincount(cluster.devices.node[rows], minlength=cluster.node_count)
        last = (np.cumsum(counts) - counts + wanted - 1)[counts >= wanted]
        first_end = int((in_order[last] % (never + 1)).min(initial=never))
        if first_end == never:
            return FOREVER_MS
        return self._device_ends.item(first_end - 1) if first_end else 0
