"""World: a snapshot with its ids resolved to rows, and static questions about nodes answered by columns."""

from __future__ import annotations

from functools import cached_property
from itertools import chain
from typing import Final

import numpy as np
import numpy.typing as npt

from quotas.core.gpu_models import model_matches
from scheduler.core.classes import HARD_EFFECTS, PREFER_NO_SCHEDULE, Requirement, Taint, Toleration
from scheduler.core.columns import Bools, Ints, rows_of
from scheduler.core.company import Company
from scheduler.core.lifecycle import NodeState
from scheduler.core.paths import Paths
from scheduler.core.snapshot import Snapshot, share_key

#: Masks of devices up to here are sums of powers of two that a float holds exactly.
_EXACT_BITS: Final = 51


class World:
    """Row numbers in place of ids. Immutable once made; scratch state is in the workspace.

    Devices are kept in the order (node row, position), so that a node's devices are one slice.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        nodes, devices = snapshot.nodes, snapshot.devices
        self.snapshot = snapshot
        self.node_count = len(nodes)
        up = NodeState.UP
        self.is_up: Bools = np.array([state == up for state in nodes.state], dtype=np.bool_)

        self.all_up = bool(self.is_up.all())

        node_row = rows_of(nodes.id, devices.node_id, what="node")
        order = np.lexsort((devices.id, devices.position, node_row))
        self.device_node: Ints = node_row[order]
        self.device_id: Ints = devices.id[order]
        self.device_numa: Ints = devices.numa[order]
        self.device_memory: Ints = devices.memory_mib[order]
        self.device_healthy: Bools = devices.healthy[order]
        self.device_used: Ints = devices.used_millis[order]
        self.device_first: list[int] = np.searchsorted(
            self.device_node, np.arange(self.node_count + 1)
        ).tolist()
        self.device_id_list: list[int] = self.device_id.tolist()
        self.device_numa_list: list[int] = self.device_numa.tolist()
        self.device_healthy_list: list[bool] = self.device_healthy.tolist()
        self.numa_count = int(self.device_numa.max(initial=0)) + 1

        self._repelled: dict[tuple[tuple[Toleration, ...], bool], Bools | None] = {}
        self._gpu_counts: dict[tuple[str, int], Ints] = {}
        self._gpus_held: dict[tuple[str, int], Ints] = {}
        self._kinds: dict[bytes, int] = {}
        #: Of each node its `kind_of`, where somebody has asked; -1 elsewhere.
        self.kinds = [-1] * self.node_count
        self._domains: dict[str, Ints] = {}
        self._labelled: dict[tuple[str, str], Bools] = {}
        self._reaching: dict[tuple[int, int], tuple[Ints, Bools]] = {}
        self._gpu_matches: dict[tuple[str, int], Bools] = {}
        self._models_of: dict[tuple[str, int], tuple[str, ...]] = {}
        self._models = tuple(dict.fromkeys(devices.model))
        place = {model: number for number, model in enumerate(self._models)}
        self._model_number: Ints = np.array(list(map(place.__getitem__, devices.model)), dtype=np.int64)[
            order
        ]

    # Rows of ids.

    @cached_property
    def node_row(self) -> dict[int, int]:
        return {node_id: row for row, node_id in enumerate(self.snapshot.nodes.id.tolist())}

    @cached_property
    def device_row(self) -> dict[int, int]:
        return {device_id: row for row, device_id in enumerate(self.device_id_list)}

    @cached_property
    def pending_queue(self) -> Ints:
        return rows_of(self.snapshot.queues.id, self.snapshot.pending.queue_id, what="queue")

    @cached_property
    def pending_project(self) -> Ints:
        return rows_of(self.snapshot.projects.id, self.snapshot.pending.project_id, what="project")

    @cached_property
    def pending_share(self) -> Ints:
        """The row of each pending job's share; that of its project for somebody not known there; -1 without any."""
        pending, keys = self.snapshot.pending, self.snapshot.shares.id
        found = np.full(len(pending), -1, dtype=np.int64)
        for user in (np.zeros(len(pending), dtype=np.int64), pending.user_id) if len(keys) else ():
            wanted = share_key(pending.project_id, user)
            place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
            found = np.where(keys[place] == wanted, place, found)
        return found

    @cached_property
    def paths(self) -> Paths:
        """The quota lines that each job counts on."""
        return Paths(self.snapshot, self.pending_project)

    @cached_property
    def allocation_node(self) -> Ints:
        return rows_of(self.snapshot.nodes.id, self.snapshot.allocations.node_id, what="node")

    @cached_property
    def company(self) -> Company:
        """Who has to do with whom, by the terms that jobs have about each other."""
        return Company(self.snapshot)

    @cached_property
    def allocation_end_ms(self) -> Ints:
        """When the job of each allocation is expected to end; 0 = unknown."""
        running = self.snapshot.running
        return running.expected_end_ms[
            rows_of(running.id, self.snapshot.allocations.job_id, what="running job")
        ]

    def gpus_held(self, model: str, memory_mib: int) -> Ints:
        """How many devices of a model and memory each allocation holds."""
        key = (model, memory_mib)
        if key not in self._gpus_held:
            self._gpus_held[key] = self._devices_held(self.gpu_matches(model, memory_mib))
        return self._gpus_held[key]

    @cached_property
    def ending(self) -> tuple[Ints, Ints]:
        """Allocations whose end is known, the first to end first, and the node row of each."""
        ends = self.allocation_end_ms
        order = np.argsort(ends, kind="stable")
        order = order[ends[order] > 0]
        return order, self.allocation_node[order]

    def _devices_held(self, devices: Bools) -> Ints:
        allocation, device = self.allocated_devices
        return np.bincount(allocation[devices[device]], minlength=len(self.snapshot.allocations)).astype(
            np.int64
        )

    @cached_property
    def allocated_devices(self) -> tuple[Ints, Ints]:
        """(row of the allocation, row of the device) of every device that is held."""
        held = self.snapshot.allocations.device_ids
        counts = np.fromiter(map(len, held), dtype=np.int64, count=len(held))
        ids = np.fromiter(chain.from_iterable(held), dtype=np.int64, count=int(counts.sum()))
        allocation = np.repeat(np.arange(len(held)), counts)
        order = np.argsort(self.device_id, kind="stable")
        place = np.minimum(np.searchsorted(self.device_id[order], ids), max(len(order) - 1, 0))
        known = self.device_id[order[place]] == ids if len(order) else np.zeros(len(ids), dtype=np.bool_)
        return allocation[known], order[place[known]]

    # Static facts of nodes, one array a question.

    @cached_property
    def not_cordoned(self) -> Bools | None:
        """None = none is."""
        cordoned = self.snapshot.nodes.cordoned
        return ~cordoned if cordoned.any() else None

    @cached_property
    def not_draining(self) -> Bools | None:
        """None = none is."""
        draining = self.snapshot.nodes.draining
        return ~draining if draining.any() else None

    @cached_property
    def all_healthy(self) -> bool:
        return bool(self.device_healthy.all())

    @cached_property
    def _labels(self) -> dict[str, dict[str, list[int]]]:
        """Label key -> value -> rows of the nodes that have it: read once, however many classes ask."""
        table: dict[str, dict[str, list[int]]] = {}
        for row, labels in enumerate(self.snapshot.nodes.labels):
            for key, value in labels:
                table.setdefault(key, {}).setdefault(value, []).append(row)
        return table

    @cached_property
    def sizes(self) -> tuple[Ints, Ints] | None:
        """CPU and memory that each machine really has; None where no more is given away than that."""
        nodes, most = self.snapshot.nodes, np.iinfo(np.int64).max
        cpu = np.where(nodes.size_cpu_millis > 0, nodes.size_cpu_millis, most)
        memory = np.where(nodes.size_memory_mib > 0, nodes.size_memory_mib, most)
        if (cpu >= nodes.cpu_millis).all() and (memory >= nodes.memory_mib).all():
            return None
        return cpu, memory

    def labelled(self, key: str, value: str) -> Bools:
        """Nodes that carry this label."""
        known = self._labelled.get((key, value))
        if known is None:
            known = self._labelled[key, value] = self._mask(self._labels.get(key, {}).get(value, []))
        return known

    def label_numbers(self, key: str) -> npt.NDArray[np.float64]:
        """The number in a label of every node; not-a-number where it is missing or no finite number."""
        numbers = np.full(self.node_count, np.nan)
        for value, rows in self._labels.get(key, {}).items():
            try:
                number = float(value)
            except ValueError:
                continue
            numbers[rows] = number if np.isfinite(number) else np.nan
        return numbers

    def domains(self, level: str) -> Ints:
        """The rack, zone or region of every node as a number, by name; -1 where none is said.

        A node is its own domain, and all nodes are of one backend.
        """
        if level == "node":
            return np.arange(self.node_count)
        if level == "backend":
            return np.zeros(self.node_count, dtype=np.int64)
        if level not in self._domains:
            names = getattr(self.snapshot.nodes, level)
            place = {name: number for number, name in enumerate(sorted({name for name in names if name}))}
            self._domains[level] = np.array([place.get(name, -1) for name in names], dtype=np.int64)
        return self._domains[level]

    def meets(self, requirement: Requirement) -> Bools:
        """Nodes whose labels meet one condition: each distinct value of the key is tried once."""
        values = self._labels.get(requirement.key, {})
        met = np.full(self.node_count, requirement.holds_for({}), dtype=np.bool_)
        for value, rows in values.items():
            met[rows] = requirement.holds_for({requirement.key: value})
        return met

    @cached_property
    def _taints(self) -> dict[Taint, list[int]]:
        table: dict[Taint, list[int]] = {}
        for row, taints in enumerate(self.snapshot.nodes.taints):
            for taint in taints:
                table.setdefault(taint, []).append(row)
        return table

    def repelled(self, tolerations: tuple[Toleration, ...], *, hard: bool) -> Bools | None:
        """Nodes with a taint that none of these tolerates, hard or soft; None when there is none."""
        key = (tolerations, hard)
        if key in self._repelled:
            return self._repelled[key]
        effects = HARD_EFFECTS if hard else frozenset({PREFER_NO_SCHEDULE})
        mask: Bools | None = None
        for taint, rows in self._taints.items():
            if taint.effect in effects and not any(toleration.tolerates(taint) for toleration in tolerations):
                mask = np.zeros(self.node_count, dtype=np.bool_) if mask is None else mask
                mask[rows] = True
        self._repelled[key] = mask
        return mask

    @cached_property
    def _partitions(self) -> dict[int, list[int]]:
        table: dict[int, list[int]] = {}
        for row, partitions in enumerate(self.snapshot.nodes.partition_ids):
            for partition in partitions:
                table.setdefault(partition, []).append(row)
        return table

    def in_partitions(self, partition_ids: tuple[int, ...]) -> Bools:
        """Nodes in at least one of these partitions."""
        mask = np.zeros(self.node_count, dtype=np.bool_)
        for partition in partition_ids:
            mask[self._partitions.get(partition, [])] = True
        return mask

    def reserved(self, reservation_rows: tuple[int, ...]) -> Bools:
        """Nodes that any of these reservations holds."""
        mask = np.zeros(self.node_count, dtype=np.bool_)
        for row in reservation_rows:
            for node_id in self.snapshot.reservations.node_ids[row]:
                if node_id in self.node_row:  # a reservation may name nodes of another scope
                    mask[self.node_row[node_id]] = True
        return mask

    def gpu_matches(self, model: str, memory_mib: int) -> Bools:
        """Devices, healthy or not, of a model and with at least so much memory."""
        key = (model, memory_mib)
        if key not in self._gpu_matches:
            mask = self.device_memory >= memory_mib
            if model:
                fitting = np.array([model_matches(model, have) for have in self._models], dtype=np.bool_)
                mask = mask & fitting[self._model_number] if len(fitting) else mask
            self._gpu_matches[key] = mask
        return self._gpu_matches[key]

    def models_of(self, model: str, memory_mib: int) -> tuple[str, ...]:
        """The names of all devices, healthy or not, of a model and with at least so much memory."""
        key = (model, memory_mib)
        if key not in self._models_of:
            met = np.unique(self._model_number[self.gpu_matches(model, memory_mib)]).tolist()
            self._models_of[key] = tuple(self._models[number] for number in met)
        return self._models_of[key]

    def model_of(self, device_row: int) -> str:
        return self._models[self._model_number.item(device_row)]

    def gpu_counts(self, model: str, memory_mib: int) -> Ints:
        """How many such devices each node has, healthy or not."""
        key = (model, memory_mib)
        if key not in self._gpu_counts:
            self._gpu_counts[key] = self.per_node(self.gpu_matches(model, memory_mib))
        return self._gpu_counts[key]

    def bits_of(self, devices: Bools) -> list[int]:
        """Of each node, these devices as a mask: bit 0 is its first device."""
        place = np.arange(len(devices)) - np.array(self.device_first, dtype=np.int64)[self.device_node]
        if int(place.max(initial=0)) <= _EXACT_BITS:
            weights = np.ldexp(1.0, place[devices])
            sums = np.bincount(self.device_node[devices], weights=weights, minlength=self.node_count)
            exact: list[int] = sums.astype(np.int64).tolist()
            return exact
        masks = [0] * self.node_count
        for row, bit in zip(self.device_node[devices].tolist(), place[devices].tolist(), strict=True):
            masks[row] |= 1 << bit
        return masks

    @cached_property
    def domain_bits(self) -> list[list[int]]:
        """For each NUMA domain, of each node a mask of its devices in it."""
        numbers = np.unique(self.device_numa).tolist()
        return [self.bits_of(self.device_numa == number) for number in numbers]

    @cached_property
    def node_domains(self) -> list[tuple[int, ...]]:
        """The same turned round: for each node, its devices in each NUMA domain."""
        return list(zip(*self.domain_bits, strict=True)) or [()] * self.node_count

    def kind_of(self, row: int) -> int:
        """A number for a node: equal where the devices are alike, one by one, in all that stays."""
        first, last = self.device_first[row], self.device_first[row + 1]
        alike = self._device_facts[first:last].tobytes()
        return self._kinds.setdefault(alike, len(self._kinds))

    @cached_property
    def _device_facts(self) -> Ints:
        return np.stack(
            [self._model_number, self.device_memory, self.device_healthy, self.device_numa], axis=1
        ).astype(np.int64)

    def reaches(self, column: Ints, need: int) -> Bools:
        """Where a column that stays is at least so much: many requests need as much of one resource."""
        key = (id(column), need)
        known = self._reaching.get(key)
        if known is None:
            known = self._reaching[key] = column, column >= need  # the column too: its id must stay its own
        return known[1]

    def per_node(self, devices: Bools) -> Ints:
        """How many of these devices each node has."""
        return np.bincount(self.device_node[devices], minlength=self.node_count).astype(np.int64)

    def _mask(self, rows: list[int]) -> Bools:
        mask = np.zeros(self.node_count, dtype=np.bool_)
        mask[rows] = True
        return mask
