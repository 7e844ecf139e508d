"""NUMA: the domains of nodes, what is bound in each, and how many tasks fit whole into one of them.

Only jobs that demand it are bound to a domain. Others float: they are counted on their node and take what the
bound ones leave, so a domain has for bound tasks all that is not bound in it, as long as the node has it free.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from quotas.core.resources import GPU_MILLIS, Resources
from scheduler.core.cluster.allocation_index import AllocationIndex
from scheduler.core.cluster.device_index import DeviceIndex
from scheduler.core.cluster.free_devices import FreeDevices
from scheduler.core.columns import Ints, cells
from scheduler.core.snapshot.request_classes import RequestClass
from scheduler.core.snapshot.snapshot import NodeColumns, Snapshot

#: (number, CPU, memory) of each domain of a node, as far as it says: what is there, or what is bound.
Amounts = tuple[tuple[int, int, int], ...]

#: The number of a domain of which nothing is known: no amount is in it.
UNKNOWN: Final = -1

#: More tasks than any node takes, and few enough to be added up.
_ANY_NUMBER: Final = 1 << 40


class Domains:
    """The domains of all nodes as rows, ordered by node row and number: those of a node are one slice.

    A node that says nothing of its domains is one. If its devices are in several all the same, it is unknown how
    its CPUs and memory are divided, and it has a single `UNKNOWN` one.
    """

    def __init__(self, snapshot: Snapshot, devices: DeviceIndex, allocations: AllocationIndex) -> None:
        nodes = snapshot.nodes
        self.devices = devices
        self._snapshot, self._allocations = snapshot, allocations
        first, sizes = [0], list[tuple[int, ...]]()
        node, number, bits = list[int](), list[int](), list[int]()
        device_numa: list[int] = devices.numa.tolist()
        on_device = [UNKNOWN] * len(device_numa)
        cpu, memory = nodes.cpu_millis.tolist(), nodes.memory_mib.tolist()
        for row, said in enumerate(nodes.domains):
            begin, end = devices.first[row], devices.first[row + 1]
            here = sorted(said)
            if not said:
                met = set(device_numa[begin:end]) or {0}
                here = [(*met, cpu[row], memory[row])] if len(met) == 1 else [(UNKNOWN, 0, 0)]
            place = {one[0]: len(node) + offset for offset, one in enumerate(here)}
            masks = dict.fromkeys(place, 0)
            for device in range(begin, end):
                if device_numa[device] in place:
                    on_device[device] = place[device_numa[device]]
                    masks[device_numa[device]] |= 1 << (device - begin)
            node.extend([row] * len(here))
            number.extend(place)
            sizes.extend([one[1:] for one in here])
            bits.extend(masks.values())
            first.append(len(node))
        self.first = first
        self.number: list[int] = number
        #: Of each domain, its devices as a mask over those of its node.
        self.bits: list[int] = bits
        self.of_device: list[int] = on_device
        self.node: Ints = np.array(node, dtype=np.int64)
        self._of_device: Ints = np.array(on_device, dtype=np.int64)
        self.size_cpu_millis, self.size_memory_mib = np.array(sizes, dtype=np.int64).reshape(-1, 2).T
        self._most: dict[RequestClass, Ints] = {}

    def __len__(self) -> int:
        return len(self.number)

    @property
    def capacity(self) -> Ints:
        """What may be bound in each domain, all their CPUs and then all their memory: overcommit included."""
        nodes = self._snapshot.nodes
        return np.concatenate(
            [
                _scaled(self.size_cpu_millis, nodes.cpu_millis, nodes.size_cpu_millis, self.node),
                _scaled(self.size_memory_mib, nodes.memory_mib, nodes.size_memory_mib, self.node),
            ]
        )

    def find(self, row: int, number: int) -> int:
        """The row of a domain of a node; -1 when the node has none of this number."""
        for domain in range(self.first[row], self.first[row + 1]):
            if self.number[domain] == number:
                return domain
        return -1

    def of(self, request: RequestClass, row: int, number: int) -> int:
        """The domain that a task is bound to; -1 for one that is bound to none."""
        return self.find(row, number) if request.one_domain else -1

    @property
    def free(self) -> Ints:
        """What is not bound, in the same form as `capacity`."""
        left = self.capacity
        for row, bound in enumerate(self._snapshot.nodes.bound):
            for number, cpu_millis, memory_mib in bound:
                domain = self.find(row, number)
                if domain >= 0:
                    left[domain] -= cpu_millis
                    left[len(self) + domain] -= memory_mib
        return left

    def of_allocations(self) -> list[int]:
        """The domain that each allocation is bound to; -1 = none."""
        numbers, nodes = self._snapshot.allocations.numa.tolist(), self._allocations.node.tolist()
        return [
            self.find(node, number) if number >= 0 else -1
            for number, node in zip(numbers, nodes, strict=True)
        ]

    def slots(self, request: RequestClass, free: Ints, device_used: Ints) -> Ints:
        """How many tasks each node takes, each whole in one domain, were just this free."""
        usable = self.devices.usable(request.gpu_model, request.gpu_memory_mib)
        return self._per_node(request, free, np.where(usable, device_used, GPU_MILLIS))

    def most(self, request: RequestClass) -> Ints:
        """The same were everything free and every device well; the same column for the same request."""
        known = self._most.get(request)
        if known is None:
            matching = self.devices.matching(request.gpu_model, request.gpu_memory_mib)
            known = self._per_node(request, self.capacity, np.where(matching, 0, GPU_MILLIS))
            self._most[request] = known
        return known

    def _per_node(self, request: RequestClass, free: Ints, device_used: Ints) -> Ints:
        tasks = np.full(len(self), _ANY_NUMBER, dtype=np.int64)
        per_task, count = request.per_task, len(self)
        for amounts, need, size in (
            (free[:count], per_task.cpu_millis, self.size_cpu_millis),
            (free[count:], per_task.memory_mib, self.size_memory_mib),
        ):
            if need:
                np.minimum(tasks, np.where(size >= need, amounts // need, 0), out=tasks)
        if per_task.gpus:
            known = self._of_device >= 0
            if request.shares_gpu:
                fitting = (GPU_MILLIS - device_used) // per_task.gpu_millis
            else:
                fitting = (device_used == 0).astype(np.int64)
            there = np.zeros(count, dtype=np.int64)
            np.add.at(there, self._of_device[known], fitting[known])
            np.minimum(tasks, there if request.shares_gpu else there // per_task.gpus, out=tasks)
        total = np.zeros(self.devices.node_count, dtype=np.int64)
        np.add.at(total, self.node, np.maximum(tasks, 0))
        return total


def _scaled(sizes: Ints, capacity: Ints, size: Ints, node: Ints) -> Ints:
    """Each domain's part of what may be given away of its node."""
    whole = np.where(size > 0, size, capacity)[node]
    return np.where(whole > 0, sizes * capacity[node] // np.maximum(whole, 1), 0)


class _Need:
    """What one task of a request takes of a domain, looked up once."""

    __slots__ = ("column", "cpu", "gpus", "memory", "share", "usable")

    def __init__(self, domains: Domains, request: RequestClass, column: Ints) -> None:
        per_task = request.per_task
        self.cpu, self.memory, self.gpus = per_task.cpu_millis, per_task.memory_mib, per_task.gpus
        self.share = per_task.gpu_millis if request.shares_gpu else 0
        #: Of each node its devices that count.
        self.usable: list[int] = []
        if self.gpus:
            self.usable = domains.devices.usable_bits(request.gpu_model, request.gpu_memory_mib)
        self.column = column


class DomainCapacity:
    """What domains have left in a workspace, and live columns of how many tasks fit whole into one of them."""

    def __init__(
        self, domains: Domains, devices: FreeDevices, free_cpu_millis: Ints, free_memory_mib: Ints
    ) -> None:
        """`free_cpu_millis` and `free_memory_mib` are the live columns of the workspace."""
        self.domains = domains
        self._devices = devices
        self._node_cpu, self._node_memory = cells(free_cpu_millis), cells(free_memory_mib)
        self._count = len(domains)
        self._size_cpu: list[int] = domains.size_cpu_millis.tolist()
        self._size_memory: list[int] = domains.size_memory_mib.tolist()
        #: CPU and then memory of every domain that is not bound. The workspace puts it back after a trial.
        self.free: list[int] = domains.free.tolist()
        self._needs: dict[RequestClass, _Need] = {}

    def slots(self, request: RequestClass) -> Ints:
        """A live column: how many tasks each node takes now, each whole in one domain."""
        return self._need(request).column

    def update(self, row: int) -> None:
        """Bring the columns up to date where a node has changed."""
        idle, used = self._devices.idle[row], list[int]()
        for need in self._needs.values():
            if need.share and not used:
                used = self._devices.held_on(row)
            need.column[row] = sum(self._fitting(need, row, idle, used))

    def hold(self, domain: int, per_task: Resources, sign: int = 1) -> None:
        self.free[domain] -= sign * per_task.cpu_millis
        self.free[self._count + domain] -= sign * per_task.memory_mib

    def become(self, free: Ints) -> None:
        """Let just this be free in every domain; `update` of all nodes that change follows."""
        self.free[:] = free.tolist()

    def match(self, row: int, now: list[int], later: Ints) -> None:
        """Let the domains of a node have free what they have both now and later; its `update` follows."""
        for domain in range(self.domains.first[row], self.domains.first[row + 1]):
            for place in (domain, self._count + domain):
                self.free[place] = min(now[place], later.item(place))

    def pick(self, request: RequestClass, row: int) -> int:
        """The domain for one task on a node: the one that it fills best, the lowest among equals; -1 = none.

        Of shares, where the device is that is used most; else where it leaves the fewest idle devices, then CPUs.
        """
        used, idle = self._devices.held_on(row), self._devices.idle[row]
        need, first = self._need(request), self.domains.first[row]
        best: tuple[int, int, int, int] | None = None
        for domain, tasks in enumerate(self._fitting(need, row, idle, used), first):
            if tasks <= 0:
                continue
            here = self.domains.bits[domain] & (need.usable[row] if need.gpus else -1)
            fullest = 0
            if need.share:
                fullest = max(
                    (used[at] for at in _places(here) if used[at] + need.share <= GPU_MILLIS), default=0
                )
            worth = -fullest, (here & idle).bit_count(), self.free[domain], domain
            if best is None or worth < best:
                best = worth
        return best[3] if best is not None else -1

    def fits(self, request: RequestClass, row: int, domain: int, devices: list[int]) -> bool:
        """Whether one task fits into this domain of a node, with these devices."""
        first, last = self.domains.first[row], self.domains.first[row + 1]
        if not first <= domain < last or any(self.domains.of_device[one] != domain for one in devices):
            return False
        used = self._devices.held_on(row)
        return self._fitting(self._need(request), row, self._devices.idle[row], used)[domain - first] > 0

    def within(self, domain: int) -> int:
        """The devices of a domain as a mask over those of its node."""
        return self.domains.bits[domain]

    def roomiest(self, request: RequestClass, row: int) -> tuple[int, int, int]:
        """The most CPU, the most memory and the most devices that a single domain of a node has free."""
        first, last = self.domains.first[row], self.domains.first[row + 1]
        need = self._need(request)
        idle = self._devices.idle[row] & need.usable[row] if need.gpus else 0
        memory = self.free[self._count + first : self._count + last]
        return (
            max(0, min(self._node_cpu[row], max(self.free[first:last]))),
            max(0, min(self._node_memory[row], max(memory))),
            max((bits & idle).bit_count() for bits in self.domains.bits[first:last]),
        )

    def _need(self, request: RequestClass) -> _Need:
        need = self._needs.get(request)
        if need is None:
            free = np.array(self.free, dtype=np.int64)
            column = self.domains.slots(request, free, self._devices.used)
            need = self._needs[request] = _Need(self.domains, request, column)
        return need

    def _fitting(self, need: _Need, row: int, idle: int, used: list[int]) -> list[int]:
        """Of each domain of a node the tasks that fit into it; by the same arithmetic as `Domains.slots`.

        `used` says what each device of the node holds; it is only asked where tasks share one.
        """
        cpu, memory, gpus, free, found = need.cpu, need.memory, need.gpus, self.free, []
        usable = need.usable[row] if gpus else 0
        for domain in range(self.domains.first[row], self.domains.first[row + 1]):
            tasks = _ANY_NUMBER
            if cpu:
                tasks = free[domain] // cpu if self._size_cpu[domain] >= cpu else 0
            if memory and tasks > 0:
                fits = free[self._count + domain] // memory if self._size_memory[domain] >= memory else 0
                tasks = min(tasks, fits)
            if gpus and tasks > 0:
                here = self.domains.bits[domain] & usable
                if need.share:
                    fits = sum([(GPU_MILLIS - used[place]) // need.share for place in _places(here)])
                else:
                    fits = (here & idle).bit_count() // gpus
                tasks = min(tasks, fits)
            found.append(tasks if tasks > 0 else 0)
        return found


def _places(bits: int) -> list[int]:
    found = []
    while bits:
        low = bits & -bits
        found.append(low.bit_length() - 1)
        bits ^= low
    return found


# Columns of what is bound, for code that makes snapshots.

#: (node row, number of the domain) to CPU and memory that are bound there.
Bound = dict[tuple[int, int], tuple[int, int]]


def bound_in(nodes: NodeColumns) -> Bound:
    """What nodes say is bound in their domains."""
    return {
        (row, number): (cpu_millis, memory_mib)
        for row, bound in enumerate(nodes.bound)
        for number, cpu_millis, memory_mib in bound
    }


def bind(bound: Bound, row: int, number: int, cpu_millis: int, memory_mib: int) -> None:
    """Add amounts to what is bound in a domain, negative ones to take off; a number below 0 is no domain."""
    if number >= 0:
        cpu, memory = bound.get((row, number), (0, 0))
        bound[row, number] = (cpu + cpu_millis, memory + memory_mib)


def bound_column(bound: Mapping[tuple[int, int], tuple[int, int]], nodes: int) -> tuple[Amounts, ...]:
    """The same as a column of this many nodes."""
    column: list[list[tuple[int, int, int]]] = [[] for _ in range(nodes)]
    for (row, number), (cpu_millis, memory_mib) in sorted(bound.items()):
        if cpu_millis or memory_mib:
            column[row].append((number, cpu_millis, memory_mib))
    return tuple(map(tuple, column))
