"""Candidates: the nodes that one filter query leaves open, with their scores, kept up to date in a cycle."""

from __future__ import annotations

from functools import cached_property
from typing import Final

import numpy as np

from scheduler.core.cluster.free_columns import Floats
from scheduler.core.cluster.numa import DomainCapacity
from scheduler.core.cluster.workspace import Workspace
from scheduler.core.columns import Bools, Ints
from scheduler.core.placement.filters import FilterQuery, capacity_slots, fits_empty, task_slots
from scheduler.core.placement.plugins import Rules
from scheduler.core.placement.query_filters import QueryFilters
from scheduler.core.placement.query_scores import QueryScores
from scheduler.core.placement.shape import Shape

#: A node that cannot take a task; every real score is at least 0.
NO: Final = -1.0
_NO: Final = np.array(NO)

#: Refresh all nodes instead of the touched ones when that is less work (measured: a third of them, or 256).
_FEW_NODES: Final = 256

#: So few touched nodes are looked at one by one: less work than a round of array calls.
_FEW_ROWS: Final = 6


class Candidates:
    """The nodes for one query: a score a node, or `NO`; brought up to date from the workspace's log.

    Idea: filter and score every node at each question. The code differs in that only nodes touched
    since the last time are looked at again, and that shapes which failed are remembered: inside a cycle
    capacity only shrinks, so what did not fit will not fit later.
    """

    def __init__(
        self, query: FilterQuery, workspace: Workspace, rules: Rules, *, like: Candidates | None = None
    ) -> None:
        """`like` are those of the same query in another workspace of this cluster."""
        self.query = query
        self.workspace = workspace
        self.rules = rules
        self.failed: set[Shape] = set()
        self.filters: QueryFilters = QueryFilters(
            query, workspace, rules, like=None if like is None else like.filters
        )
        self._query_scores = QueryScores(query, workspace, rules)
        self._is_built_in = not self.filters.asks_plugins and not rules.asked
        self._features = (
            workspace.columns.gpu_features(query.request) if query.request.per_task.gpus else None
        )
        #: What one task holds of each of its devices; 0 without any.
        self.millis = query.request.device_millis
        self._changes = workspace.columns
        self._scores: Floats | None = None
        self._cursor = 0
        #: More touched nodes than this: all are looked at again.
        self._many = workspace.cluster.node_count // 3
        if workspace.cluster.node_count <= _FEW_NODES:
            self._many = min(self._many, _FEW_ROWS)

    # Now.

    @property
    def scores(self) -> Floats:
        """The same as `refresh`."""
        return self.refresh()

    def refresh(self) -> Floats:
        """Scores as of now."""
        self.workspace.sync()
        changes, scores = self._changes, self._scores
        begin, end = self._cursor, changes.log_length
        if begin == end and scores is not None:
            return scores
        stale = end - begin
        if scores is None or stale > self._many:
            scores = self._scores = self._score(None)
        elif self._is_built_in and stale > _FEW_ROWS:
            rows = changes.log[begin:end]
            scores[rows] = self._score(rows)
        elif self._is_built_in:
            is_open, total_of = self.filters.is_open, self._query_scores.total_of
            for row in changes.log[begin:end].tolist():
                scores[row] = total_of(row) if is_open(row) else NO
        else:
            rows = np.unique(changes.log[begin:end])
            scores[rows] = self._score(rows)
        self._cursor = end
        return scores

    def _score(self, rows: Ints | None) -> Floats:
        """The weighted sum of all parts for these nodes (None = all), or `NO`."""
        if self._scores is None and self.filters.closes_all():
            return np.full(self.workspace.cluster.node_count, NO)
        closed = self.filters.closed(rows)
        total: Floats = self._query_scores.total(rows)
        if not self._is_built_in:
            closed = closed.astype(np.bool_)
            self.filters.close_outside(closed, rows)
            self._query_scores.add_outside(total, closed, rows)
        np.putmask(total, closed, _NO)
        return total

    def best(self) -> int:
        """The row of the best node for one task, lowest row first among equals; -1 when none can take it."""
        scores = self.refresh()
        if not len(scores):
            return -1
        row = int(scores.argmax())
        return row if scores.item(row) >= 0.0 else -1

    def slots(self) -> Ints:
        """How many tasks each node could take at once, now."""
        return task_slots(self.query, self.workspace, self.refresh() >= 0.0, self.rules.gates)

    def parts(self, row: int) -> tuple[tuple[str, int], ...]:
        """Why this node, which is open: each part of its score and their weighted mean, in whole points.

        As of the last time that scores were asked for.
        """
        assert self._scores is not None
        return self._query_scores.parts(row, self._scores.item(row))

    def pick_devices(self, row: int, domain: int = -1) -> list[int]:
        """Device rows for one task on this node: as a scorer wishes, else as `FreeDevices.pick`.

        `domain` is the NUMA domain that the task is bound to; -1 = to none.
        """
        if self._features is None:
            return []
        devices, usable = self.workspace.devices, self._features.bits[row]
        if domain < 0 and not self.rules.pickers:
            return devices.pick(row, self.query.request, usable)
        numa = self.workspace.numa if domain >= 0 else None
        for picker in self.rules.pickers:
            device = picker.pick_device(self.query.request, self.workspace, row)
            if device is not None and (numa is None or numa.domains.of_device[device] == domain):
                return [device]
        within = -1 if numa is None else numa.within(domain)
        return devices.pick(row, self.query.request, usable & within)

    @cached_property
    def numa(self) -> DomainCapacity | None:
        """Where its tasks are bound to one NUMA domain each; None when they need not be."""
        return self.workspace.numa if self.query.request.one_domain else None

    # Ever.

    @property
    def may_open(self) -> bool:
        """Whether another job's start may open a node to it: then what failed may yet succeed."""
        return self.workspace.cluster.affinity.may_open(self.query.who)

    @cached_property
    def suitable(self) -> Bools:
        """Nodes that could take one task were they empty and open."""
        facts = self.filters.facts
        lasting = tuple([facts[name] for name in self.rules.lasting if name in facts])
        return fits_empty(self.query, self.workspace.cluster, self.rules.rooms, lasting)

    @property
    def opened(self) -> Bools:
        """Nodes that could take one task were they empty: the static filters let it in."""
        return self.filters.among(self.suitable)

    @property
    def is_possible(self) -> bool:
        """Whether there is any suitable node."""
        return bool(np.count_nonzero(self.suitable))

    @cached_property
    def capacity(self) -> tuple[Ints, Bools]:
        """Tasks each node could take were it empty and open, and the nodes that no filter bars always."""
        return capacity_slots(self.query, self.workspace.cluster, self.rules.gates)
