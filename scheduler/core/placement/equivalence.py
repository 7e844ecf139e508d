"""Equivalence: pending jobs that get the same answer, so that each answer is found once a cycle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from scheduler.core.cluster.index import ClusterIndex
from scheduler.core.columns import Ints, stable_order
from scheduler.core.placement.filters import FilterQuery
from scheduler.core.placement.reservation_access import NONE, is_welcome, named_rows
from scheduler.core.placement.shape import Shape
from scheduler.core.placement.topology_spread import Spread
from scheduler.core.snapshot.request_classes import RequestClass
from scheduler.core.snapshot.snapshot import MUST, PACKS


class JobClass(NamedTuple):
    """What the jobs of one class have in common: all that decides about them but their own gates."""

    placement_class: int  # the number of its (query, shape)
    query_number: int
    query: FilterQuery
    shape: Shape
    class_index: int
    queue_row: int
    project_row: int
    payer: int  # who is charged (`QuotaPaths`)


class JobClasses:
    """The pending jobs numbered by group, and by the (query, shape) that nodes are asked about.

    Two numberings because a quota is asked about every class, but nodes about every placement class only.
    """

    def __init__(self, cluster: ClusterIndex, rules_of_queue: Mapping[int, int] | None = None) -> None:
        """`rules_of_queue`: queue id -> the number of its own rules."""
        pending, queues = cluster.snapshot.pending, cluster.snapshot.queues
        self._cluster = cluster
        self._barred = _barred_by(cluster)
        self._inside = named_rows(cluster.snapshot)
        limit = pending.time_limit_seconds
        self._wall = wall_of(
            cluster, np.where(limit > 0, limit, queues.max_wall_seconds[cluster.pending.queue])
        )
        self._rules_number: Ints = np.array(
            [(rules_of_queue or {}).get(queue_id, 0) for queue_id in queues.id.tolist()], dtype=np.int64
        )
        partitions: dict[tuple[int, ...], int] = {}
        for partition_ids in queues.partition_ids:
            partitions.setdefault(partition_ids, len(partitions))
        partition_number = np.array([partitions[ids] for ids in queues.partition_ids], dtype=np.int64)
        query = number_together(len(pending), pending.class_index, _of_jobs(cluster, partition_number),
                                *self._barred, self._inside, cluster.affinity.pending,
                                _of_jobs(cluster, self._rules_number), self._wall,
                                _of_jobs(cluster, queues.isolation))  # fmt: skip
        placement_class = number_together(len(pending), pending.tasks, pending.nodes, pending.tasks_per_node,
                               pending.most_tasks, pending.pack, numbered=query)  # fmt: skip
        #: The class of each pending row.
        self.of_row: Ints = number_together(
            len(pending), cluster.pending.queue, cluster.paths.pending, numbered=placement_class
        )
        count = int(self.of_row.max(initial=-1)) + 1
        first = np.zeros(count, dtype=np.int64)
        first[self.of_row[::-1]] = np.arange(len(pending) - 1, -1, -1)
        #: Of each class: its first row, placement class, queue, project and payer.
        self.first_row: Ints = first
        self.placement_class: Ints = placement_class[first]
        self.queue_row: Ints = cluster.pending.queue[first]
        self.project_row: Ints = cluster.pending.project[first]
        self.payer: Ints = cluster.paths.pending[first]
        self._query = query
        self._queries: dict[int, FilterQuery] = {}
        self._shapes: dict[tuple[Any, ...], Shape] = {}
        self._of_pair: dict[int, tuple[int, FilterQuery, Shape, int]] = {}
        self._made: dict[int, JobClass] = {}
        self._by_pair: Ints | None = None
        self._pair_ends: list[int] = []

    def __len__(self) -> int:
        return len(self.first_row)

    def __getitem__(self, number: int) -> JobClass:
        known = self._made.get(number)
        if known is None:
            known = self._made[number] = self._describe(number)
        return known

    def of_placement_class(self, placement_class: int) -> Ints:
        """The numbers of all classes of jobs of one placement class."""
        if self._by_pair is None:
            self._by_pair = stable_order(self.placement_class)
            self._pair_ends = np.cumsum(np.bincount(self.placement_class)).tolist()
        return self._by_pair[
            self._pair_ends[placement_class - 1] if placement_class else 0 : self._pair_ends[placement_class]
        ]

    def of(self, row: int) -> JobClass:
        """The class of the pending job in this row."""
        number = self.of_row.item(row)
        return self._made.get(number) or self[number]

    def _describe(self, number: int) -> JobClass:
        placement_class = self.placement_class.item(number)
        known = self._of_pair.get(placement_class)
        if known is None:
            known = self._of_pair[placement_class] = self._describe_pair(number)
        return JobClass(
            placement_class,
            *known,
            self.queue_row.item(number),
            self.project_row.item(number),
            self.payer.item(number),
        )

    def _describe_pair(self, number: int) -> tuple[int, FilterQuery, Shape, int]:
        """The number of its query, its query, shape and class."""
        pending, row = self._cluster.snapshot.pending, self.first_row.item(number)
        query_number, class_index = self._query.item(row), pending.class_index.item(row)
        request, queue_row = self._cluster.snapshot.classes[class_index], self.queue_row.item(number)
        query = self._queries.get(query_number)
        if query is None:
            query = self._queries[query_number] = FilterQuery(
                request=request,
                queue_partition_ids=self._cluster.snapshot.queues.partition_ids[queue_row],
                reservation_rows=tuple([i for i, barred in enumerate(self._barred) if barred[row]]),
                who=self._cluster.affinity.pending.item(row),
                wall=self._wall.item(row),
                isolation=self._cluster.snapshot.queues.isolation.item(queue_row),
                inside=max(self._inside.item(row), NONE),
                rules=self._rules_number.item(queue_row),
            )
        columns = pending.tasks, pending.nodes, pending.tasks_per_node, pending.most_tasks, pending.pack
        tasks, nodes, each, most, pack = [column.item(row) for column in columns]
        key = (tasks, nodes, each, most, pack, request.task_term)
        shape = self._shapes.get(key)
        if shape is None:
            spread = spread_of(self._cluster, request, max(tasks, most))
            shape = Shape(tasks, nodes, each, most, PACKS[pack % MUST], must=pack >= MUST, spread=spread)
            self._shapes[key] = shape
        return query_number, query, shape, class_index


def _of_jobs(cluster: ClusterIndex, of_queue: Ints) -> Ints:
    """A column of queues as one of pending jobs; a single entry, as a key that numbers nothing, where all are equal."""
    return of_queue[cluster.pending.queue] if (of_queue != of_queue[:1]).any() else of_queue[:1]


def wall_of(cluster: ClusterIndex, limit_seconds: Ints) -> Ints:
    """Of each time limit (0 = none) the largest bound of any node that it is above; 0 = above none."""
    bounds = np.unique(cluster.snapshot.nodes.max_wall_seconds)
    bounds = bounds[bounds > 0]
    if not len(bounds):
        return np.zeros(len(limit_seconds), dtype=np.int64)
    asked = np.where(limit_seconds > 0, limit_seconds, np.iinfo(np.int64).max)
    floors: Ints = np.concatenate([[0], bounds])[np.searchsorted(bounds, asked)].astype(np.int64)
    return floors


def spread_of(cluster: ClusterIndex, request: RequestClass, tasks: int) -> Spread | None:
    """The rule of spread of a request, where it applies to this many tasks."""
    term = request.task_term
    return None if term is None or tasks == 1 else Spread(term, cluster.nodes.domains(term.topology))


def number_together(count: int, *keys: Ints, numbered: Ints | None = None) -> Ints:
    """Number the distinct combinations of the keys densely: 0, 1, 2 in ascending order of the keys.

    `numbered` is a first key that is numbered so itself. A key of equal entries may have any length.
    """
    number = np.zeros(count, dtype=np.int64) if numbered is None else numbered
    known = int(number.max(initial=0)) + 1
    for key in keys if count else ():
        low, high = int(key.min()), int(key.max())
        if low == high:
            continue
        values, spread = key - low, high - low + 1
        if known * spread > 1 << 22:  # a table is faster than a sort while it is small
            values = np.unique(key, return_inverse=True)[1].astype(np.int64)
            spread = int(values.max()) + 1
        placement_class = number * spread + values
        if known * spread > 1 << 22:
            met, number = np.unique(placement_class, return_inverse=True)
            number, known = number.astype(np.int64), len(met)
            continue
        table = np.zeros(known * spread, dtype=np.bool_)
        table[placement_class] = True
        dense = np.cumsum(table) - 1
        number, known = dense[placement_class], int(dense[-1]) + 1
    return number


def _barred_by(cluster: ClusterIndex) -> list[Ints]:
    """For each reservation, 1 for the jobs that would hold its nodes inside its window and may not.

    A job without any time limit has no end, so it never fits before a reservation.
    """
    snapshot = cluster.snapshot
    reservations, pending = snapshot.reservations, snapshot.pending
    if not len(reservations) or not len(pending):
        return [np.zeros(len(pending), dtype=np.int64) for _ in range(len(reservations))]
    bound = snapshot.queues.max_wall_seconds[cluster.pending.queue]
    limit = np.where(pending.time_limit_seconds > 0, pending.time_limit_seconds, bound)
    ends_ms = np.where(limit > 0, snapshot.now_ms + limit * 1000, np.iinfo(np.int64).max)
    barred: list[Ints] = []
    for row in range(len(reservations)):
        overlaps = (ends_ms > int(reservations.starts_ms[row])) & (
            snapshot.now_ms < int(reservations.ends_ms[row])
        )
        barred.append((overlaps & ~is_welcome(snapshot, row)).astype(np.int64))
    return barred
