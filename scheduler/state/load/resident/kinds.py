"""Kinds of pending jobs: those that nothing tells apart but their number, their age and their priority."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from scheduler.core.columns import Ints
from scheduler.state.load.job_rows import OwnColumns

#: The column that has the number of each job's kind.
KINDS: Final = "kind"

#: What makes two jobs of one kind. Left out is what only says when it is a job's turn (age, priority, boosts,
#: the moment it should have ended by) and what nobody asks of a job that is not considered.
ALIKE: Final = (
    "class_index", "queue_id", "project_id", "user_id", "job_type", "tasks", "nodes", "tasks_per_node",
    "time_limit_seconds", "most_tasks", "pack", "assembly_seconds", "assemblies_failed", "array_max_running",
    "elastic", "preemptible",
)  # fmt: skip


class Kinds:
    """Numbers of kinds, the same for as long as this object lives."""

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}

    def __len__(self) -> int:
        return len(self._numbers)

    def number(self, own: OwnColumns) -> Ints:
        """The number of each job's kind; which array a job is of matters where the array has a bound."""
        in_array = np.where(own["array_max_running"] > 0, own["array_id"], 0)
        table = np.column_stack([in_array, *(own[name] for name in ALIKE)])
        if not len(table):
            return np.zeros(0, dtype=np.int64)
        as_bytes = np.ascontiguousarray(table).view(np.dtype((np.void, table.itemsize * table.shape[1])))
        numbers = self._numbers
        return np.array(
            [numbers.setdefault(one, len(numbers)) for one in as_bytes.ravel().tolist()], dtype=np.int64
        )
