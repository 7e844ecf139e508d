"""The allocation index: where running jobs hold what, and in which order they are expected to release it."""

from __future__ import annotations

from functools import cached_property
from itertools import chain

import numpy as np

from scheduler.core.cluster.column_answers import ColumnAnswers
from scheduler.core.cluster.device_index import DeviceIndex
from scheduler.core.columns import Bools, Ints, find_rows, rows_of, stable_order
from scheduler.core.snapshot.likely_ends import likely_ends_ms
from scheduler.core.snapshot.snapshot import Snapshot


class AllocationIndex:
    """Facts about allocations that stay for a cycle; a column has one entry an allocation, as in the snapshot."""

    def __init__(self, snapshot: Snapshot, devices: DeviceIndex, answers: ColumnAnswers) -> None:
        self._snapshot, self._device_index, self._answers = snapshot, devices, answers
        self._gpus_held: dict[tuple[str, int], Ints] = {}

    @cached_property
    def node(self) -> Ints:
        """The node row of each allocation."""
        return rows_of(self._snapshot.nodes.id, self._snapshot.allocations.node_id, what="node")

    @cached_property
    def tasks_on(self) -> Ints:
        """Of each node, how many tasks run on it."""
        return np.bincount(self.node, minlength=len(self._snapshot.nodes)).astype(np.int64)

    @cached_property
    def end_ms(self) -> Ints:
        """When the job of each allocation is expected to end; 0 = unknown."""
        running = self._snapshot.running
        return self.job_end_ms[rows_of(running.id, self._snapshot.allocations.job_id, what="running job")]

    @cached_property
    def has_limit(self) -> Bools:
        """Whether the job of each allocation ends by a time limit, not just by what is expected of it."""
        running = self._snapshot.running
        rows = rows_of(running.id, self._snapshot.allocations.job_id, what="running job")
        return running.expected_end_ms[rows] > 0

    @cached_property
    def job_end_ms(self) -> Ints:
        """When each running job is expected to end, by its limit or its prediction; 0 = unknown."""
        return likely_ends_ms(self._snapshot.running, self._snapshot.now_ms)

    @cached_property
    def by_end(self) -> Ints:
        """Rows of all allocations in the order of their ends; behind these, the rows without a known end."""
        return np.roll(stable_order(self.end_ms), -int(np.count_nonzero(self.end_ms <= 0)))

    @cached_property
    def ending(self) -> tuple[Ints, Ints]:
        """Rows of the allocations with a known end in the order of their ends, and the node row of each."""
        order = self.by_end[: np.count_nonzero(self.end_ms > 0)]
        return order, self.node[order]

    def released(self, nodes: Bools, amounts: Ints, count: int) -> tuple[Ints, Ints]:
        """Of the `count` allocations that end first, those on `nodes`, with the cumulative amount they release."""

        def work_out() -> tuple[Ints, Ints]:
            order, on_node = self.ending
            rows = order[:count][nodes[on_node[:count]]]
            return rows, amounts[rows].cumsum()

        return self._answers.find("released", (amounts,), (nodes.tobytes(), count), work_out)

    @cached_property
    def device_counts(self) -> Ints:
        """How many devices each allocation names."""
        held = self._snapshot.allocations.device_ids
        return np.fromiter(map(len, held), dtype=np.int64, count=len(held))

    @cached_property
    def devices(self) -> tuple[Ints, Ints]:
        """(row of the allocation, row of the device) of every device that is held."""
        held, device_id = self._snapshot.allocations.device_ids, self._device_index.id
        allocation = np.repeat(np.arange(len(held)), self.device_counts)
        ids = np.fromiter(chain.from_iterable(held), dtype=np.int64, count=len(allocation))
        order = np.arange(len(device_id))
        if (np.diff(device_id) < 0).any():
            order = stable_order(device_id)
        place = find_rows(device_id[order], ids)
        if len(place) and int(place.min()) < 0:
            known = place >= 0
            allocation, place = allocation[known], place[known]
        return allocation, order[place]

    def gpus_held(self, model: str, memory_mib: int) -> Ints:
        """How many devices of a model and memory each allocation holds."""
        key = (model, memory_mib)
        if key not in self._gpus_held:
            matching = self._device_index.matching(model, memory_mib)
            allocation, device = self.devices
            held = np.bincount(allocation[matching[device]], minlength=len(self._snapshot.allocations))
            self._gpus_held[key] = held.astype(np.int64)
        return self._gpus_held[key]
