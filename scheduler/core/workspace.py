"""Workspace: the scratch capacity, devices and limits of one cycle, with a log of the nodes it touched."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from quotas.core.limits import charge
from quotas.core.resources import GPU_MILLIS, Resources
from scheduler.core.classes import RequestClass
from scheduler.core.columns import Bools, Ints
from scheduler.core.world import World

Floats = npt.NDArray[np.float64]

_POINTS: Final = 100_000  # parts of a score are whole thousandths of a point before they become floats


class GpuFeatures:
    """For one (model, memory) wish: what each node could still give, kept up to date by `Workspace.take`."""

    __slots__ = ("numa_best", "on_node", "partial", "room", "usable", "whole")

    def __init__(self, world: World, used: Ints, *, model: str, memory_mib: int) -> None:
        usable: Bools = world.gpu_matches(model, memory_mib) & world.device_healthy
        idle = usable & (used == 0)
        by_domain = np.bincount(
            world.device_node[idle] * world.numa_count + world.device_numa[idle],
            minlength=world.node_count * world.numa_count,
        )
        self.usable: list[bool] = usable.tolist()
        self.on_node: list[int] = world.per_node(usable).tolist()
        self.whole: Ints = world.per_node(idle)  # idle devices
        self.numa_best: Ints = (
            by_domain.reshape(world.node_count, world.numa_count).max(axis=1, initial=0).astype(np.int64)
        )
        self.partial: Ints = np.zeros(world.node_count, dtype=np.int64)  # most left of a shared device
        shared = usable & (used > 0)
        np.maximum.at(self.partial, world.device_node[shared], GPU_MILLIS - used[shared])
        self.room: Ints = np.where(self.whole > 0, GPU_MILLIS, self.partial)  # most left of any device

    def refresh(self, world: World, used: list[int], row: int) -> None:
        """Count one node again."""
        whole = partial = 0
        domains = [0] * world.numa_count
        usable, numa = self.usable, world.device_numa_list
        for device in range(world.device_first[row], world.device_first[row + 1]):
            if usable[device]:
                taken = used[device]
                if taken == 0:
                    whole += 1
                    domains[numa[device]] += 1
                elif GPU_MILLIS - taken > partial:
                    partial = GPU_MILLIS - taken
        self.whole[row] = whole
        self.numa_best[row] = max(domains)
        self.partial[row] = partial
        self.room[row] = GPU_MILLIS if whole else partial


#: A row of `Room`: free CPU in 24 bits, memory in 26, devices in 10; above each a guard bit that is set.
_MEMORY_BIT: Final = 25
_DEVICE_BIT: Final = 52
_MOST_CPU: Final = (1 << 24) - 1
_MOST_MEMORY: Final = (1 << 26) - 1
_MOST_DEVICES: Final = (1 << 10) - 1
GUARDS: Final = 1 << 24 | 1 << 51 | 1 << 62


class Room:
    """What each node has free of CPU, memory and devices in one number, so that one subtraction compares all.

    Subtract what is needed in the same fields: a field that is too small borrows from its guard bit, so
    everything is there where all guards are still set.
    """

    __slots__ = ("column", "devices")

    def __init__(self, workspace: Workspace, devices: Ints | None) -> None:
        self.devices = devices  # a live column: idle devices, or most left of one; None = does not matter
        self.column: Ints = (
            np.maximum(workspace.free_cpu_millis, 0)
            | np.maximum(workspace.free_memory_mib, 0) << _MEMORY_BIT
            | (0 if devices is None else devices << _DEVICE_BIT)
            | GUARDS
        )

    @staticmethod
    def need(cpu_millis: int, memory_mib: int, devices: int) -> int:
        """What to subtract. More than a field holds is as much as no node has."""
        return (
            min(cpu_millis, _MOST_CPU)
            | min(memory_mib, _MOST_MEMORY) << _MEMORY_BIT
            | min(devices, _MOST_DEVICES) << _DEVICE_BIT
        )

    @staticmethod
    def never() -> int:
        """What no node has."""
        return _MOST_CPU


@dataclass(slots=True)
class Trial:
    """Whether what was done inside `Workspace.trial()` stays."""

    kept: bool = False

    def keep(self) -> None:
        self.kept = True


class Workspace:
    """What is still free while a cycle hands things out. Only `take` and `take_limits` change it.

    `log` holds the row of every node touched, in order: whoever caches something per node keeps a
    cursor into it and looks again only at the rows after the cursor.
    """

    def __init__(self, world: World) -> None:
        snapshot, nodes = world.snapshot, world.snapshot.nodes
        self.world = world
        self.free_cpu_millis: Ints = nodes.cpu_millis - nodes.used_cpu_millis
        self.free_memory_mib: Ints = nodes.memory_mib - nodes.used_memory_mib
        self.free_storage_mib: Ints = nodes.storage_mib - nodes.used_storage_mib
        self.device_used: Ints = world.device_used.copy()
        self._device_used: list[int] = self.device_used.tolist()  # the same, for reads of one device
        self._features: dict[tuple[str, int], GpuFeatures] = {}
        healthy = np.where(world.device_healthy, GPU_MILLIS - self.device_used, 0)
        self.free_gpu_millis: Ints = np.zeros(world.node_count, dtype=np.int64)
        np.add.at(self.free_gpu_millis, world.device_node, healthy)

        #: Thousandths of working devices that each node has, and tasks that run on it.
        self.gpu_capacity: Ints = world.per_node(world.device_healthy) * GPU_MILLIS
        self.tasks_on: Ints = np.bincount(world.allocation_node, minlength=world.node_count).astype(np.int64)

        self._largest_cpu = max(int(nodes.cpu_millis.max(initial=0)), 1)
        self._largest_memory = max(int(nodes.memory_mib.max(initial=0)), 1)
        self._largest_gpu = max(
            int(world.per_node(np.ones(len(world.device_id), np.bool_)).max(initial=0)), 1
        )
        #: No count of devices, and no share of one, is larger.
        self.largest_count = max(self._largest_gpu, GPU_MILLIS)
        self._largest_gpu *= GPU_MILLIS
        cpu = self.free_cpu_millis * _POINTS // self._largest_cpu
        memory = self.free_memory_mib * _POINTS // self._largest_memory
        gpu = self.free_gpu_millis * _POINTS // self._largest_gpu
        #: 0..100, higher = less left over; the part that depends on the request is the same for every node.
        self.tight_with_gpu: Floats = (_POINTS - (2 * gpu + cpu + memory) // 4) / 1000
        self.tight_without_gpu: Floats = (_POINTS - (cpu + memory) // 2) / 1000
        self.gpus_taken: Floats = (_POINTS - gpu) / 1000

        #: Whether every amount is small enough for `Room`: 16,000 cores, 64 TiB and 1,000 devices a node.
        self._packs = (
            max(int(nodes.cpu_millis.max(initial=0)), int(self.free_cpu_millis.max(initial=0))) < _MOST_CPU
            and max(int(nodes.memory_mib.max(initial=0)), int(self.free_memory_mib.max(initial=0)))
            < _MOST_MEMORY
            and self._largest_gpu < _MOST_DEVICES * GPU_MILLIS
        )
        self._rooms: dict[tuple[str, int, bool] | None, Room] = {}
        #: What scorers keep for as long as this workspace lives, by their own names.
        self.memo: dict[str, object] = {}

        self.log: Ints = np.zeros(1024, dtype=np.int64)
        self.log_length = 0

        quotas, queues = snapshot.quotas, snapshot.queues
        self.quota_used: list[int] = quotas.used.tolist()
        self.quota_hard: list[int] = quotas.hard.tolist()
        self.queue_running: list[int] = queues.running_jobs.tolist()
        self.queue_bound: list[int] = queues.max_concurrent_jobs.tolist()
        self.pool_used: list[int] = snapshot.pools.used.tolist()
        self.pool_capacity: list[int] = snapshot.pools.capacity.tolist()
        self.array_running: dict[int, int] = {}
        for array_id in snapshot.running.array_id[snapshot.running.array_id > 0].tolist():
            self.array_running[array_id] = self.array_running.get(array_id, 0) + 1
        self._pool_row = {name: row for row, name in enumerate(snapshot.pools.name)}
        line_row = {line_id: row for row, line_id in enumerate(quotas.id.tolist())}
        self.project_lines = [
            [line_row[line] for line in lines] for lines in snapshot.projects.quota_line_ids
        ]
        self._charges: dict[tuple[int, int, int], tuple[tuple[int, int], ...]] = {}

    # Reading.

    def gpu_features(self, request: RequestClass) -> GpuFeatures:
        """What nodes can still give of the devices this class may use."""
        key = (request.gpu_model, request.gpu_memory_mib)
        if key not in self._features:
            self._features[key] = GpuFeatures(
                self.world, self.device_used, model=request.gpu_model, memory_mib=request.gpu_memory_mib
            )
        return self._features[key]

    def room(self, request: RequestClass) -> Room | None:
        """Free CPU, memory and devices of this class in one column; None when an amount is too large for it."""
        if not self._packs:
            return None
        key = (
            (request.gpu_model, request.gpu_memory_mib, request.shares_gpu) if request.per_task.gpus else None
        )
        if key not in self._rooms:
            features = self.gpu_features(request) if key else None
            devices = None if features is None else features.room if request.shares_gpu else features.whole
            self._rooms[key] = Room(self, devices)
        return self._rooms[key]

    def charges(self, project_row: int, class_index: int, tasks: int) -> tuple[tuple[int, int], ...]:
        """(quota row, amount) of every enforced line a job of this shape counts on."""
        key = (project_row, class_index, tasks)
        if key not in self._charges:
            quotas = self.world.snapshot.quotas
            per_task = self.world.snapshot.classes[class_index].per_task
            amounts = (
                (line, charge(quotas.resource[line], per_task, tasks))
                for line in self.project_lines[project_row]
                if quotas.enforce[line]
            )
            self._charges[key] = tuple((line, amount) for line, amount in amounts if amount > 0)
        return self._charges[key]

    def short_quota(self, charges: tuple[tuple[int, int], ...]) -> tuple[int, int] | None:
        """The first line without room for its amount."""
        for line, amount in charges:
            if self.quota_used[line] + amount > self.quota_hard[line]:
                return line, amount
        return None

    def short_pool(self, request: RequestClass, tasks: int) -> tuple[str, int, int, int] | None:
        """The first extra that lacks: its name, what is needed, free and there in all."""
        for name, amount in request.per_task.extras:
            row = self._pool_row.get(name)
            total = 0 if row is None else self.pool_capacity[row]
            free = 0 if row is None else max(total - self.pool_used[row], 0)
            if amount * tasks > free:
                return name, amount * tasks, free, total
        return None

    def queue_is_full(self, queue_row: int) -> bool:
        return 0 < self.queue_bound[queue_row] <= self.queue_running[queue_row]

    def pick_devices(self, row: int, request: RequestClass) -> list[int]:
        """Device rows for one task on a node that `feasibility` has passed.

        Whole devices come from the NUMA domain that they fill best, else from as few domains as can be;
        a share goes to the device that is used most and still has room. Ties by lowest position.
        """
        wanted = request.per_task.gpus
        if not wanted:
            return []
        usable, used = self.gpu_features(request).usable, self._device_used
        devices = [
            device
            for device in range(self.world.device_first[row], self.world.device_first[row + 1])
            if usable[device]
        ]
        if request.shares_gpu:
            share = request.per_task.gpu_millis
            return [max((d for d in devices if used[d] + share <= GPU_MILLIS), key=lambda d: (used[d], -d))]
        domains: dict[int, list[int]] = {}
        for device in devices:
            if used[device] == 0:
                domains.setdefault(self.world.device_numa_list[device], []).append(device)
        local = [idle for idle in domains.values() if len(idle) >= wanted]
        if local:
            return min(local, key=lambda idle: (len(idle), idle[0]))[:wanted]
        picked: list[int] = []
        for idle in sorted(domains.values(), key=lambda idle: (-len(idle), idle[0])):
            picked.extend(idle[: wanted - len(picked)])
        return sorted(picked)

    def numa_of(self, devices: list[int]) -> int:
        """The one domain all these devices are in; -1 when there is none."""
        numa = self.world.device_numa_list
        if not devices:
            return -1
        first = numa[devices[0]]
        return first if all(numa[device] == first for device in devices) else -1

    def device_is_free(self, device: int, millis: int) -> bool:
        return self._device_used[device] + millis <= GPU_MILLIS

    # Changing.

    def take(self, row: int, per_task: Resources, devices: list[int], gpu_millis: int) -> None:
        """Hand one task's amounts out on a node."""
        self.tasks_on[row] += 1
        self.free_cpu_millis[row] -= per_task.cpu_millis
        self.free_memory_mib[row] -= per_task.memory_mib
        if per_task.storage_mib:
            self.free_storage_mib[row] -= per_task.storage_mib
        if devices:
            for device in devices:
                self._device_used[device] += gpu_millis
                self.device_used[device] = self._device_used[device]
            self.free_gpu_millis[row] -= gpu_millis * len(devices)
            for features in self._features.values():
                if features.on_node[row]:
                    features.refresh(self.world, self._device_used, row)
        self._touch(row)

    def give_back(self, row: int, per_task: Resources, devices: list[int], gpu_millis: int) -> None:
        """The reverse of `take`, for a job that is thought away; only inside a trial: caches of what
        failed hold while capacity shrinks.
        """
        self.tasks_on[row] -= 1
        self.free_cpu_millis[row] += per_task.cpu_millis
        self.free_memory_mib[row] += per_task.memory_mib
        if per_task.storage_mib:
            self.free_storage_mib[row] += per_task.storage_mib
        for device in devices:
            self._device_used[device] -= gpu_millis
            self.device_used[device] = self._device_used[device]
            if self.world.device_healthy[device]:
                self.free_gpu_millis[row] += gpu_millis
        if devices:
            for features in self._features.values():
                if features.on_node[row]:
                    features.refresh(self.world, self._device_used, row)
        self._touch(row)

    def give_back_limits(
        self,
        *,
        queue_row: int,
        array_id: int,
        charges: tuple[tuple[int, int], ...],
        request: RequestClass,
        tasks: int,
        sign: int = 1,
    ) -> None:
        """The reverse of `take_limits`; `sign` -1 counts the job again."""
        for line, amount in charges:
            self.quota_used[line] -= sign * amount
        self.queue_running[queue_row] -= sign
        if array_id:
            self.array_running[array_id] = self.array_running.get(array_id, 0) - sign
        for name, amount in request.per_task.extras:
            if name in self._pool_row:
                self.pool_used[self._pool_row[name]] -= sign * amount * tasks

    def take_limits(
        self,
        *,
        queue_row: int,
        array_id: int,
        charges: tuple[tuple[int, int], ...],
        request: RequestClass,
        tasks: int,
    ) -> None:
        """Count one job that starts on its quota lines, queue, array and pools."""
        for line, amount in charges:
            self.quota_used[line] += amount
        self.queue_running[queue_row] += 1
        if array_id:
            self.array_running[array_id] = self.array_running.get(array_id, 0) + 1
        for name, amount in request.per_task.extras:
            self.pool_used[self._pool_row[name]] += amount * tasks

    @contextmanager
    def trial(self) -> Iterator[Trial]:
        """Try something: unless `keep()` is called, everything is as before on leaving."""
        columns = (self.free_cpu_millis, self.free_memory_mib, self.free_storage_mib, self.device_used,
                   self.free_gpu_millis, self.tasks_on)  # fmt: skip
        saved = [column.copy() for column in columns]
        counts = (self.quota_used, self.queue_running, self.pool_used)
        saved_counts = [list(count) for count in counts]
        saved_arrays = dict(self.array_running)
        mark = self.log_length
        trial = Trial()
        try:
            yield trial
        finally:
            if not trial.kept:
                # In place: caches hold these very arrays.
                for column, old in zip(columns, saved, strict=True):
                    column[:] = old
                for count, before in zip(counts, saved_counts, strict=True):
                    count[:] = before
                self.array_running = saved_arrays
                self._device_used[:] = self.device_used.tolist()
                for row in dict.fromkeys(self.log[mark : self.log_length].tolist()):
                    for features in self._features.values():
                        features.refresh(self.world, self._device_used, row)
                    self._touch(row)  # what was cached during the trial is stale again

    def _touch(self, row: int) -> None:
        cpu, memory = self.free_cpu_millis.item(row), self.free_memory_mib.item(row)
        packed = (cpu if cpu > 0 else 0) | (memory if memory > 0 else 0) << _MEMORY_BIT | GUARDS
        for room in self._rooms.values():
            devices = room.devices
            room.column[row] = packed if devices is None else packed | devices.item(row) << _DEVICE_BIT
        cpu = cpu * _POINTS // self._largest_cpu
        memory = memory * _POINTS // self._largest_memory
        gpu = self.free_gpu_millis.item(row) * _POINTS // self._largest_gpu
        self.tight_with_gpu[row] = (_POINTS - (2 * gpu + cpu + memory) // 4) / 1000
        self.tight_without_gpu[row] = (_POINTS - (cpu + memory) // 2) / 1000
        self.gpus_taken[row] = (_POINTS - gpu) / 1000
        if self.log_length == len(self.log):
            self.log = np.concatenate([self.log, np.zeros_like(self.log)])
        self.log[self.log_length] = row
        self.log_length += 1


class NodeView:
    """Some nodes of a workspace, as a filter or scorer sees them: every column in the same row order."""

    __slots__ = ("rows", "workspace")

    def __init__(self, workspace: Workspace, rows: Ints | None = None) -> None:
        self.workspace = workspace
        self.rows = rows  # None = all

    def __len__(self) -> int:
        return self.workspace.world.node_count if self.rows is None else len(self.rows)

    def ints(self, column: Ints) -> Ints:
        """These nodes' part of a column that has a row for every node."""
        return column if self.rows is None else column.take(self.rows)

    def floats(self, column: Floats) -> Floats:
        return column if self.rows is None else column.take(self.rows)

    def bools(self, column: Bools) -> Bools:
        return column if self.rows is None else column.take(self.rows)

    @property
    def row_numbers(self) -> list[int]:
        return list(range(len(self))) if self.rows is None else self.rows.tolist()

    @property
    def names(self) -> list[str]:
        names = self.workspace.world.snapshot.nodes.name
        return [names[row] for row in self.row_numbers]

    @property
    def labels(self) -> list[dict[str, str]]:
        labels = self.workspace.world.snapshot.nodes.labels
        return [dict(labels[row]) for row in self.row_numbers]

    @property
    def free_cpu_millis(self) -> Ints:
        return self.ints(self.workspace.free_cpu_millis)

    @property
    def free_memory_mib(self) -> Ints:
        return self.ints(self.workspace.free_memory_mib)

    @property
    def free_storage_mib(self) -> Ints:
        return self.ints(self.workspace.free_storage_mib)

    @property
    def free_gpu_millis(self) -> Ints:
        return self.ints(self.workspace.free_gpu_millis)
