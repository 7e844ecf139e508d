"""Free columns: live columns of what nodes have free, in the forms that filters and scorers read."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from quotas.core.resources import GPU_MILLIS
from scheduler.core.cluster.free_devices import FreeDevices
from scheduler.core.cluster.packed_free import DEVICE_BIT, GUARDS, MEMORY_BIT, PackedFree, fits_packed
from scheduler.core.columns import Cells, FloatCells, Ints, cells, float_cells
from scheduler.core.snapshot.request_classes import RequestClass
from scheduler.core.snapshot.snapshot import NodeColumns

Floats = npt.NDArray[np.float64]

#: Score parts, 0 to 100: 100 minus the mean of what is free, as parts of the most that any node has. Of each part the
#: weight of GPUs, that of CPU and of memory, and the sum of all three. What depends on the request is the same for
#: every node and left out.
_PARTS: Final[dict[str, tuple[int, int, int]]] = {
    "tight_with_gpu": (2, 1, 4),
    "tight_without_gpu": (0, 1, 2),
    "gpus_taken": (1, 0, 1),
}

_POINTS: Final = 100_000  # parts of a score are whole thousandths of a point before they become floats


class GpuFeatures:
    """For one (model, memory) request: live columns of what each node could still give of such devices."""

    __slots__ = ("_bits", "_index", "_key", "_usable", "numa_best", "partial", "room", "whole")

    def __init__(self, devices: FreeDevices, *, model: str, memory_mib: int) -> None:
        index, used = devices.index, devices.used
        usable = index.usable(model, memory_mib)
        by_domain = np.bincount(
            index.domain[usable & (used == 0)], minlength=index.node_count * index.numa_count
        ).reshape(index.numa_count, index.node_count)
        self._usable, self._index, self._key = usable, index, (model, memory_mib)
        self._bits: list[int] | None = None
        self.whole: Ints = by_domain.sum(axis=0)  # idle devices
        self.numa_best: Ints = by_domain.max(axis=0, initial=0)  # idle devices in one NUMA domain
        self.partial: Ints = np.zeros(index.node_count, dtype=np.int64)  # most left of a shared device
        shared = usable & (used > 0) & (used < GPU_MILLIS)
        if shared.any():
            np.maximum.at(self.partial, index.node[shared], GPU_MILLIS - used[shared])
        self.room: Ints = np.where(self.whole > 0, GPU_MILLIS, self.partial)  # most left of any device

    @property
    def bits(self) -> list[int]:
        """Of each node a mask of its devices that count at all: working ones that meet the request."""
        if self._bits is None:
            self._bits = self._index.usable_bits(*self._key)
        return self._bits

    @property
    def usable(self) -> list[bool]:
        """Of each device, whether it counts."""
        usable: list[bool] = self._usable.tolist()
        return usable


class FreeColumns:
    """Columns of one workspace that `update` keeps true, node by node. Each is made when it is first asked for.

    `cpu_millis`, `memory_mib` and `gpu_millis` are the live columns of the workspace. `log` holds the row of every
    node that was updated, in order: code that caches something per node keeps a cursor into it and looks again only
    at the rows after the cursor.
    """

    def __init__(
        self, nodes: NodeColumns, devices: FreeDevices, cpu_millis: Ints, memory_mib: Ints, gpu_millis: Ints
    ) -> None:
        index = devices.index
        self._devices, self._index = devices, index
        self._cpu_column, self._memory_column, self._gpu_column = cpu_millis, memory_mib, gpu_millis
        self._cpu, self._memory, self._gpu = cells(cpu_millis), cells(memory_mib), cells(gpu_millis)
        self._largest = (
            max(int(nodes.cpu_millis.max(initial=0)), 1),
            max(int(nodes.memory_mib.max(initial=0)), 1),
            max(index.most_gpu_millis, 1),
        )
        #: No count of devices, and no share of one, is larger.
        self.largest_count = max(index.most_on_a_node, GPU_MILLIS)
        self._fits_packed = fits_packed(
            max(int(nodes.cpu_millis.max(initial=0)), int(cpu_millis.max(initial=0))),
            max(int(nodes.memory_mib.max(initial=0)), int(memory_mib.max(initial=0))),
            index.most_on_a_node,
        )
        self._features: dict[tuple[str, int], GpuFeatures] = {}
        self._packed: dict[tuple[str, int, bool] | None, PackedFree] = {}
        self._plain: Cells | None = None  # the packed column of requests without devices
        self._points: dict[tuple[str, bool, int], Floats] = {}
        self._scored: dict[tuple[int, int, int], list[tuple[bool, int, FloatCells]]] = {}
        self._views: dict[int, tuple[_DeviceView, ...]] = {}  # by kind of node
        self.log: Ints = np.zeros(1024, dtype=np.int64)
        self.log_length = 0
        self._log = cells(self.log)

    def gpu_features(self, request: RequestClass) -> GpuFeatures:
        """What nodes can still give of the devices that this class may use."""
        key = (request.gpu_model, request.gpu_memory_mib)
        known = self._features.get(key)
        if known is None:
            known = self._features[key] = GpuFeatures(
                self._devices, model=request.gpu_model, memory_mib=request.gpu_memory_mib
            )
            self._views.clear()
        return known

    def packed(self, request: RequestClass) -> PackedFree | None:
        """Free CPU, memory and devices of this class in one column; None when an amount is too large for that."""
        if not self._fits_packed:
            return None
        key = (
            (request.gpu_model, request.gpu_memory_mib, request.shares_gpu) if request.per_task.gpus else None
        )
        if key not in self._packed:
            features = self.gpu_features(request) if key else None
            devices = None if features is None else features.room if request.shares_gpu else features.whole
            self._packed[key] = PackedFree(self._cpu_column, self._memory_column, devices)
            self._views.clear()
            if key is None:
                self._plain = cells(self._packed[key].column)
        return self._packed[key]

    def points(self, name: str, *, flipped: bool = False, weight: int = 1) -> Floats:
        """A column of the score part `name` (see `_PARTS`) times its weight; flipped, of 100 minus the part."""
        if (known := self._points.get((name, flipped, weight))) is not None:
            return known
        most_cpu, most_memory, most_gpu = self._largest
        gpu, cpu = self._gpu_column * _POINTS // most_gpu, self._cpu_column * _POINTS // most_cpu
        memory = self._memory_column * _POINTS // most_memory
        of_gpu, of_others, whole = _PARTS[name]
        part = (_POINTS - (of_gpu * gpu + of_others * (cpu + memory)) // whole) / 1000
        points: Floats = (100.0 - part if flipped else part) * weight
        self._scored.setdefault(_PARTS[name], []).append((flipped, weight, float_cells(points)))
        self._points[name, flipped, weight] = points
        return points

    def update(self, row: int) -> None:
        """Bring all columns up to date for a node of which something was taken or given back, and log that."""
        length = self.log_length
        if length == len(self._log):
            self.log = np.concatenate([self.log, np.zeros_like(self.log)])
            self._log = cells(self.log)
        self._log[length] = row
        self.log_length = length + 1
        cpu, memory = self._cpu[row], self._memory[row]
        packed = (cpu if cpu > 0 else 0) | (memory if memory > 0 else 0) << MEMORY_BIT | GUARDS
        if self._plain is not None:
            self._plain[row] = packed
        views = self._views.get(self._index.node_kinds[row])
        for view in self._views_of(row) if views is None else views:
            view.update(row, packed)
        if self._scored:
            most_cpu, most_memory, most_gpu = self._largest
            gpu = self._gpu[row] * _POINTS // most_gpu
            others = cpu * _POINTS // most_cpu + memory * _POINTS // most_memory
            for (of_gpu, of_others, whole), columns in self._scored.items():
                part = (_POINTS - (of_gpu * gpu + of_others * others) // whole) / 1000
                for flipped, weight, points in columns:
                    points[row] = (100.0 - part if flipped else part) * weight

    def _views_of(self, row: int) -> tuple[_DeviceView, ...]:
        """The views of the devices of nodes like this one; none for requests that no such node meets."""
        views: dict[int, _DeviceView] = {}
        for key, features in self._features.items():
            bits = features.bits[row]
            if bits:
                if bits not in views:
                    views[bits] = _DeviceView(bits, self._index.node_domains[row], self._devices)
                packed = [self._packed.get((*key, shares)) for shares in (False, True)]
                views[bits].add(features, *packed)
        self._views[self._index.node_kinds[row]] = tuple(views.values())
        return tuple(views.values())


class _DeviceView:
    """Devices of a node that some requests see alike, and the columns that say what is left of them."""

    __slots__ = ("_bits", "_counting", "_devices", "_domains", "_features", "_idle", "_shared", "_sharing")

    def __init__(self, bits: int, domains: tuple[int, ...], devices: FreeDevices) -> None:
        here = tuple([domain & bits for domain in domains if domain & bits])
        self._bits, self._devices = bits, devices
        self._idle, self._shared = devices.idle, devices.shared
        self._domains = here if len(here) > 1 else ()
        self._features: list[tuple[Cells, Cells, Cells, Cells]] = []
        self._counting: list[Cells] = []  # packed columns that count idle devices
        self._sharing: list[Cells] = []  # and those that hold what is left of one device

    def add(self, features: GpuFeatures, whole: PackedFree | None, shared: PackedFree | None) -> None:
        """Keep these columns up to date as well."""
        self._features.append(
            (cells(features.whole), cells(features.numa_best), cells(features.partial), cells(features.room))
        )
        self._counting += [cells(whole.column)] if whole is not None else []
        self._sharing += [cells(shared.column)] if shared is not None else []

    def update(self, row: int, packed: int) -> None:
        """Bring the columns up to date for a node; `packed` is its free CPU and memory."""
        idle, shared = self._idle[row] & self._bits, self._shared[row] & self._bits
        whole = best = idle.bit_count()
        if whole > 1 and self._domains:
            best = max([(idle & domain).bit_count() for domain in self._domains])
        partial = self._devices.most_left(row, shared) if shared else 0
        room = GPU_MILLIS if whole else partial
        for whole_column, best_column, partial_column, room_column in self._features:
            whole_column[row] = whole
            best_column[row] = best
            partial_column[row] = partial
            room_column[row] = room
        for column in self._counting:
            column[row] = packed | whole << DEVICE_BIT
        for column in self._sharing:
            column[row] = packed | room << DEVICE_BIT
