"""Fragmentation: how much idle GPU the usual requests could still use, and how a placement changes that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from quotas.core.resources import GPU_MILLIS
from scheduler.core.cluster.free_columns import Floats
from scheduler.core.cluster.index import ClusterIndex
from scheduler.core.cluster.workspace import Workspace
from scheduler.core.columns import Bools, Ints, rows_of
from scheduler.core.placement.filters import FilterQuery
from scheduler.core.placement.node_view import NodeView
from scheduler.core.snapshot.request_classes import RequestClass

#: Requests that count as usual: the most frequent ones, whatever else is asked for.
_USUAL: Final = 96

#: Losing this many thousandths of a GPU more than the task takes scores 0, gaining as many scores 100.
_SCALE: Final = 16 * GPU_MILLIS


@dataclass(frozen=True, slots=True)
class Usual:
    """The usual GPU requests of a cluster: what one task of each needs, and how often it is asked for.

    A shape is a share of one device, a number of whole ones, or a slice; requests differ in CPU and memory as well.
    """

    total: int  # how many tasks ask for them
    weight: Floats  # of each request: tasks times the GPU that one holds
    cpu_millis: Ints
    memory_mib: Ints
    shape: Ints  # of each request, into shares followed by wholes and slices
    shares: Ints
    wholes: Ints
    slices: tuple[str, ...]
    accepts: Bools  # node, request: whether the node has such devices at all


class Prospects:
    """For each node, the GPU that the usual requests could still get from it.

    What a prospect loses beyond what a task takes has become a fragment. For one usual request it is the mean
    of two answers: what its devices hold of it if CPU and memory allow one more task (as FGD asks, USENIX
    ATC 2023), and what it gets until one of the three runs out, which sees CPU end before the GPUs do. On
    the openb trace the mean of both leaves fewer fragments than either (docs/explanation/placement.md).
    All sums are of whole numbers below 2^53, so equal nodes have equal prospects, in whatever order.
    """

    def __init__(self, workspace: Workspace) -> None:
        cluster = workspace.cluster
        self.workspace = workspace
        self.usual = usual_requests(cluster)
        first = np.array(cluster.devices.first, dtype=np.int64)
        counts = np.diff(first)
        there = np.arange(max(int(counts.max(initial=0)), 1)) < counts[:, None]
        self._device: Ints = np.where(there, first[:-1, None] + np.arange(there.shape[1]), 0)
        self._there: Bools = there
        self._works: Bools = self._of_devices(cluster.devices.healthy)
        #: Of each device its place in `usual.slices`, less than 0 where it is none of these.
        self._slice: Ints = (
            cluster.devices.slice_numbers(self.usual.slices)[self._device]
            if len(cluster.devices.id)
            else self._device
        )
        self._whole: Bools = self._works & (self._slice == -1) if len(cluster.devices.id) else self._works
        self._matches: dict[tuple[str, int], Bools] = {}
        #: How many shares of each size go into what is free of a device.
        self._shares_in: Ints = np.arange(GPU_MILLIS + 1)[:, None] // self.usual.shares
        every = np.arange(cluster.node_count)
        self._now: Floats = self._of_nodes(every)
        self._cursor = workspace.columns.log_length

    def current(self) -> Floats:
        """The prospect of every node as of now, times twice the number of usual tasks."""
        workspace = self.workspace
        if self._cursor < workspace.columns.log_length:
            rows = np.unique(workspace.columns.log[self._cursor : workspace.columns.log_length])
            self._now[rows] = self._of_nodes(rows)
            self._cursor = workspace.columns.log_length
        return self._now

    def losses(self, request: RequestClass, rows: Ints) -> Floats:
        """What each node's prospect falls by more than one task takes; for a share, by device (else inf)."""
        per_task, usual = request.per_task, self.usual
        free, room = self._free(rows), self._room(rows, per_task.cpu_millis, per_task.memory_mib)
        before = self.current()[rows] - per_task.gpu_millis_charged * usual.total * 2
        if request.shares_gpu:
            possible = (free >= per_task.gpu_millis) & self.matches(request)[rows]
            old = self._shares_in[free]
            new = self._shares_in[np.maximum(free - per_task.gpu_millis, 0)]
            idle = free == GPU_MILLIS
            after = self._filled(
                old.sum(axis=1)[:, None] - old + new,
                idle.sum(axis=1)[:, None] - idle,
                self._idle_slices(rows)[:, None],
                room[:, None],
            )
            return np.where(possible, before[:, None] - after, np.inf)
        slices = self._idle_slices(rows)
        if request.gpu_slice:
            if request.gpu_slice in usual.slices:
                slices[:, usual.slices.index(request.gpu_slice)] -= 1
        elif per_task.gpus:
            taken = (free == GPU_MILLIS) & self.matches(request)[rows]
            free[taken & (np.cumsum(taken, axis=1) <= per_task.gpus)] = 0
        return before - self._filled(
            self._shares_in[free].sum(axis=1), (free == GPU_MILLIS).sum(axis=1), np.maximum(slices, 0), room
        )

    def matches(self, request: RequestClass) -> Bools:
        """Which devices (node, place on it) this request may use."""
        key = (request.gpu_model, request.gpu_memory_mib)
        if key not in self._matches:
            self._matches[key] = self._of_devices(self.workspace.cluster.devices.matching(*key)) & self._works
        return self._matches[key]

    def _of_nodes(self, rows: Ints) -> Floats:
        free = self._free(rows)
        return self._filled(
            self._shares_in[free].sum(axis=1),
            (free == GPU_MILLIS).sum(axis=1),
            self._idle_slices(rows),
            self._room(rows, 0, 0),
        )

    def _free(self, rows: Ints) -> Ints:
        """Free thousandths of each whole device of these nodes; 0 where there is none, or none that works."""
        if not len(self.workspace.devices.used):
            return np.zeros((len(rows), 1), dtype=np.int64)
        return np.where(self._whole[rows], GPU_MILLIS - self.workspace.devices.used[self._device[rows]], 0)

    def _idle_slices(self, rows: Ints) -> Ints:
        """How many idle slices of each usual kind these nodes have."""
        kinds = len(self.usual.slices)
        if not kinds or not len(self.workspace.devices.used):
            return np.zeros((len(rows), kinds), dtype=np.int64)
        idle = self._works[rows] & (self.workspace.devices.used[self._device[rows]] == 0)
        which = self._slice[rows]
        return np.stack([(idle & (which == kind)).sum(axis=1) for kind in range(kinds)], axis=1)

    def _room(self, rows: Ints, cpu_millis: int, memory_mib: int) -> Ints:
        """How many tasks of each usual request CPU and memory allow once these amounts are gone."""
        workspace, usual = self.workspace, self.usual
        cpu = np.maximum(workspace.free_cpu_millis[rows] - cpu_millis, 0)
        memory = np.maximum(workspace.free_memory_mib[rows] - memory_mib, 0)
        room = np.minimum(cpu[:, None] // usual.cpu_millis, memory[:, None] // usual.memory_mib)
        return room * usual.accepts[rows]

    def _filled(self, shares: Ints, idle: Ints, slices: Ints, room: Ints) -> Floats:
        """Twice the GPU that the usual requests could get, summed over them as often as each is asked for."""
        usual = self.usual
        parts = [shares, idle[..., None] // usual.wholes]
        if usual.slices:
            parts.append(np.broadcast_to(slices, (*idle.shape, len(usual.slices))))
        slots = np.concatenate(parts, axis=-1).take(usual.shape, axis=-1)
        both: Floats = (np.minimum(slots, room) + slots * (room > 0)).astype(np.float64) @ usual.weight
        return both

    def _of_devices(self, devices: Bools) -> Bools:
        return self._there & devices[self._device] if len(devices) else self._there & False


@dataclass(frozen=True, slots=True)
class FragmentationScorer:
    """50 where only what the task takes is lost, more where fragments are used up, less where they are made."""

    name: str = "fragmentation"

    def score(self, request: FilterQuery, nodes: NodeView) -> Floats | None:
        prospects = _prospects(nodes.workspace)
        if not prospects.usual.total:
            return None
        rows = np.arange(len(nodes)) if nodes.rows is None else nodes.rows
        losses = prospects.losses(request.request, rows)
        if losses.ndim == 2:
            losses = losses.min(axis=1)
        points: Floats = np.clip(50.0 - losses / prospects.usual.total * (25.0 / _SCALE), 0.0, 100.0)
        return points

    def pick_device(self, request: RequestClass, workspace: Workspace, row: int) -> int | None:
        """The device row for a share that loses least, the first among equals; None when it does not care."""
        prospects = _prospects(workspace)
        if not request.shares_gpu or not prospects.usual.total:
            return None
        losses = prospects.losses(request, np.array([row], dtype=np.int64))
        return workspace.cluster.devices.first[row] + int(losses[0].argmin())


def _prospects(workspace: Workspace) -> Prospects:
    """The one of this workspace: every query shares it."""
    known = workspace.memo.get("prospects")
    if known is None:
        known = workspace.memo["prospects"] = Prospects(workspace)
    assert isinstance(known, Prospects)
    return known


def usual_requests(cluster: ClusterIndex) -> Usual:
    """What the waiting and the running jobs ask of GPUs, the most frequent requests first."""
    snapshot = cluster.snapshot
    count = np.zeros(len(snapshot.classes), dtype=np.int64)
    np.add.at(count, snapshot.pending.class_index, snapshot.pending.tasks)
    running = snapshot.running
    np.add.at(count, running.class_index[rows_of(running.id, snapshot.allocations.job_id, what="job")], 1)
    asked = [row for row, one in enumerate(snapshot.classes) if one.per_task.gpus and count[row]]
    usual = sorted(asked, key=lambda row: (-count[row], row))[:_USUAL]
    requests = [snapshot.classes[row] for row in usual]
    shares = sorted({one.per_task.gpu_millis for one in requests if one.shares_gpu})
    slices = sorted({one.gpu_slice for one in requests if one.gpu_slice})
    wholes = sorted({one.per_task.gpus for one in requests if not one.shares_gpu and not one.gpu_slice})

    def shape(one: RequestClass) -> int:
        if one.shares_gpu:
            return shares.index(one.per_task.gpu_millis)
        if one.gpu_slice:
            return len(shares) + len(wholes) + slices.index(one.gpu_slice)
        return len(shares) + wholes.index(one.per_task.gpus)

    accepts = [cluster.devices.counts(one.gpu_model, one.gpu_memory_mib) > 0 for one in requests]
    return Usual(
        total=int(count[usual].sum()),
        weight=np.array(
            [count[row] * one.per_task.gpu_millis_charged for row, one in zip(usual, requests, strict=True)],
            dtype=np.float64,
        ),
        cpu_millis=np.array([max(one.per_task.cpu_millis, 1) for one in requests], dtype=np.int64),
        memory_mib=np.array([max(one.per_task.memory_mib, 1) for one in requests], dtype=np.int64),
        shape=np.array([shape(one) for one in requests], dtype=np.int64),
        shares=np.array(shares, dtype=np.int64),
        wholes=np.array(wholes, dtype=np.int64),
        slices=tuple(slices),
        accepts=np.array(accepts, dtype=np.bool_).reshape(len(requests), cluster.node_count).T,
    )
