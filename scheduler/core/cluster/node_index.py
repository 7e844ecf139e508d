"""The node index: rows of node ids, and what nodes are by state, label, taint, partition and place, as masks."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

import numpy as np
import numpy.typing as npt

from scheduler.core.columns import Bools, Ints
from scheduler.core.lifecycle import NodeState
from scheduler.core.snapshot.constraints import (
    HARD_EFFECTS,
    NODE_NAME,
    PREFER_NO_SCHEDULE,
    Labels,
    Requirement,
    Taint,
    Toleration,
)
from scheduler.core.snapshot.snapshot import NodeColumns, ReservationColumns


class NodeIndex:
    """Facts about nodes that stay for a cycle. A mask or column has one entry a node, in the order of the snapshot."""

    def __init__(self, nodes: NodeColumns, reservations: ReservationColumns) -> None:
        self._nodes, self._reservations = nodes, reservations
        self.count = len(nodes)
        self.all_up = nodes.state.count(NodeState.UP) == len(nodes)
        self.is_up: Bools = np.ones(len(nodes), dtype=np.bool_)
        if not self.all_up:
            self.is_up = np.array([state == NodeState.UP for state in nodes.state], dtype=np.bool_)
        self._repelled: dict[tuple[tuple[Toleration, ...], bool], Bools | None] = {}
        self._labelled: dict[tuple[str, str], Bools] = {}
        self._domains: dict[str, Ints] = {}

    @cached_property
    def row(self) -> dict[int, int]:
        """Node id -> row."""
        return {node_id: row for row, node_id in enumerate(self.ids)}

    @cached_property
    def ids(self) -> list[int]:
        ids: list[int] = self._nodes.id.tolist()
        return ids

    # State and size.

    @cached_property
    def not_cordoned(self) -> Bools | None:
        """None = no node is cordoned."""
        cordoned = self._nodes.cordoned
        return ~cordoned if cordoned.any() else None

    @cached_property
    def not_draining(self) -> Bools | None:
        """None = no node is draining."""
        draining = self._nodes.draining
        return ~draining if draining.any() else None

    @cached_property
    def not_faulty(self) -> Bools | None:
        """None = no node is faulty."""
        faulty = self._nodes.faulty
        return ~faulty if faulty.any() else None

    @cached_property
    def sizes(self) -> tuple[Ints, Ints] | None:
        """CPU and memory that each machine really has; None where no node is overcommitted."""
        nodes, most = self._nodes, np.iinfo(np.int64).max
        cpu = np.where(nodes.size_cpu_millis > 0, nodes.size_cpu_millis, most)
        memory = np.where(nodes.size_memory_mib > 0, nodes.size_memory_mib, most)
        if (cpu >= nodes.cpu_millis).all() and (memory >= nodes.memory_mib).all():
            return None
        return cpu, memory

    # Labels.

    @cached_property
    def _labels(self) -> dict[str, dict[str, list[int]]]:
        """Label key -> value -> rows of the nodes that carry it: read once, however many classes ask."""
        table: dict[str, dict[str, list[int]]] = {}
        rows_with: dict[Labels, list[int]] = {}
        for row, labels in enumerate(self._nodes.labels):
            rows_with.setdefault(labels, []).append(row)
        for labels, rows in rows_with.items():
            for key, value in labels:
                table.setdefault(key, {}).setdefault(value, []).extend(rows)
        return table

    @cached_property
    def _names(self) -> dict[str, list[int]]:
        return {name: [row] for row, name in enumerate(self._nodes.name)}

    def labelled(self, key: str, value: str) -> Bools:
        """Nodes that carry this label."""
        known = self._labelled.get((key, value))
        if known is None:
            known = self._labelled[key, value] = self._mask(self._labels.get(key, {}).get(value, []))
        return known

    def label_numbers(self, key: str) -> npt.NDArray[np.float64]:
        """The number in a label of every node; not-a-number where it is missing or no finite number."""
        numbers = np.full(self.count, np.nan)
        for value, rows in self._labels.get(key, {}).items():
            try:
                number = float(value)
            except ValueError:
                continue
            numbers[rows] = number if np.isfinite(number) else np.nan
        return numbers

    def meets(self, requirement: Requirement) -> Bools:
        """Nodes whose labels meet one condition: each distinct value of the key is tried once."""
        values = self._names if requirement.key == NODE_NAME else self._labels.get(requirement.key, {})
        met = np.full(self.count, requirement.holds_for({}), dtype=np.bool_)
        for value, rows in values.items():
            met[rows] = requirement.holds_for({requirement.key: value})
        return met

    # Taints.

    @cached_property
    def _taints(self) -> dict[Taint, list[int]]:
        table: dict[Taint, list[int]] = {}
        for row, taints in enumerate(self._nodes.taints) if any(self._nodes.taints) else ():
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
                mask = np.zeros(self.count, dtype=np.bool_) if mask is None else mask
                mask[rows] = True
        self._repelled[key] = mask
        return mask

    # Partitions, reservations and topology.

    @cached_property
    def _partitions(self) -> dict[int, list[int]]:
        table: dict[int, list[int]] = {}
        for row, partitions in enumerate(self._nodes.partition_ids):
            for partition in partitions:
                table.setdefault(partition, []).append(row)
        return table

    def in_partitions(self, partition_ids: tuple[int, ...]) -> Bools:
        """Nodes in at least one of these partitions."""
        mask = np.zeros(self.count, dtype=np.bool_)
        for partition in partition_ids:
            mask[self._partitions.get(partition, [])] = True
        return mask

    def reserved(self, reservation_rows: tuple[int, ...]) -> Bools:
        """Nodes that any of these reservations holds whole."""
        return self._mask_of(node for row in reservation_rows for node in self._reservations.node_ids[row])

    def reserved_in_part(self, reservation_rows: tuple[int, ...]) -> Bools:
        """Nodes of which any of these reservations holds a part."""
        return self._mask_of(node for row in reservation_rows for node, *_ in self._reservations.parts[row])

    def _mask_of(self, node_ids: Iterable[int]) -> Bools:
        # A reservation may name nodes of another scope.
        return self._mask([self.row[node_id] for node_id in node_ids if node_id in self.row])

    def domains(self, level: str) -> Ints:
        """The rack, zone or region of every node as a number, by name; -1 where none is given.

        A node is its own domain, and all nodes are of one backend.
        """
        if level == "node":
            return np.arange(self.count)
        if level == "backend":
            return np.zeros(self.count, dtype=np.int64)
        if level not in self._domains:
            names = getattr(self._nodes, level)
            number = {name: place for place, name in enumerate(sorted({name for name in names if name}))}
            self._domains[level] = np.array([number.get(name, -1) for name in names], dtype=np.int64)
        return self._domains[level]

    def _mask(self, rows: list[int]) -> Bools:
        mask = np.zeros(self.count, dtype=np.bool_)
        mask[rows] = True
        return mask
