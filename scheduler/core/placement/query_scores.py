"""Query scores: the weighted score parts of one query, summed for all nodes, some nodes or one."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from scheduler.core.cluster.free_columns import Floats
from scheduler.core.cluster.workspace import Workspace
from scheduler.core.columns import Bools, Ints
from scheduler.core.placement.filters import FilterQuery
from scheduler.core.placement.node_view import NodeView
from scheduler.core.placement.plugins import Rules
from scheduler.core.placement.scoring import Part


class QueryScores:
    """The parts of a score that apply to a query. Only the order of sums matters, so no sum is divided by weights."""

    def __init__(self, query: FilterQuery, workspace: Workspace, rules: Rules) -> None:
        self._query, self._workspace, self._rules = query, workspace, rules
        self._parts: list[tuple[str, Part, int]] = []
        for scorer, weight in rules.columns:
            part = scorer.part(query, workspace)
            if part is not None:
                self._parts.append((scorer.name, part, weight))
        self._weights = sum(weight for _, _, weight in self._parts)

    @cached_property
    def _summands(self) -> list[tuple[Any, Floats | None]]:
        """What is summed: live columns, as they are or with each value looked up in a table."""
        return [part.summand(weight) for _, part, weight in self._parts]

    @cached_property
    def _cells(self) -> list[tuple[str, int, Any, list[float] | None]]:
        """The same to be read of one node, with the names and weights of the parts."""
        return [
            (name, weight, column.data, None if table is None else table.tolist())
            for (name, _, weight), (column, table) in zip(self._parts, self._summands, strict=True)
        ]

    def total(self, rows: Ints | None) -> Any:
        """A new column of the sums of these nodes; None = of all."""
        total: Any = None
        for column, table in self._summands:
            part: Any = column if rows is None else column[rows]
            if table is not None:
                part = table[part]
            elif rows is None and total is None:
                part = part.copy()  # a live column is not to be written to
            if total is None:
                total = part
            else:
                total += part
        if total is None:
            return np.zeros(self._workspace.cluster.node_count if rows is None else len(rows))
        return total

    def total_of(self, row: int) -> float:
        """The sum of one node, by the same arithmetic in the same order: which is used changes nothing."""
        total = 0.0
        for _, _, cells, values in self._cells:
            total += cells[row] if values is None else values[cells[row]]
        return total

    def add_outside(self, total: Floats, closed: Bools, rows: Ints | None) -> None:
        """Add what plugins score to the sums of these nodes; they are asked only about open nodes."""
        still = np.flatnonzero(~closed)
        if not len(still):
            return
        nodes = NodeView(self._workspace, still if rows is None else rows[still])
        for scorer, weight in self._rules.asked:
            given = scorer.score(self._query, nodes)
            if given is not None:
                total[still] += given * weight

    def parts(self, row: int, total: float) -> tuple[tuple[str, int], ...]:
        """Each part of the score of a node, and their weighted mean as "total", in whole points of 100."""
        parts: list[tuple[str, int]] = []
        for name, weight, cells, values in self._cells:
            points: float = cells[row] if values is None else values[cells[row]]
            parts.append((name, round(points / weight)))
        weights = self._weights
        if self._rules.asked:
            only = NodeView(self._workspace, np.array([row], dtype=np.int64))
            for scorer, weight in self._rules.asked:
                given = scorer.score(self._query, only)
                if given is not None:
                    parts.append((scorer.name, round(float(given[0]))))
                    weights += weight
        if weights:
            parts.append(("total", round(total / weights)))
        return tuple(parts)
