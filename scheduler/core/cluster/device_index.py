"""The device index: devices in the order of their nodes, by model and NUMA domain, as columns and as bit masks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

from quotas.core.gpu_models import share_of, slice_of, suits
from quotas.core.resources import GPU_MILLIS
from scheduler.core.columns import Bools, Cells, Ints, cells, equal_rows, rows_of
from scheduler.core.snapshot.snapshot import DeviceColumns, NodeColumns

#: Masks of devices up to here are sums of powers of two that a float holds exactly.
_EXACT_BITS: Final = 51


Found = TypeVar("Found")


class DeviceIndex:
    """Facts about devices that stay for a cycle, and `used`: the thousandths of each that are held as it begins.

    Devices are in the order (node row, position), so that the devices of a node are one slice:
    `first[row]` up to `first[row + 1]`. In a mask over the devices of a node bit 0 is its first device.
    """

    def __init__(self, nodes: NodeColumns, devices: DeviceColumns) -> None:
        self.node_count = len(nodes)
        node_row = rows_of(nodes.id, devices.node_id, what="node")
        order = _by_node(node_row, devices.position, devices.id)
        self.node: Ints = node_row[order]
        self.id: Ints = devices.id[order]
        self.numa: Ints = devices.numa[order]
        #: The same two columns, where single values are read.
        self.ids: Cells = cells(self.id)
        self.numa_numbers: Cells = cells(self.numa)
        self.memory_mib: Ints = devices.memory_mib[order]
        self.healthy: Bools = devices.healthy[order]
        self.all_healthy = bool(self.healthy.all())
        self.used: Ints = devices.used_millis[order]
        self.first: list[int] = np.searchsorted(self.node, np.arange(self.node_count + 1)).tolist()
        self.numa_count = int(self.numa.max(initial=0)) + 1
        #: The names of all models, and of each device the number of its own.
        self._models, self._model = _numbered(devices.model)
        self._model = self._model[order]
        self._has_slices = any(slice_of(model) for model in self._models)
        self._matching: dict[tuple[str, int], Bools] = {}
        self._models_of: dict[tuple[str, int], tuple[str, ...]] = {}
        self._counts: dict[tuple[str, int], Ints] = {}
        self._usable_bits: dict[tuple[str, int], list[int]] = {}

    def __len__(self) -> int:
        return len(self.id)

    # Columns of all devices, as lists where single values are read.

    @cached_property
    def row(self) -> dict[int, int]:
        """Device id -> row."""
        return {device_id: row for row, device_id in enumerate(self.id.tolist())}

    def rows_on(self, node_row: int, device_ids: Sequence[int]) -> list[int]:
        """The rows of these devices of a node; without those that it has no more."""
        if not device_ids:
            return []
        begin = self.first[node_row]
        here = self.id[begin : self.first[node_row + 1]].tolist()
        return [begin + here.index(device_id) for device_id in device_ids if device_id in here]

    @cached_property
    def healthy_list(self) -> list[bool]:
        healthy: list[bool] = self.healthy.tolist()
        return healthy

    @cached_property
    def domain(self) -> Ints:
        """Of each device a number for its NUMA domain and node together: all nodes' first domains come first."""
        return self.numa * self.node_count + self.node

    @cached_property
    def share(self) -> Ints:
        """Thousandths of a GPU that each device is: 1000, or less for a slice."""
        if not self._has_slices:
            return np.full(len(self), GPU_MILLIS, dtype=np.int64)
        return np.array([share_of(model) for model in self._models], dtype=np.int64)[self._model]

    # By model. A request for a model and memory is met by devices of that model with at least that memory.

    def matching(self, model: str, memory_mib: int) -> Bools:
        """Devices, healthy or not, that meet a request for a model and memory."""
        key = (model, memory_mib)
        if key not in self._matching:
            mask = self.memory_mib >= memory_mib
            if model or self._has_slices:
                fitting = np.array([suits(model, have) for have in self._models], dtype=np.bool_)
                mask = mask & fitting[self._model] if len(fitting) else mask
            self._matching[key] = mask
        return self._matching[key]

    def usable(self, model: str, memory_mib: int) -> Bools:
        """The healthy ones of `matching`."""
        return self.matching(model, memory_mib) & self.healthy

    def counts(self, model: str, memory_mib: int) -> Ints:
        """How many devices of `matching` each node has."""
        key = (model, memory_mib)
        if key not in self._counts:
            self._counts[key] = self.per_node(self.matching(model, memory_mib))
        return self._counts[key]

    def models_of(self, model: str, memory_mib: int) -> tuple[str, ...]:
        """The names of the models of all devices in `matching`."""
        key = (model, memory_mib)
        if key not in self._models_of:
            met = np.unique(self._model[self.matching(model, memory_mib)]).tolist()
            self._models_of[key] = tuple(self._models[number] for number in met)
        return self._models_of[key]

    def model_of(self, row: int) -> str:
        return self._models[self._model.item(row)]

    def slice_numbers(self, names: Sequence[str]) -> Ints:
        """Of each device the place of its slice among these names; -1 = a whole device, -2 = another slice."""
        place = {"": -1} | {name: number for number, name in enumerate(names)}
        numbers = np.array([place.get(slice_of(model), -2) for model in self._models] or [-1], dtype=np.int64)
        return numbers[self._model]

    # By node.

    def per_node(self, devices: Bools | Ints) -> Ints:
        """How many of these devices each node has, or the sum of this column over its devices."""
        counts = np.bincount(self.node, weights=devices, minlength=self.node_count)
        return counts.astype(np.int64)

    @cached_property
    def gpu_capacity(self) -> Ints:
        """Thousandths of working devices that each node has."""
        return self.per_node(self.healthy * self.share)

    @cached_property
    def most_gpu_millis(self) -> int:
        """The most thousandths of devices that any node has, working or not."""
        return int(self.per_node(self.share).max(initial=0))

    @cached_property
    def most_on_a_node(self) -> int:
        """The most devices that any node has, working or not."""
        return int(np.bincount(self.node, minlength=1).max(initial=0))

    # Nodes whose devices are alike, one by one, in all that stays, are of one kind. A cluster has few kinds, so what is
    # asked about the devices of every node is found once for each kind.

    @cached_property
    def node_kinds(self) -> list[int]:
        """Of each node the number of its kind."""
        count, most = self.node_count, self.most_on_a_node
        facts: npt.NDArray[np.int32] = np.empty((len(self), 4), dtype=np.int32)
        for place, column in enumerate((self._model, self.memory_mib, self.healthy, self.numa)):
            facts[:, place] = column
        if len(self) != count * most:  # a node with fewer devices has others that no device is like
            table = np.full((count * most, 4), -1, dtype=np.int32)
            table[self.node * most + self._place] = facts
            facts = table
        kinds: list[int] = equal_rows(facts.reshape(count, 4 * most)).tolist()
        return kinds

    @cached_property
    def node_domains(self) -> list[tuple[int, ...]]:
        """For each node, a mask of its devices in each of its NUMA domains."""
        return self._by_kind(self.numa, _domains)

    def usable_bits(self, model: str, memory_mib: int) -> list[int]:
        """Of each node a mask of its devices in `usable`."""
        key = (model, memory_mib)
        if key not in self._usable_bits:
            self._usable_bits[key] = self._by_kind(self.usable(model, memory_mib), _mask)
        return self._usable_bits[key]

    def _by_kind(self, column: Bools | Ints, find: Callable[[list[int]], Found]) -> list[Found]:
        """Of each node what is found from the entries of the devices of the first node of its kind."""
        of_kind: dict[int, Found] = {}
        for row, kind in enumerate(self.node_kinds):
            if kind not in of_kind:
                of_kind[kind] = find(column[self.first[row] : self.first[row + 1]].tolist())
        return [of_kind[kind] for kind in self.node_kinds]

    # Masks over the devices of a node.

    def bits(self, devices: Bools) -> list[int]:
        """Of each node a mask of these devices."""
        if not devices.any():
            return [0] * self.node_count
        if self.most_on_a_node <= _EXACT_BITS:
            sums = np.bincount(self.node, weights=self._weight * devices, minlength=self.node_count)
            exact: list[int] = sums.astype(np.int64).tolist()
            return exact
        masks = [0] * self.node_count
        place = self._place[devices].tolist()
        for row, bit in zip(self.node[devices].tolist(), place, strict=True):
            masks[row] |= 1 << bit
        return masks

    @cached_property
    def _place(self) -> Ints:
        """Index of each device within its node."""
        first = np.array(self.first, dtype=np.int64)
        return np.arange(len(self)) - first[self.node]

    @cached_property
    def _weight(self) -> npt.NDArray[np.float64]:
        """The bit of each device as a float."""
        return np.ldexp(1.0, np.arange(self.most_on_a_node))[self._place]

    def numa_of(self, rows: list[int]) -> int:
        """The one NUMA domain that all these devices are in; -1 when there is none."""
        if not rows:
            return -1
        numa = self.numa_numbers
        first = numa[rows[0]]
        if len(rows) > 1:
            for row in rows:
                if numa[row] != first:
                    return -1
        return first


def _mask(counts: Sequence[int]) -> int:
    """The devices of a node that count, as a mask."""
    return sum([1 << place for place, count in enumerate(counts) if count])


def _domains(numbers: Sequence[int]) -> tuple[int, ...]:
    """The devices of a node in each of its NUMA domains, as masks, by the number of the domain."""
    domains: dict[int, int] = {}
    for place, number in enumerate(numbers):
        domains[number] = domains.get(number, 0) | 1 << place
    return tuple([domains[number] for number in sorted(domains)])


def _by_node(node_row: Ints, position: Ints, device_id: Ints) -> Ints:
    """The order of devices by node, position, id; mostly they are in it."""
    before, after = node_row[:-1], node_row[1:]
    if ((after > before) | ((after == before) & (position[1:] > position[:-1]))).all():
        return np.arange(len(node_row))
    return np.lexsort((device_id, position, node_row))


def _numbered(names: Sequence[str]) -> tuple[tuple[str, ...], Ints]:
    """The distinct names in the order in which they are met, and of each entry the number of its name."""
    number: defaultdict[str, int] = defaultdict()
    number.default_factory = number.__len__
    numbers = np.fromiter(map(number.__getitem__, names), dtype=np.int64, count=len(names))
    return tuple(number), numbers
