"""Reserved parts: what reservations of parts of nodes keep from the jobs outside them, at every moment."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from quotas.core.resources import GPU_MILLIS
from scheduler.core.cluster.index import ClusterIndex
from scheduler.core.cluster.workspace import Trial
from scheduler.core.columns import Bools, Ints
from scheduler.core.placement.filters import FilterQuery

_FOREVER_MS = int(np.iinfo(np.int64).max)


class View(NamedTuple):
    """By which reservations a job sees less than nodes have free; rows of reservations of parts of nodes."""

    inside: int  # the reservation that the job names; -1 = none of parts
    barring: tuple[int, ...]  # those that it runs outside of while they are in force


class PartUse(NamedTuple):
    """What one task holds on a node until a moment."""

    row: int
    cpu_millis: int
    memory_mib: int
    until_ms: int


class Kept(NamedTuple):
    """What the jobs of a view do not get at one moment: an entry a node, and of devices an entry a device."""

    cpu_millis: Ints
    memory_mib: Ints
    devices: Bools
    most_cpu_millis: Ints | None  # inside a reservation: what is left of it; None = no such bound
    most_memory_mib: Ints | None

    def cpu_left(self, free: Ints, rows: Ints | slice = slice(None)) -> Ints:
        """What they get of free CPU on these nodes."""
        return _left(free, self.cpu_millis, self.most_cpu_millis, rows)

    def memory_left(self, free: Ints, rows: Ints | slice = slice(None)) -> Ints:
        return _left(free, self.memory_mib, self.most_memory_mib, rows)

    def devices_used(self, used: Ints) -> Ints:
        """Thousandths of devices that are held or closed to them."""
        closed: Ints = np.where(self.devices, np.maximum(used, GPU_MILLIS), used)
        return closed


def _left(free: Ints, kept: Ints, most: Ints | None, rows: Ints | slice) -> Ints:
    left: Ints = free - kept[rows]
    if most is not None:
        left = np.minimum(left, most[rows])
    return np.maximum(left, 0)


class ReservedParts:
    """The reservations of parts of nodes in one cycle, and what the jobs inside them use.

    A job outside leaves a reservation that is in force what its jobs do not use yet, and never has its GPUs. A job
    inside has what is left of its reservation. `log` holds the row of each node of which more became known.
    """

    def __init__(self, cluster: ClusterIndex) -> None:
        self._cluster = cluster
        reservations = cluster.snapshot.reservations
        self._rows = [row for row, parts in enumerate(reservations.parts) if parts]
        self.is_there = bool(self._rows)
        self.log: list[int] = []
        self._uses: dict[int, list[PartUse]] = {row: [] for row in self._rows}
        self._started: list[tuple[int, PartUse]] = []
        self._kept: dict[tuple[View, int], Kept] = {}
        self._released: dict[int, tuple[Ints, Ints]] = {}
        self._parts = {row: self._read_parts(row) for row in self._rows}
        if self.is_there:
            self._adopt_running()

    def _read_parts(self, row: int) -> tuple[Ints, Ints, Bools]:
        """CPU and memory that a reservation holds of each node, and its devices."""
        cluster = self._cluster
        cpu = np.zeros(cluster.node_count, dtype=np.int64)
        memory = np.zeros(cluster.node_count, dtype=np.int64)
        devices = np.zeros(len(cluster.devices.id), dtype=np.bool_)
        for node_id, cpu_millis, memory_mib, device_ids in cluster.snapshot.reservations.parts[row]:
            if node_id in cluster.nodes.row:  # it may name nodes of another scope
                cpu[cluster.nodes.row[node_id]] += cpu_millis
                memory[cluster.nodes.row[node_id]] += memory_mib
            for device_id in device_ids:
                if device_id in cluster.devices.row:
                    devices[cluster.devices.row[device_id]] = True
        return cpu, memory, devices

    def _adopt_running(self) -> None:
        """Count what running jobs inside hold, each until its limit."""
        snapshot, allocations = self._cluster.snapshot, self._cluster.snapshot.allocations
        row_of = {number: row for row, number in enumerate(snapshot.reservations.id.tolist())}
        inside = dict(
            zip(snapshot.running.id.tolist(), snapshot.running.reservation_id.tolist(), strict=True)
        )
        for place in range(len(allocations)) if snapshot.running.reservation_id.any() else ():
            row = row_of.get(inside[allocations.job_id.item(place)], -1)
            if row in self._uses:
                until_ms = self._limit_end_ms(place) or _FOREVER_MS
                use = PartUse(
                    self._cluster.allocations.node.item(place),
                    allocations.cpu_millis.item(place),
                    allocations.memory_mib.item(place),
                    until_ms,
                )
                self._uses[row].append(use)

    def _limit_end_ms(self, place: int) -> int:
        index = self._cluster.allocations
        return index.end_ms.item(place) if index.has_limit.item(place) else 0

    def view_of(self, query: FilterQuery) -> View | None:
        """How the jobs of a query see nodes; None = as they are."""
        if not self.is_there or query.whole_nodes:
            return None
        barring = tuple([row for row in query.reservation_rows if row in self._uses])
        inside = query.inside if query.inside in self._uses else -1
        return View(inside, barring) if barring or inside >= 0 else None

    def view_of_running(self, reservation_id: int, until_ms: int) -> View | None:
        """How a running job that asks for more until a moment sees nodes; None = as they are."""
        reservations = self._cluster.snapshot.reservations
        barring = tuple(
            row
            for row in self._rows
            if reservations.id.item(row) != reservation_id and reservations.starts_ms.item(row) < until_ms
        )
        return View(-1, barring) if barring else None

    def begins(self, view: View, from_ms: int, until_ms: int = _FOREVER_MS) -> list[int]:
        """The moments after `from_ms` and before `until_ms` at which a reservation of a view comes into force."""
        starts = self._cluster.snapshot.reservations.starts_ms
        return sorted({at for row in view.barring if from_ms < (at := starts.item(row)) < until_ms})

    def kept(self, view: View, at_ms: int) -> Kept:
        """What the jobs of a view do not get at a moment."""
        known = self._kept.get((view, at_ms))
        if known is None:
            known = self._kept[view, at_ms] = self._find_kept(view, at_ms)
        return known

    def _find_kept(self, view: View, at_ms: int) -> Kept:
        cluster, reservations = self._cluster, self._cluster.snapshot.reservations
        cpu = np.zeros(cluster.node_count, dtype=np.int64)
        memory = np.zeros(cluster.node_count, dtype=np.int64)
        devices = np.zeros(len(cluster.devices.id), dtype=np.bool_)
        for row in view.barring:
            if reservations.starts_ms.item(row) <= at_ms < reservations.ends_ms.item(row):
                cpu_left, memory_left = self._unused(row, at_ms)
                cpu += cpu_left
                memory += memory_left
                devices |= self._parts[row][2]
        if view.inside < 0:
            return Kept(cpu, memory, devices, None, None)
        return Kept(cpu, memory, devices | ~self._parts[view.inside][2], *self._unused(view.inside, at_ms))

    def _unused(self, row: int, at_ms: int) -> tuple[Ints, Ints]:
        """CPU and memory of a reservation, of each node, that the jobs inside do not hold at a moment."""
        cpu, memory = self._parts[row][0].copy(), self._parts[row][1].copy()
        for use in self._uses[row]:
            if use.until_ms > at_ms:
                cpu[use.row] -= use.cpu_millis
                memory[use.row] -= use.memory_mib
        return np.maximum(cpu, 0), np.maximum(memory, 0)

    def released_by(self, at_ms: int) -> tuple[Ints, Ints]:
        """CPU and memory that jobs release by a moment, of each node: those that ran before the cycle and have a time
        limit, and those that were started in the cycle.
        """
        known = self._released.get(at_ms)
        if known is None:
            index, held = self._cluster.allocations, self._cluster.snapshot.allocations
            ending = (index.end_ms > 0) & index.has_limit
            ending &= np.maximum(index.end_ms, self._cluster.snapshot.now_ms + 1) <= at_ms
            amounts = [
                np.bincount(
                    index.node[ending], weights=column[ending], minlength=self._cluster.node_count
                ).astype(np.int64)
                for column in (held.cpu_millis, held.memory_mib)
            ]
            for _, use in self._started:
                if use.until_ms <= at_ms:
                    amounts[0][use.row] += use.cpu_millis
                    amounts[1][use.row] += use.memory_mib
            known = self._released[at_ms] = (amounts[0], amounts[1])
        return known

    def start(self, inside: int, uses: list[PartUse]) -> None:
        """Count the tasks of a job that starts in this cycle, or has a reserved start; `inside` as in `View`."""
        for use in uses if self.is_there else ():
            self._started.append((inside, use))
            if inside in self._uses:
                self._uses[inside].append(use)
            self.log.append(use.row)
        self._kept.clear()
        self._released.clear()

    def reserve(self, inside: int, uses: list[PartUse]) -> None:
        """Count what a reserved start of a job inside will hold: no other job inside gets it."""
        if inside in self._uses:
            self._uses[inside].extend(uses)
            self.log.extend(use.row for use in uses)
            self._kept.clear()

    @contextmanager
    def trial(self, trial: Trial) -> Iterator[None]:
        """What `start` counts inside stays only if the trial of the workspace is kept."""
        before = len(self._started)
        yield
        if not trial.kept:
            for inside, use in self._started[before:]:
                if inside in self._uses:
                    self._uses[inside].remove(use)
                self.log.append(use.row)
            del self._started[before:]
            self._kept.clear()
            self._released.clear()
