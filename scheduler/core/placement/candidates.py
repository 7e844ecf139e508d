"""Candidates: the nodes that one filter query leaves open, with their scores, kept up to date in a cycle."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any, Final

import numpy as np

from scheduler.core.cluster.free_columns import Floats
from scheduler.core.cluster.numa import DomainCapacity
from scheduler.core.cluster.packed_free import GUARDS, PackedFree
from scheduler.core.cluster.workspace import Workspace
from scheduler.core.columns import Bools, Ints
from scheduler.core.placement.filters import (
    AffinityFilter,
    FilterQuery,
    Headroom,
    NodeFilter,
    capacity_slots,
    fits_empty,
    task_slots,
)
from scheduler.core.placement.node_view import NodeView
from scheduler.core.placement.plugins import Rules
from scheduler.core.placement.scoring import Part
from scheduler.core.placement.shape import Shape

#: A node that cannot take a task; every real score is at least 0.
NO: Final = -1.0

#: Refresh all nodes instead of the touched ones when that is less work (measured: a third of them, or 256).
_FEW_NODES: Final = 256

#: Arithmetic with an array of no dimensions is half as dear as with a number.
_GUARDS: Final = np.array(GUARDS)
_NO: Final = np.array(NO)

#: What lacks on a node is `need - 1 - room`, in bits where the guards are: the reverse of `room - need`.
_NEVER: Final = np.array(PackedFree.never() - 1)
_PACKED: Final = ("cpu_millis", "memory_mib", "gpus")

#: So few touched nodes are looked at one by one: less work than a round of array calls.
_FEW_ROWS: Final = 6


class Candidates:
    """The nodes for one query: a score a node, or `NO`; brought up to date from the workspace's log.

    Idea: filter and score every node each time somebody asks. The code differs in that only nodes touched
    since the last time are looked at again, and that shapes which failed are remembered: inside a cycle
    capacity only shrinks, so what did not fit will not fit later.
    """

    def __init__(
        self, query: FilterQuery, workspace: Workspace, rules: Rules, *, like: Candidates | None = None
    ) -> None:
        """`like` asks the same query of another workspace of this cluster: the facts are the same."""
        self.query = query
        self.workspace = workspace
        self.rules = rules
        self.failed: set[Shape] = set()
        cluster = workspace.cluster
        #: The gates that turn some node away, by name: masks that stay, and columns with what is needed.
        self.facts: dict[str, Bools] = {}
        self.rooms: dict[str, Headroom] = {}
        self._outside_gates: list[NodeFilter] = []
        self._jobs: Headroom | None = None  # a live column of where other jobs let it be
        if like is not None:
            self.facts = like.facts
        else:
            for fact in rules.facts:
                mask = fact.keep(query, cluster)
                if mask is not None:
                    self.facts[fact.name] = mask
        for room in rules.rooms:
            headroom = room.free(query, workspace)
            if headroom is not None:
                self.rooms[room.name] = headroom
        for gate in rules.others:
            if isinstance(gate, AffinityFilter):
                self._jobs = gate.open(query, workspace)
            else:
                self._outside_gates.append(gate)
        #: Nodes that facts leave open, and those that they close; None = they close none.
        self._open, self._closed = cluster.answers.where(tuple(self.facts.values()))
        self._pack_rooms()
        self._parts: list[tuple[str, Part, int]] = []
        self._weights = 0
        for scorer, weight in rules.columns:
            part = scorer.part(query, workspace)
            if part is not None:
                self._parts.append((scorer.name, part, weight))
                self._weights += weight
        self._plain = not self._outside_gates and not rules.asked
        self._features = (
            workspace.columns.gpu_features(query.request) if query.request.per_task.gpus else None
        )
        #: What one task holds of each of its devices; 0 without any.
        self.millis = query.request.device_millis
        self._suitable: Bools | None = None
        self._scores: Floats | None = None
        self._cursor = 0
        #: More touched nodes than this: all are looked at again.
        self._many = cluster.node_count // 3
        if cluster.node_count <= _FEW_NODES:
            self._many = min(self._many, _FEW_ROWS)

    def _pack_rooms(self) -> None:
        """Ask about CPU, memory and devices, and the masks that stay, in one comparison where that is exact."""
        rooms, room = self.rooms, self.workspace.columns.packed(self.query.request)
        self._room = None if room is None else room.column
        self._rooms = [rooms[name] for name in rooms if room is None or name not in _PACKED]
        self._rooms += [self._jobs] if self._jobs is not None else []
        cpu, memory, devices = [rooms[name][1] if name in rooms else 0 for name in _PACKED]
        #: From what to subtract the room of every node that no fact closes, and of each node.
        self._need = PackedFree.need(cpu, memory, devices) - 1
        self._lone_need = np.array(self._need)
        self._needs: Ints | None = None

    @property
    def needs(self) -> Ints:
        """The same of each node; more than any has where facts close it."""
        if self._needs is None:
            assert self._closed is not None
            self._needs = np.where(self._closed, _NEVER, self._lone_need)
        return self._needs

    def _is_closed(self, rows: Ints | None) -> Any:
        """Which of these nodes the built-in gates close now: true, or any number but 0."""
        closed: Any
        if self._room is not None:
            if rows is None:
                closed = (self._lone_need if self._closed is None else self.needs) - self._room
            elif self._closed is None:
                closed = self._lone_need - self._room[rows]
            else:
                closed = self.needs[rows] - self._room[rows]
            closed &= _GUARDS
        elif self._closed is None:
            closed = np.zeros(
                self.workspace.cluster.node_count if rows is None else len(rows), dtype=np.bool_
            )
        else:
            closed = self._closed if rows is None else self._closed[rows]
        for room, need in self._rooms:
            closed = closed | ((room if rows is None else room[rows]) < need)
        return closed

    def passing(self, *, without: str = "") -> Bools:
        """Nodes that every gate on facts lets through, one of them left out."""
        keep: Bools = np.ones(self.workspace.cluster.node_count, dtype=np.bool_)
        if without in self.facts:
            for name, mask in self.facts.items():
                if name != without:
                    keep &= mask
        elif self._open is not None:
            return self._open
        return keep

    @property
    def asks_outside(self) -> bool:
        """Whether a gate is asked that neither a fact nor an amount answers: other jobs, or a plugin."""
        return bool(self._outside_gates) or self._jobs is not None

    def gates_now(self) -> Iterator[tuple[str, Bools]]:
        """Every gate that may turn a node away, in order, with the nodes it lets through as of now."""
        facts, rooms, workspace = self.facts, self.rooms, self.workspace
        if self.rules.in_order and self._jobs is None:
            yield from facts.items()
            for name, (column, need) in rooms.items():
                yield name, workspace.answers.reaches(column, need)
            return
        others = self._outside_gates if self._jobs is None else self.rules.others
        for gate in self.rules.gates:
            name = gate.name
            if name in facts:
                yield name, facts[name]
            elif name in rooms:
                yield name, workspace.answers.reaches(*rooms[name])
            elif gate in others:
                yield name, gate.filter(self.query, NodeView(workspace))

    @property
    def opened(self) -> Bools:
        """Nodes that could take one task were they empty, as they stand: facts let it in."""
        return self.suitable if self._open is None else self._open & self.suitable

    @property
    def scores(self) -> Floats:
        """The same as `refresh`."""
        return self.refresh()

    def refresh(self) -> Floats:
        """Scores as of now."""
        workspace, scores = self.workspace, self._scores
        begin, end = self._cursor, workspace.log_length
        if begin == end and scores is not None:
            return scores
        stale = end - begin
        if scores is None or stale > self._many:
            scores = self._scores = self._score(None)
        elif self._plain and stale > _FEW_ROWS:
            rows = workspace.log[begin:end]
            scores[rows] = self._score(rows)
        elif self._plain:
            for row in workspace.log[begin:end].tolist():
                scores[row] = self._score_row(row)
        else:
            rows = np.unique(workspace.log[begin:end])
            scores[rows] = self._score(rows)
        self._cursor = end
        return scores

    def best(self) -> int:
        """The row of the best node for one task, lowest row first among equals; -1 when none can take it."""
        scores = self.refresh()
        if not len(scores):
            return -1
        row = int(scores.argmax())
        return row if scores.item(row) >= 0.0 else -1

    def pick_devices(self, row: int, domain: int = -1) -> list[int]:
        """Device rows for one task on this node: as a scorer wishes, else as `Workspace.pick_devices`.

        `domain` is the NUMA domain that it is bound to; -1 = to none.
        """
        if domain < 0 and not self.rules.pickers:
            return self.workspace.pick_devices(row, self.query.request, self._features)
        numa = self.workspace.numa if domain >= 0 else None
        for picker in self.rules.pickers:
            device = picker.pick_device(self.query.request, self.workspace, row)
            if device is not None and (numa is None or numa.domains.of_device[device] == domain):
                return [device]
        within = -1 if numa is None else numa.within(domain)
        return self.workspace.pick_devices(row, self.query.request, self._features, within)

    @cached_property
    def numa(self) -> DomainCapacity | None:
        """Where its tasks are bound to one NUMA domain each; None when they need not be."""
        return self.workspace.numa if self.query.request.one_domain else None

    def slots(self) -> Ints:
        """How many tasks each node could take at once, now."""
        return task_slots(self.query, self.workspace, self.refresh() >= 0.0, self.rules.gates)

    @property
    def may_open(self) -> bool:
        """Whether another job's start may open a node to it: then what failed may yet succeed."""
        return self.workspace.cluster.affinity.may_open(self.query.who)

    @property
    def suitable(self) -> Bools:
        """Nodes that could take one task were they empty and open."""
        if self._suitable is None:
            self._suitable = self._fits_empty()
        return self._suitable

    def _fits_empty(self) -> Bools:
        facts = self.facts
        lasting = tuple([facts[name] for name in self.rules.lasting if name in facts])
        return fits_empty(self.query, self.workspace.cluster, self.rules.rooms, lasting)

    @property
    def is_possible(self) -> bool:
        """Whether there is any such node."""
        return bool(np.count_nonzero(self.suitable))

    @cached_property
    def capacity(self) -> tuple[Ints, Bools]:
        """Tasks each node could take were it empty and open, and the nodes that no gate bars for ever."""
        return capacity_slots(self.query, self.workspace.cluster, self.rules.gates)

    def parts(self, row: int) -> tuple[tuple[str, int], ...]:
        """Why this node, which is open: each part of its score and their weighted mean, in whole points.

        As of the last time that somebody asked for scores.
        """
        parts: list[tuple[str, int]] = []
        for name, weight, cells, values in self._lone_summands:
            points: float = cells[row] if values is None else values[cells[row]]
            parts.append((name, round(points / weight)))
        weights = self._weights
        if self.rules.asked:
            only = NodeView(self.workspace, np.array([row], dtype=np.int64))
            for scorer, weight in self.rules.asked:
                given = scorer.score(self.query, only)
                if given is not None:
                    parts.append((scorer.name, round(float(given[0]))))
                    weights += weight
        if weights:
            assert self._scores is not None
            parts.append(("total", round(self._scores.item(row) / weights)))
        return tuple(parts)

    @cached_property
    def _summands(self) -> list[tuple[Any, Floats | None]]:
        """What is summed: live columns, as they are or each value looked up in a table."""
        return [part.summand(weight) for _, part, weight in self._parts]

    @cached_property
    def _lone_summands(self) -> list[tuple[str, int, Any, list[float] | None]]:
        """The same to be read of one node, with the names and weights of the parts."""
        return [
            (name, weight, column.data, None if table is None else table.tolist())
            for (name, _, weight), (column, table) in zip(self._parts, self._summands, strict=True)
        ]

    def _is_shut(self) -> bool:
        """Whether CPU, memory, devices and facts leave no node open now."""
        if self._room is None:
            return False
        lacks = self._lone_need - self._room
        lacks &= _GUARDS
        if self._open is not None:
            return not np.count_nonzero(self._open > lacks)
        return not len(lacks) or np.count_nonzero(lacks) == len(lacks)

    def _score(self, rows: Ints | None) -> Floats:
        """The weighted sum of all parts for these nodes (None = all), or `NO`; only its order matters."""
        if self._scores is None and self._is_shut():
            shut = np.empty(self.workspace.cluster.node_count)
            shut.fill(NO)
            return shut
        closed = self._is_closed(rows)
        total: Any = None
        for column, table in self._summands:
            part: Any = column if rows is None else column[rows]
            if table is not None:
                part = table[part]
            elif rows is None and total is None:
                part = part.copy()  # the live column is not ours to write to
            if total is None:
                total = part
            else:
                total += part
        if total is None:
            total = np.zeros(len(closed))
        if not self._plain:
            closed = self._ask_outside(total, closed.astype(np.bool_), rows)
        np.putmask(total, closed, _NO)
        scores: Floats = total
        return scores

    def _ask_outside(self, total: Floats, closed: Bools, rows: Ints | None) -> Bools:
        """Add what others score, and return the nodes that are closed with those they turn away.

        They are asked only about nodes that everything before them lets through.
        """
        for gate in self._outside_gates:
            still = np.flatnonzero(~closed)
            keep = gate.filter(self.query, NodeView(self.workspace, still if rows is None else rows[still]))
            closed[still] = ~keep
        still = np.flatnonzero(~closed)
        if len(still):
            nodes = NodeView(self.workspace, still if rows is None else rows[still])
            for scorer, weight in self.rules.asked:
                given = scorer.score(self.query, nodes)
                if given is not None:
                    total[still] += given * weight
        return closed

    def _score_row(self, row: int) -> float:
        """`_score` for one node, by the same arithmetic in the same order: caching changes nothing."""
        closed = self._closed is not None and self._closed.item(row)
        if closed or (self._room is not None and (self._need - self._room.item(row)) & GUARDS):
            return NO
        for room, need in self._rooms:
            if room.item(row) < need:
                return NO
        total = 0.0
        for _, _, cells, values in self._lone_summands:
            total += cells[row] if values is None else values[cells[row]]
        return total
