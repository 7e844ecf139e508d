"""Groups: pending jobs that get the same answer, so that each answer is found once a cycle."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scheduler.core.columns import Ints
from scheduler.core.feasibility import Question
from scheduler.core.placement import Shape
from scheduler.core.world import World


@dataclass(frozen=True, slots=True)
class Group:
    """What the jobs of one group have in common: all that decides about them but their own gates."""

    question: Question
    shape: Shape
    class_index: int
    queue_row: int
    project_row: int


@dataclass(frozen=True, slots=True)
class Groups:
    """The group of each pending row, and one row of each group to describe it by."""

    of_row: Ints
    first_row: list[int]

    def __len__(self) -> int:
        return len(self.first_row)


def group_jobs(world: World) -> Groups:
    """Number the distinct (class, shape, queue, project, reservations in the way) among the pending jobs."""
    pending = world.snapshot.pending
    keys = [pending.class_index, world.pending_queue, world.pending_project, pending.tasks, pending.nodes,
            pending.tasks_per_node, *_barred_by(world)]  # fmt: skip
    number = np.zeros(len(pending), dtype=np.int64)
    count = 1
    for key in keys:
        number, count = _combine(number, count, key)
    first_row = np.full(count if len(pending) else 0, len(pending), dtype=np.int64)
    np.minimum.at(first_row, number, np.arange(len(pending)))
    return Groups(of_row=number, first_row=first_row.tolist())


def describe(world: World, row: int) -> Group:
    """What decides about the pending job in this row."""
    pending, queues = world.snapshot.pending, world.snapshot.queues
    queue_row = int(world.pending_queue[row])
    class_index = int(pending.class_index[row])
    return Group(
        question=Question(
            request=world.snapshot.classes[class_index],
            queue_partition_ids=queues.partition_ids[queue_row],
            reservation_rows=tuple(i for i, barred in enumerate(_barred_by(world)) if barred[row]),
        ),
        shape=Shape(int(pending.tasks[row]), int(pending.nodes[row]), int(pending.tasks_per_node[row])),
        class_index=class_index,
        queue_row=queue_row,
        project_row=int(world.pending_project[row]),
    )


def _barred_by(world: World) -> list[Ints]:
    """For each reservation, 1 for the jobs that would hold its nodes inside its window and may not.

    A job without any time limit may run for ever, so it never fits before a reservation.
    """
    if world.barred_by is not None:
        return world.barred_by
    snapshot = world.snapshot
    reservations, pending = snapshot.reservations, snapshot.pending
    limit = np.where(
        pending.time_limit_seconds > 0,
        pending.time_limit_seconds,
        snapshot.queues.max_wall_seconds[world.pending_queue] if len(pending) else 0,
    )
    ends_ms = np.where(limit > 0, snapshot.now_ms + limit * 1000, np.iinfo(np.int64).max)
    barred: list[Ints] = []
    for row in range(len(reservations)):
        if int(reservations.ends_ms[row]) <= snapshot.now_ms:
            barred.append(np.zeros(len(pending), dtype=np.int64))
            continue
        welcome = (
            np.isin(pending.project_id, reservations.project_ids[row])
            | np.isin(pending.user_id, reservations.user_ids[row])
            | np.isin(pending.id, reservations.job_ids[row])
        )
        barred.append((~welcome & (ends_ms > int(reservations.starts_ms[row]))).astype(np.int64))
    world.barred_by = barred
    return barred


def _combine(number: Ints, count: int, key: Ints) -> tuple[Ints, int]:
    """Number the distinct pairs (number, key) densely, in ascending order."""
    if not len(key):
        return number, count
    low, high = int(key.min()), int(key.max())
    if low == high:
        return number, count
    spread = high - low + 1
    if count * spread <= 1 << 22:  # a table is faster than a sort while it is small
        pair = number * spread + (key - low)
        met = np.zeros(count * spread, dtype=np.bool_)
        met[pair] = True
        dense = np.cumsum(met) - 1
        return dense[pair], int(dense[-1]) + 1
    _, key = np.unique(key, return_inverse=True)
    pairs, number = np.unique(number * (int(key.max()) + 1) + key, return_inverse=True)
    return number.astype(np.int64), len(pairs)
