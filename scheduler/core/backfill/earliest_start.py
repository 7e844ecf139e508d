"""Earliest start: the first moment from which a waiting job fits for its whole length, and the nodes as of then."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import replace
from functools import reduce
from itertools import pairwise

import numpy as np

from quotas.core.resources import GPU_MILLIS
from scheduler.core.backfill.availability import Availability
from scheduler.core.backfill.backfill import FOREVER_MS
from scheduler.core.backfill.future_use import Free, after_ms, least_of
from scheduler.core.backfill.spare_levels import SpareWorkspace
from scheduler.core.cluster.index import ClusterIndex
from scheduler.core.columns import Bools, Ints
from scheduler.core.context.cycle_context import CycleContext
from scheduler.core.placement.candidates import Candidates
from scheduler.core.placement.equivalence import JobClass
from scheduler.core.placement.filters import FilterQuery, ResourceFilter, StaticFilter, not_reserved
from scheduler.core.placement.gang_layout import fit_on


class EarliestStart:
    """The search for the first moment after now from which the pending job in a row fits for its whole length.

    The job can begin to fit only where something ends. Between two moments at which something begins, what fits at
    one moment also fits at every later one: there a binary search finds the first.
    """

    def __init__(
        self,
        context: CycleContext,
        availability: Availability,
        job_class: JobClass,
        row: int,
        length_ms: int,
        *,
        among: Bools | None = None,
    ) -> None:
        """With `among` on these nodes only."""
        self._context, self._availability = context, availability
        self._job_class, self._length_ms = job_class, length_ms
        self._barring = barring_of(context.cluster, row, length_ms)
        self._last_ms = _last_start_ms(context.cluster, job_class.query, length_ms)
        self._allowed = _allowed(context, job_class.query, among)

    def find(self) -> int | None:
        """None = never. FOREVER_MS when the job fits only once something ends whose end is unknown."""
        if not self._job_class.shape.is_possible:
            return None
        moments = self._moments()
        by_ms = self._availability.devices_by_ms(self._job_class.query, self._allowed)
        bound = int(np.searchsorted(moments, by_ms))

        def fits(place: int) -> bool:
            return self._fits_at(int(moments[place]))

        for begin, last in self._stretches(moments):
            first = max(begin, bound)
            if first >= last:
                continue
            if bound and fits(first):
                return int(moments[first])
            if fits(last - 1):
                return int(moments[bisect_left(range(first, last - 1), True, key=fits) + first])
        return None

    def _moments(self) -> Ints:
        """The moments after now at which something ends, ascending."""
        availability = self._availability
        moments = availability.ends_on(self._allowed)
        more = [use.until_ms for use in (*availability.started, *availability.reserved)]
        more += [until for _, until, _ in self._barring]
        if more:
            moments = np.sort(np.concatenate([moments, np.array(more, dtype=np.int64)]))
        moments = moments[np.diff(moments, prepend=0) != 0]
        later: Ints = moments[(moments > self._context.cluster.snapshot.now_ms) & (moments <= self._last_ms)]
        return later

    def _stretches(self, moments: Ints) -> Iterator[tuple[int, int]]:
        """(first, last + 1) of the places of moments between which nothing begins."""
        reserved = self._availability.reserved
        begins = sorted(
            {use.from_ms for use in reserved}
            | {use.from_ms - self._length_ms + 1 for use in reserved}
            | {start for start, _, _ in self._barring}
        )
        return pairwise([0, *np.searchsorted(moments, begins).tolist(), len(moments)])

    def _fits_at(self, at_ms: int) -> bool:
        cluster, job_class = self._context.cluster, self._job_class
        barring = _barring_at(self._barring, at_ms)
        query = replace(job_class.query, reservation_rows=barring)
        free = free_through(self._context, self._availability, query, at_ms, after_ms(at_ms, self._length_ms))
        allowed = self._allowed
        if (kept := not_reserved(query, cluster)) is not None:
            allowed = allowed & kept
        slots = slots_in(job_class.query, self._context, free, allowed)
        return fit_on(slots, job_class.shape, cluster)


def candidates_at(
    context: CycleContext,
    availability: Availability,
    job_class: JobClass,
    row: int,
    at_ms: int,
    length_ms: int,
) -> Candidates:
    """The nodes for the pending job in a row, with what they have free from a moment on for its whole length.

    Of other jobs, for affinity terms, only those count that ran before the cycle; see `Workspace.follow`.
    """
    barring = _barring_at(barring_of(context.cluster, row, length_ms), at_ms)
    query = replace(job_class.query, reservation_rows=barring)
    free = free_through(context, availability, query, at_ms, after_ms(at_ms, length_ms))
    return Candidates(query, SpareWorkspace(context.cluster, free), context.rules_of(query))


def free_through(
    context: CycleContext, availability: Availability, query: FilterQuery, from_ms: int, until_ms: int
) -> Free:
    """What is free for the jobs of a query all the time from one moment to another."""
    view = context.parts.view_of(query)
    if view is None:
        return availability.free_through(from_ms, until_ms)
    begins = {hold.from_ms for hold in availability.reserved if from_ms < hold.from_ms < until_ms}
    begins |= {from_ms, *context.parts.begins(view, from_ms, until_ms)}
    return reduce(
        Free.least,
        [least_of(availability.free_at(at_ms), context.parts.kept(view, at_ms)) for at_ms in sorted(begins)],
    )


def _last_start_ms(cluster: ClusterIndex, query: FilterQuery, length_ms: int) -> int:
    """The last moment at which a job of this length may start: inside a reservation it is over with it."""
    return (
        FOREVER_MS
        if query.inside < 0
        else cluster.snapshot.reservations.ends_ms.item(query.inside) - length_ms
    )


def slots_in(query: FilterQuery, context: CycleContext, free: Free, allowed: Bools) -> Ints:
    """How many tasks of a query each allowed node could take if exactly this were free."""
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
    """The class as it asks now: without the GPU models that its quota is short of."""
    return job_class if context.asks_whole(job_class) else job_class._replace(query=context.query(job_class))


def barring_of(cluster: ClusterIndex, row: int, length_ms: int) -> list[tuple[int, int, int]]:
    """(from, until, reservation row): the job in this row, started in between, may not use the reserved nodes."""
    reservations, pending = cluster.snapshot.reservations, cluster.snapshot.pending
    barring: list[tuple[int, int, int]] = []
    for number in range(len(reservations)):
        mine = reservations.magnetic.item(number) and (
            pending.project_id.item(row) in reservations.project_ids[number]
            or pending.user_id.item(row) in reservations.user_ids[number]
        )
        inside = pending.reservation_id.item(row) > 0
        if not (mine or inside or pending.id.item(row) in reservations.job_ids[number]):
            starts, ends = reservations.starts_ms.item(number), reservations.ends_ms.item(number)
            begin = cluster.snapshot.now_ms if length_ms == FOREVER_MS else starts - length_ms + 1
            barring.append((begin, ends, number))
    return barring


def _barring_at(barring: list[tuple[int, int, int]], at_ms: int) -> tuple[int, ...]:
    """The rows of the reservations that bar a job which starts at this moment."""
    return tuple(number for begin, until, number in barring if begin <= at_ms < until)


def _allowed(context: CycleContext, query: FilterQuery, among: Bools | None) -> Bools:
    """The nodes that every static filter but that of reservations lets through, where other jobs are now."""
    cluster = context.cluster
    allowed = np.ones(cluster.node_count, dtype=np.bool_) if among is None else among
    for rule in context.rules_of(query).gates:
        if isinstance(rule, StaticFilter) and rule.name != "reserved":
            mask = rule.keep(query, cluster)
            allowed = allowed if mask is None else allowed & mask
    affinity_state = context.workspace.affinity_state
    if affinity_state is not None and cluster.affinity.is_bound(query.who):
        allowed = allowed & (affinity_state.open(query.who) > 0)
    return allowed
