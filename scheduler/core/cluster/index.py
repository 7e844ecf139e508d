"""The cluster index: a snapshot with its ids resolved to rows, and static facts about nodes as columns."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import cached_property
from itertools import chain, pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from quotas.core.gpu_models import share_of, slice_of, suits
from quotas.core.resources import GPU_MILLIS
from scheduler.core.cluster.affinity import AffinityIndex
from scheduler.core.cluster.numa import Domains
from scheduler.core.cluster.quota_paths import QuotaPaths
from scheduler.core.columns import Bools, Ints, find_rows, rows_of, stable_order
from scheduler.core.lifecycle import NodeState
from scheduler.core.snapshot.request_classes import (
    HARD_EFFECTS,
    PREFER_NO_SCHEDULE,
    Labels,
    Requirement,
    Taint,
    Toleration,
)
from scheduler.core.snapshot.snapshot import Snapshot, share_key

#: Masks of devices up to here are sums of powers of two that a float holds exactly.
_EXACT_BITS: Final = 51


class ClusterIndex:
    """Row numbers in place of ids. Immutable once made; scratch state is in the workspace.

    Devices are kept in the order (node row, position), so that a node's devices are one slice.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        nodes, devices = snapshot.nodes, snapshot.devices
        self.snapshot = snapshot
        self.node_count = len(nodes)
        up = NodeState.UP
        self.all_up = nodes.state.count(up) == len(nodes)
        self.is_up: Bools = np.ones(len(nodes), dtype=np.bool_)
        if not self.all_up:
            self.is_up = np.array([state == up for state in nodes.state], dtype=np.bool_)

        node_row = rows_of(nodes.id, devices.node_id, what="node")
        order = _by_node(node_row, devices.position, devices.id)
        self.device_node: Ints = node_row[order]
        self.device_id: Ints = devices.id[order]
        self.device_numa: Ints = devices.numa[order]
        self.device_memory: Ints = devices.memory_mib[order]
        self.device_healthy: Bools = devices.healthy[order]
        self.device_used: Ints = devices.used_millis[order]
        self.device_first: list[int] = np.searchsorted(
            self.device_node, np.arange(self.node_count + 1)
        ).tolist()
        self.numa_count = int(self.device_numa.max(initial=0)) + 1

        self._repelled: dict[tuple[tuple[Toleration, ...], bool], Bools | None] = {}
        self._gpu_counts: dict[tuple[str, int], Ints] = {}
        self._gpus_held: dict[tuple[str, int], Ints] = {}
        self._usable_bits: dict[tuple[str, int], list[int]] = {}
        self._freed: dict[tuple[bytes, int, int], tuple[Ints, tuple[Ints, Ints]]] = {}
        self._sums: dict[tuple[bytes, int], tuple[Ints, int]] = {}
        self._amounts: dict[tuple[str, str, int], tuple[Ints, Ints]] = {}
        self._where: dict[tuple[int, ...], tuple[tuple[Bools, ...], tuple[Bools | None, Bools | None]]] = {}
        self._domains: dict[str, Ints] = {}
        self._labelled: dict[tuple[str, str], Bools] = {}
        self._reaching: dict[tuple[int, int], tuple[Ints, Bools]] = {}
        self._gpu_matches: dict[tuple[str, int], Bools] = {}
        self._models_of: dict[tuple[str, int], tuple[str, ...]] = {}
        place: defaultdict[str, int] = defaultdict()
        place.default_factory = place.__len__  # numbered as they are met
        numbers = np.fromiter(map(place.__getitem__, devices.model), dtype=np.int64, count=len(devices))
        self._models = tuple(place)
        self._has_slices = any(slice_of(model) for model in self._models)
        self._model_number: Ints = numbers[order]

    # Rows of ids.

    @cached_property
    def node_row(self) -> dict[int, int]:
        return {node_id: row for row, node_id in enumerate(self.snapshot.nodes.id.tolist())}

    @cached_property
    def node_id_list(self) -> list[int]:
        ids: list[int] = self.snapshot.nodes.id.tolist()
        return ids

    @cached_property
    def device_id_list(self) -> list[int]:
        ids: list[int] = self.device_id.tolist()
        return ids

    @cached_property
    def device_numa_list(self) -> list[int]:
        numbers: list[int] = self.device_numa.tolist()
        return numbers

    @cached_property
    def device_healthy_list(self) -> list[bool]:
        healthy: list[bool] = self.device_healthy.tolist()
        return healthy

    @cached_property
    def device_domain(self) -> Ints:
        """Of each device a number for its node and NUMA domain."""
        return self.device_node * self.numa_count + self.device_numa

    @cached_property
    def device_share(self) -> Ints:
        """Thousandths of a GPU that each device is: a slice is its part."""
        if not self._has_slices:
            return np.full(len(self.device_id), GPU_MILLIS, dtype=np.int64)
        return np.array([share_of(model) for model in self._models], dtype=np.int64)[self._model_number]

    @cached_property
    def gpu_capacity(self) -> Ints:
        """Thousandths of working devices that each node has."""
        return self.per_node(self.device_healthy * self.device_share)

    @cached_property
    def most_gpu_millis(self) -> int:
        """As much GPU as any node has, working or not."""
        return int(self.per_node(self.device_share).max(initial=0))

    def slice_numbers(self, names: Sequence[str]) -> Ints:
        """Of each device the place of its slice among these names; -1 = whole, -2 = another slice."""
        place = {"": -1} | {name: number for number, name in enumerate(names)}
        numbers = np.array([place.get(slice_of(model), -2) for model in self._models] or [-1], dtype=np.int64)
        return numbers[self._model_number]

    @cached_property
    def most_devices(self) -> int:
        """As many as any node has, working or not."""
        return int(np.bincount(self.device_node, minlength=1).max(initial=0))

    @cached_property
    def tasks_on(self) -> Ints:
        """Tasks that run on each node."""
        return np.bincount(self.allocation_node, minlength=self.node_count).astype(np.int64)

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
    def paths(self) -> QuotaPaths:
        """The quota lines that each job counts on."""
        return QuotaPaths(self.snapshot, self.pending_project)

    @cached_property
    def allocation_node(self) -> Ints:
        return rows_of(self.snapshot.nodes.id, self.snapshot.allocations.node_id, what="node")

    @cached_property
    def affinity(self) -> AffinityIndex:
        """Who has to do with whom, by the terms that jobs have about each other."""
        return AffinityIndex(self.snapshot)

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
        order = stable_order(ends)
        order = order[np.count_nonzero(ends <= 0) :]
        return order, self.allocation_node[order]

    def freed(self, nodes: Bools, amounts: Ints, count: int) -> tuple[Ints, Ints]:
        """Of the `count` allocations that end first, those on `nodes`, with the cumulative amount they release."""
        key = (nodes.tobytes(), id(amounts), count)
        known = self._freed.get(key)
        if known is None:
            order, on_node = self.ending
            rows = order[:count][nodes[on_node[:count]]]
            known = self._freed[key] = amounts, (rows, amounts[rows].cumsum())  # its id must stay its own
        return known[1]

    def sum_over(self, column: Ints, nodes: Bools) -> int:
        """What some nodes have together of what stays."""
        key = (nodes.tobytes(), id(column))
        known = self._sums.get(key)
        if known is None:
            known = self._sums[key] = column, int(column[nodes].sum())
        return known[1]

    def _devices_held(self, devices: Bools) -> Ints:
        allocation, device = self.allocated_devices
        return np.bincount(allocation[devices[device]], minlength=len(self.snapshot.allocations)).astype(
            np.int64
        )

    @cached_property
    def allocated_devices(self) -> tuple[Ints, Ints]:
        """(row of the allocation, row of the device) of every device that is held."""
        held = self.snapshot.allocations.device_ids
        ids: Ints = np.array(list(chain.from_iterable(held)), dtype=np.int64)
        allocation = np.arange(len(held))
        if set(map(len, held)) != {1}:
            allocation = np.repeat(allocation, np.fromiter(map(len, held), dtype=np.int64, count=len(held)))
        order = np.arange(len(self.device_id))
        if (np.diff(self.device_id) < 0).any():
            order = stable_order(self.device_id)
        place = find_rows(self.device_id[order], ids)
        if len(place) and int(place.min()) < 0:
            known = place >= 0
            allocation, place = allocation[known], place[known]
        return allocation, order[place]

    # Static facts of nodes, one array a query.

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
        alike: dict[Labels, list[int]] = {}
        for row, labels in enumerate(self.snapshot.nodes.labels):
            alike.setdefault(labels, []).append(row)
        for labels, rows in alike.items():
            for key, value in labels:
                table.setdefault(key, {}).setdefault(value, []).extend(rows)
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
        for row, taints in enumerate(self.snapshot.nodes.taints) if any(self.snapshot.nodes.taints) else ():
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
            if model or self._has_slices:
                fitting = np.array([suits(model, have) for have in self._models], dtype=np.bool_)
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

    def has_gpus(self, model: str, memory_mib: int) -> Bools:
        """Nodes with any such device."""
        return self.reaches(self.gpu_counts(model, memory_mib), 1)

    def amounts(self, resource: str, model: str, memory_mib: int) -> tuple[Ints, Ints]:
        """What every node has of a resource, and what every allocation holds; of such devices where it is GPUs."""
        key = (resource, model, memory_mib)
        known = self._amounts.get(key)
        if known is None:
            nodes, allocations = self.snapshot.nodes, self.snapshot.allocations
            if resource in {"gpus", "gpu_millis"}:
                known = self.gpu_counts(model, memory_mib), self.gpus_held(model, memory_mib)
                if resource == "gpu_millis":
                    known = known[0] * GPU_MILLIS, known[1] * allocations.gpu_millis
            else:
                known = getattr(nodes, resource), getattr(allocations, resource)
            self._amounts[key] = known
        return known

    def bits_of(self, devices: Bools) -> list[int]:
        """Of each node, these devices as a mask: bit 0 is its first device."""
        if not devices.any():
            return [0] * self.node_count
        if self.most_devices <= _EXACT_BITS:
            sums = np.bincount(
                self.device_node, weights=self._device_weight * devices, minlength=self.node_count
            )
            exact: list[int] = sums.astype(np.int64).tolist()
            return exact
        masks = [0] * self.node_count
        place = self._device_place[devices].tolist()
        for row, bit in zip(self.device_node[devices].tolist(), place, strict=True):
            masks[row] |= 1 << bit
        return masks

    @cached_property
    def _device_place(self) -> Ints:
        """The how-manieth of its node each device is."""
        first = np.array(self.device_first, dtype=np.int64)
        return np.arange(len(self.device_node)) - first[self.device_node]

    @cached_property
    def _device_weight(self) -> npt.NDArray[np.float64]:
        return np.ldexp(1.0, self._device_place)

    def usable_bits(self, model: str, memory_mib: int) -> list[int]:
        """Of each node, its working devices of a model and with at least so much memory."""
        key = (model, memory_mib)
        if key not in self._usable_bits:
            self._usable_bits[key] = self.bits_of(self.gpu_matches(model, memory_mib) & self.device_healthy)
        return self._usable_bits[key]

    @cached_property
    def domain_bits(self) -> list[list[int]]:
        """For each NUMA domain, of each node a mask of its devices in it."""
        low = int(self.device_numa.min(initial=0))
        numbers = (np.flatnonzero(np.bincount(self.device_numa - low)) + low).tolist()
        return [self.bits_of(self.device_numa == number) for number in numbers]

    @cached_property
    def node_domains(self) -> list[tuple[int, ...]]:
        """The same turned round: for each node, its devices in each NUMA domain."""
        return list(zip(*self.domain_bits, strict=True)) or [()] * self.node_count

    @cached_property
    def asks_one_domain(self) -> bool:
        """Whether any job demands one NUMA domain for each of its tasks."""
        return any(request.one_domain for request in self.snapshot.classes)

    @cached_property
    def numa(self) -> Domains:
        """The NUMA domains of all nodes."""
        return Domains(self)

    @cached_property
    def kinds(self) -> list[int]:
        """Of each node a number: equal where the devices are alike, one by one, in all that stays."""
        facts = np.empty((len(self.device_node), 4), dtype=np.int32)
        for place, column in enumerate(
            (self._model_number, self.device_memory, self.device_healthy, self.device_numa)
        ):
            facts[:, place] = column
        written, each = facts.tobytes(), facts.strides[0]
        number: dict[bytes, int] = {}
        return [
            number.setdefault(written[begin * each : end * each], len(number))
            for begin, end in pairwise(self.device_first)
        ]

    def where(self, masks: tuple[Bools, ...]) -> tuple[Bools | None, Bools | None]:
        """Nodes where all of these hold, and the others; None twice where that is everywhere."""
        if not masks:
            return None, None
        key = tuple([id(mask) for mask in masks])
        known = self._where.get(key)
        if known is None:
            keep = masks[0]
            for mask in masks[1:]:
                keep = keep & mask
            pair = (None, None) if keep.all() else (keep, ~keep)
            known = self._where[key] = masks, pair  # the masks too: their ids must stay their own
        return known[1]

    def reaches(self, column: Ints, need: int) -> Bools:
        """Where a column that stays is at least so much: many requests need as much of one resource."""
        key = (id(column), need)
        known = self._reaching.get(key)
        if known is None:
            known = self._reaching[key] = column, column >= need  # the column too: its id must stay its own
        return known[1]

    def per_node(self, devices: Bools | Ints) -> Ints:
        """How many of these devices each node has, or how much of each they are together."""
        counts = np.bincount(self.device_node, weights=devices, minlength=self.node_count)
        return counts.astype(np.int64)

    def _mask(self, rows: list[int]) -> Bools:
        mask = np.zeros(self.node_count, dtype=np.bool_)
        mask[rows] = True
        return mask


def _by_node(node_row: Ints, position: Ints, device_id: Ints) -> Ints:
    """The order of devices by node, position, id; mostly they are in it."""
    before, after = node_row[:-1], node_row[1:]
    if ((after > before) | ((after == before) & (position[1:] > position[:-1]))).all():
        return np.arange(len(node_row))
    return np.lexsort((device_id, position, node_row))
