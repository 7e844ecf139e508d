"""Availability: what each node and device will have free at each moment, and when a waiting job could start."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from itertools import pairwise
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from quotas.core.resources import GPU_MILLIS, Resources
from scheduler.core.backfill.backfill import FOREVER_MS
from scheduler.core.cluster.index import ClusterIndex
from scheduler.core.cluster.workspace import NodeAmounts, Workspace
from scheduler.core.columns import Bools, Ints, stable_order
from scheduler.core.context.cycle_context import CycleContext
from scheduler.core.placement.equivalence import JobClass
from scheduler.core.placement.filters import FilterQuery, ResourceFilter, StaticFilter
from scheduler.core.placement.gang_layout import fit_on


@dataclass(slots=True)
class Free:
    """Amounts of one moment, a row a node or device; `gpu_used` is in thousandths."""

    cpu_millis: Ints
    memory_mib: Ints
    storage_mib: Ints
    gpu_used: Ints
    domains: Ints  # CPU and then memory of every NUMA domain that is not bound; empty when no job demands one

    def take(self, hold: FutureUse, sign: int = 1) -> None:
        """Hand one task's amounts out; `sign` -1 gives them back."""
        row, per_task = hold.row, hold.per_task
        self.cpu_millis[row] -= sign * per_task.cpu_millis
        self.memory_mib[row] -= sign * per_task.memory_mib
        if per_task.storage_mib:
            self.storage_mib[row] -= sign * per_task.storage_mib
        for device in hold.devices:
            self.gpu_used[device] += sign * hold.gpu_millis
        for domain, held in hold.bound(len(self.domains)):
            self.domains[domain] -= sign * held

    def copy(self) -> Free:
        return Free(
            self.cpu_millis.copy(), self.memory_mib.copy(), self.storage_mib.copy(), self.gpu_used.copy(),
            self.domains.copy(),
        )  # fmt: skip

    def least(self, other: Free) -> Free:
        """What is free at both moments."""
        return Free(
            np.minimum(self.cpu_millis, other.cpu_millis),
            np.minimum(self.memory_mib, other.memory_mib),
            np.minimum(self.storage_mib, other.storage_mib),
            np.maximum(self.gpu_used, other.gpu_used),
            np.minimum(self.domains, other.domains),
        )


class FutureUse(NamedTuple):
    """One task of a job that starts in this cycle (from = now) or was promised a start."""

    from_ms: int
    until_ms: int
    row: int
    per_task: Resources
    devices: list[int]
    gpu_millis: int
    domain: int = -1  # the NUMA domain that it is bound to

    def bound(self, places: int) -> tuple[tuple[int, int], ...]:
        """(place, amount) of what it holds in a column of so many places: CPUs of all domains, then memory."""
        if self.domain < 0:
            return ()
        per_task = self.per_task
        return (self.domain, per_task.cpu_millis), (places // 2 + self.domain, per_task.memory_mib)


class Availability:
    """Free capacity over time: it grows as running jobs end, and shrinks where promises begin.

    Idea: free at a moment = free now, plus all that ends by then, minus all promised that has begun. It is
    computed by columns for the few moments that anybody asks about, never for all.
    """

    def __init__(self, cluster: ClusterIndex, workspace: Workspace) -> None:
        self._cluster = cluster
        self._workspace = workspace
        ends = cluster.allocations.end_ms
        known = np.where(ends > 0, np.maximum(ends, cluster.snapshot.now_ms + 1), FOREVER_MS)
        order = stable_order(known)
        allocations = cluster.snapshot.allocations
        self._ends: Ints = known[order]
        self._node = cluster.allocations.node[order]
        self._cpu, self._memory = allocations.cpu_millis[order], allocations.memory_mib[order]
        held = allocations.storage_mib
        self._storage: Ints | None = held[order] if held.any() else None  # None = nobody holds any
        #: The NUMA domain that each is bound to; None where no job demands one.
        self._domain: Ints | None = None
        if cluster.asks_one_domain:
            self._domain = np.array(cluster.numa.of_allocations(), dtype=np.int64)[order]
        allocation, device = cluster.allocations.devices
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        device_order = stable_order(place[allocation])
        self._device: Ints = device[device_order]
        self._device_ends: Ints = known[allocation[device_order]]
        self._device_millis: Ints = allocations.gpu_millis[allocation[device_order]]
        self._started: list[FutureUse] = []
        self._promised: list[FutureUse] = []
        self._known: dict[int, Free] = {}  # by moment, for as long as nothing starts or is promised
        self._known_of = (0, 0, 0)
        #: (moment, allocations and devices given back by then, what is free), for as long as nothing starts.
        self._ended: list[tuple[int, int, int, Free]] = []
        self._ended_of = -1

    def started(self, hold: FutureUse) -> None:
        """Something that the workspace has handed out in this cycle, and its end."""
        self._started.append(hold)

    def promised(self, hold: FutureUse) -> None:
        self._promised.append(hold)

    def free_now(self) -> Free:
        workspace = self._workspace
        return Free(
            workspace.free_cpu_millis,
            workspace.free_memory_mib,
            workspace.free_storage_mib,
            workspace.devices.used,
            np.array(workspace.numa.free if workspace.numa is not None else [], dtype=np.int64),
        )

    def free_at(self, at_ms: int) -> Free:
        """What is free at a moment; not to be written to."""
        state = (self._workspace.log_length, len(self._started), len(self._promised))
        if state != self._known_of:
            self._known.clear()
            self._known_of = state
        if at_ms not in self._known:
            self._known[at_ms] = self._free_at(at_ms)
        return self._known[at_ms]

    def _free_at(self, at_ms: int) -> Free:
        free = self._ended_by(at_ms)
        for hold in self._started:
            if hold.until_ms <= at_ms:
                free.take(hold, -1)
        for hold in self._promised:
            if hold.from_ms <= at_ms < hold.until_ms:
                free.take(hold)
        return free

    def _ended_by(self, at_ms: int) -> Free:
        """What is free now and given back by then by what ran before: from the last moment before it that is known."""
        cluster, log_length = self._cluster, self._workspace.log_length
        if self._ended_of != log_length:
            self._ended = [(0, 0, 0, self.free_now())]
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
        return free.copy() if self._started or self._promised else free

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
        """What is free all the time from one moment to another: it only shrinks where a promise begins."""
        free = self.free_at(from_ms)
        for begin in sorted({hold.from_ms for hold in self._promised if from_ms < hold.from_ms < until_ms}):
            free = free.least(self.free_at(begin))
        return free

    def earliest_ms(
        self,
        context: CycleContext,
        job_class: JobClass,
        row: int,
        length_ms: int,
        *,
        among: Bools | None = None,
    ) -> int | None:
        """The first moment after now from which a pending job fits for its whole length; None = never.

        With `among` on these nodes only. FOREVER_MS when it only fits once something ends whose end nobody knows.
        """
        if not job_class.shape.is_possible:
            return None
        now_ms = self._cluster.snapshot.now_ms
        rules, cluster = context.rules_of(job_class.query), self._cluster
        allowed = np.ones(cluster.node_count, dtype=np.bool_) if among is None else among
        for gate in rules.gates:
            if isinstance(gate, StaticFilter) and gate.name != "reserved":
                mask = gate.keep(job_class.query, cluster)
                allowed = allowed if mask is None else allowed & mask
        affinity_state = self._workspace.affinity_state
        if affinity_state is not None and cluster.affinity.is_bound(job_class.query.who):
            allowed = allowed & (affinity_state.open(job_class.query.who) > 0)  # where others are now
        barring = barring_of(cluster, row, length_ms)
        holds = [*self._started, *self._promised]
        moments = self._ends[allowed[self._node]]  # in order
        more = [hold.until_ms for hold in holds] + [until for _, until, _ in barring]
        if more:
            moments = np.sort(np.concatenate([moments, np.array(more, dtype=np.int64)]))
        moments = moments[np.diff(moments, prepend=0) != 0]
        moments = moments[moments > now_ms]
        # Between these nothing begins, so that whatever fits at one moment also fits at every later one.
        begins = sorted(
            {hold.from_ms for hold in self._promised}
            | {hold.from_ms - length_ms + 1 for hold in self._promised}
            | {start for start, _, _ in barring}
        )
        cuts = [0, *np.searchsorted(moments, begins).tolist(), len(moments)]

        def fits(place: int) -> bool:
            at_ms = int(moments[place])
            free = self.free_through(at_ms, after_ms(at_ms, length_ms))
            open_ = allowed
            for start, until, reservation in barring:
                if start <= at_ms < until:
                    open_ = open_ & ~cluster.nodes.reserved((reservation,))
            slots = slots_in(job_class.query, context, free, open_)
            return fit_on(slots, job_class.shape, cluster)

        bound = int(np.searchsorted(moments, self._devices_by_ms(job_class.query, allowed)))
        for begin, last in pairwise(cuts):
            first = max(begin, bound)
            if first >= last:
                continue
            if bound and fits(first):
                return int(moments[first])
            if fits(last - 1):
                return int(moments[bisect_left(range(first, last - 1), True, key=fits) + first])
        return None

    def _devices_by_ms(self, query: FilterQuery, allowed: Bools) -> int:
        """A moment before which no allowed node has as many idle devices as one task needs; 0 = nobody knows.

        Promises only take away, so it is never too late.
        """
        cluster, request = self._cluster, query.request
        wanted = request.per_task.gpus
        if not wanted or request.shares_gpu or self._started:
            return 0
        used, count = self._workspace.devices.used, len(cluster.devices.id)
        held = np.bincount(self._device, weights=self._device_millis, minlength=count)
        idle_ms = np.where(used == 0, 0, FOREVER_MS)
        idle_ms[self._device] = self._device_ends  # in order: the last to end decides
        idle_ms[(held > 0) & (held != used)] = 0  # who holds it is not known
        usable = cluster.devices.matching(request.gpu_model, request.gpu_memory_mib) & cluster.devices.healthy
        rows = np.flatnonzero(usable & allowed[cluster.devices.node])
        rows = rows[stable_order(idle_ms[rows])]
        rows = rows[stable_order(cluster.devices.node[rows])]
        counts = np.bincount(cluster.devices.node[rows], minlength=cluster.node_count)
        last = (np.cumsum(counts) - counts + wanted - 1)[counts >= wanted]
        return int(idle_ms[rows[last]].min(initial=FOREVER_MS))

    def space(self, free: Free) -> Workspace:
        """A workspace in which just this is free."""
        return SpareWorkspace(self._cluster, free)


class SpareWorkspace(Workspace):
    """Scratch capacity of another moment than now."""

    def __init__(self, cluster: ClusterIndex, free: Free) -> None:
        super().__init__(
            cluster, NodeAmounts(free.cpu_millis, free.memory_mib, free.storage_mib, free.gpu_used)
        )
        if self.numa is not None:
            self.numa.become(free.domains)

    def match(self, row: int, now: Workspace, later: Free) -> None:
        """Let a node have free what it has both now and later."""
        cpu_millis, memory_mib, storage_mib, used = now.free_on(row)
        first, last = self.cluster.devices.first[row], self.cluster.devices.first[row + 1]
        if used:
            used = list(map(max, used, later.gpu_used[first:last].tolist()))
        if self.numa is not None and now.numa is not None:
            self.numa.match(row, now.numa.free, later.domains)
        self.set_free(
            row,
            min(cpu_millis, later.cpu_millis.item(row)),
            min(memory_mib, later.memory_mib.item(row)),
            min(storage_mib, later.storage_mib.item(row)),
            used,
        )


def slots_in(query: FilterQuery, context: CycleContext, free: Free, allowed: Bools) -> Ints:
    """How many tasks of a query each allowed node could take, were just this free."""
    cluster, request = context.cluster, query.request
    per_task = request.per_task
    slots = np.where(allowed, np.iinfo(np.int64).max, 0)
    gates = {gate.name for gate in context.rules_of(query).gates if isinstance(gate, ResourceFilter)}
    for name, column in (
        ("cpu_millis", free.cpu_millis), ("memory_mib", free.memory_mib), ("storage_mib", free.storage_mib),
    ):  # fmt: skip
        need = getattr(per_task, name)
        if need and name in gates:
            np.minimum(slots, column // need, out=slots)
    if per_task.gpus and "gpus" in gates:
        usable = cluster.devices.matching(request.gpu_model, request.gpu_memory_mib) & cluster.devices.healthy
        if request.shares_gpu:
            shares = np.where(usable, (GPU_MILLIS - free.gpu_used) // per_task.gpu_millis, 0)
            count = np.bincount(cluster.devices.node, weights=shares, minlength=cluster.node_count).astype(
                np.int64
            )
        else:
            count = cluster.devices.per_node(usable & (free.gpu_used == 0)) // per_task.gpus
        np.minimum(slots, count, out=slots)
    if request.one_domain and "numa" in gates:
        np.minimum(slots, cluster.numa.slots(request, free.domains, free.gpu_used), out=slots)
    return np.maximum(slots, 0)


def open_now(context: CycleContext, job_class: JobClass) -> JobClass:
    """The class as it asks now: for no device of which its quota lets it have none as things are."""
    return job_class if context.asks_whole(job_class) else job_class._replace(query=context.query(job_class))


def barring_of(cluster: ClusterIndex, row: int, length_ms: int) -> list[tuple[int, int, int]]:
    """(from, until, reservation row): a job of this row that starts in between may not have those nodes."""
    reservations, pending = cluster.snapshot.reservations, cluster.snapshot.pending
    barring: list[tuple[int, int, int]] = []
    for number in range(len(reservations)):
        welcome = (
            pending.project_id.item(row) in reservations.project_ids[number]
            or pending.user_id.item(row) in reservations.user_ids[number]
            or pending.id.item(row) in reservations.job_ids[number]
        )
        if not welcome:
            starts, ends = reservations.starts_ms.item(number), reservations.ends_ms.item(number)
            begin = cluster.snapshot.now_ms if length_ms == FOREVER_MS else starts - length_ms + 1
            barring.append((begin, ends, number))
    return barring


def after_ms(at_ms: int, length_ms: int) -> int:
    return FOREVER_MS if length_ms >= FOREVER_MS - at_ms else at_ms + length_ms
