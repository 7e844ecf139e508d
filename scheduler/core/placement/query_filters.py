"""Query filters: which nodes the filters of one query let through in a workspace, now."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from scheduler.core.cluster.packed_free import GUARDS, PackedFree
from scheduler.core.cluster.workspace import Workspace
from scheduler.core.columns import Bools, Ints
from scheduler.core.placement.filters import AffinityFilter, FilterQuery, Headroom, NodeFilter
from scheduler.core.placement.node_view import NodeView
from scheduler.core.placement.plugins import Rules

#: Arithmetic with an array of no dimensions costs half as much as with a number.
_GUARDS: Final = np.array(GUARDS)

#: What a node lacks is `need - 1 - free`, in bits where the guards are: the reverse of `free - need`.
_NEVER: Final = np.array(PackedFree.never() - 1)
_PACKED: Final = ("cpu_millis", "memory_mib", "gpus")


class QueryFilters:
    """The filters of a query that turn any node away: static masks, columns with what is needed, and others.

    CPU, memory, devices and the static masks are compared at once where amounts are small enough for `PackedFree`.
    """

    def __init__(
        self, query: FilterQuery, workspace: Workspace, rules: Rules, *, like: QueryFilters | None = None
    ) -> None:
        """`like` are the filters of the same query in another workspace of this cluster: the masks are the same."""
        self._query, self._workspace, self._rules = query, workspace, rules
        #: By name: the masks of static filters, and (live column, need) of filters by amount.
        self.facts: dict[str, Bools] = like.facts if like is not None else _facts(query, workspace, rules)
        self.rooms: dict[str, Headroom] = {}
        for room in rules.rooms:
            headroom = room.free(query, workspace)
            if headroom is not None:
                self.rooms[room.name] = headroom
        #: A live column of where other jobs let the query's go; and the filters of plugins.
        self._jobs: Headroom | None = None
        self._outside: list[NodeFilter] = []
        for rule in rules.others:
            if isinstance(rule, AffinityFilter):
                self._jobs = rule.open(query, workspace)
            else:
                self._outside.append(rule)
        #: The nodes that the masks leave open, and those that they close; None = they close none.
        self._open, self._closed = workspace.cluster.answers.where(tuple(self.facts.values()))
        packed = workspace.columns.packed(query.request)
        self._packed = None if packed is None else packed.column
        self._rooms = [self.rooms[name] for name in self.rooms if packed is None or name not in _PACKED]
        self._rooms += [self._jobs] if self._jobs is not None else []
        cpu, memory, devices = [self.rooms[name][1] if name in self.rooms else 0 for name in _PACKED]
        #: From what to subtract the packed column: of nodes that no mask closes, and of each node.
        self._need = PackedFree.need(cpu, memory, devices) - 1
        self._need_array = np.array(self._need)
        self._needs: Ints | None = None

    @property
    def asks_outside(self) -> bool:
        """Whether a filter is asked that neither a mask nor an amount answers: other jobs, or a plugin."""
        return bool(self._outside) or self._jobs is not None

    @property
    def asks_plugins(self) -> bool:
        return bool(self._outside)

    def passing(self, *, without: str = "") -> Bools:
        """Nodes that every static filter lets through; without the one of this name."""
        keep: Bools = np.ones(self._workspace.cluster.node_count, dtype=np.bool_)
        if without in self.facts:
            for name, mask in self.facts.items():
                if name != without:
                    keep &= mask
        elif self._open is not None:
            return self._open
        return keep

    def among(self, nodes: Bools) -> Bools:
        """Those of these nodes that every static filter lets through."""
        return nodes if self._open is None else self._open & nodes

    def each_now(self) -> Iterator[tuple[str, Bools]]:
        """Every filter that may turn a node away, in order, with the nodes that it lets through as of now."""
        facts, rooms, workspace = self.facts, self.rooms, self._workspace
        if self._rules.in_order and self._jobs is None:
            yield from facts.items()
            for name, (column, need) in rooms.items():
                yield name, workspace.answers.reaches(column, need)
            return
        others = self._outside if self._jobs is None else self._rules.others
        for rule in self._rules.gates:
            name = rule.name
            if name in facts:
                yield name, facts[name]
            elif name in rooms:
                yield name, workspace.answers.reaches(*rooms[name])
            elif rule in others:
                yield name, rule.filter(self._query, NodeView(workspace))

    def closes_all(self) -> bool:
        """Whether CPU, memory, devices and masks leave no node open now; False where that is not known at once."""
        if self._packed is None:
            return False
        lacks = self._need_array - self._packed
        lacks &= _GUARDS
        if self._open is not None:
            return not np.count_nonzero(self._open > lacks)
        return not len(lacks) or np.count_nonzero(lacks) == len(lacks)

    def closed(self, rows: Ints | None) -> Any:
        """Which of these nodes (None = all) the built-in filters close now: true, or any number but 0."""
        closed: Any
        if self._packed is not None:
            if rows is None:
                closed = (self._need_array if self._closed is None else self._need_of_each()) - self._packed
            elif self._closed is None:
                closed = self._need_array - self._packed[rows]
            else:
                closed = self._need_of_each()[rows] - self._packed[rows]
            closed &= _GUARDS
        elif self._closed is None:
            count = self._workspace.cluster.node_count if rows is None else len(rows)
            closed = np.zeros(count, dtype=np.bool_)
        else:
            closed = self._closed if rows is None else self._closed[rows]
        for column, need in self._rooms:
            closed = closed | ((column if rows is None else column[rows]) < need)
        return closed

    def is_open(self, row: int) -> bool:
        """Whether the built-in filters leave one node open now; the same as `closed` says."""
        if self._closed is not None and self._closed.item(row):
            return False
        if self._packed is not None and (self._need - self._packed.item(row)) & GUARDS:
            return False
        for column, need in self._rooms:  # noqa: SIM110  a generator would take twice as long
            if column.item(row) < need:
                return False
        return True

    def close_outside(self, closed: Bools, rows: Ints | None) -> None:
        """Close those of these nodes that plugins turn away; each is asked only about nodes still open."""
        for rule in self._outside:
            still = np.flatnonzero(~closed)
            keep = rule.filter(self._query, NodeView(self._workspace, still if rows is None else rows[still]))
            closed[still] = ~keep

    def _need_of_each(self) -> Ints:
        """The need of each node; more than any node has where a mask closes it."""
        if self._needs is None:
            assert self._closed is not None
            self._needs = np.where(self._closed, _NEVER, self._need_array)
        return self._needs


def _facts(query: FilterQuery, workspace: Workspace, rules: Rules) -> dict[str, Bools]:
    facts: dict[str, Bools] = {}
    for fact in rules.facts:
        mask = fact.keep(query, workspace.cluster)
        if mask is not None:
            facts[fact.name] = mask
    return facts
