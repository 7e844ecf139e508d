"""The engine: a cluster under a virtual clock; arrivals and ends drive the very planner that runs in production."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from quotas.core.limits import charge
from scheduler.core.columns import Ints
from scheduler.core.cycle import plan_cycle
from scheduler.core.plan import Start
from scheduler.core.policy import Policy
from scheduler.core.snapshot import AllocationColumns, RunningColumns, Snapshot

#: Told how many jobs have ended, now and then.
Progress = Callable[[int], None]

#: A job that nobody has bounded runs so long.
DEFAULT_RUN_MS = 3_600_000


@dataclass(frozen=True)
class ClusterWorkload:
    """A cluster as it is at the beginning, the jobs that will come, and how long each of them really runs."""

    name: str
    snapshot: Snapshot  # what runs at the beginning is there; `pending` holds every job that will ever come
    run_ms: Ints  # of each pending row
    amounts: Ints  # what each holds, in thousandths of GPUs (or of processors where there are no GPUs)
    capacity: int

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True)
class Outcome:
    """When each job started (-1 = never), and how the time in between was spent."""

    started_ms: Ints
    cycles: int = 0
    idle_while_waiting_percent: float = (
        0.0  # of all GPUs, on the average, while jobs that ask for GPUs waited
    )

    __hash__ = None  # type: ignore[assignment]


@dataclass(slots=True)
class _World:
    """What changes: who holds what, in the columns of the next snapshot."""

    workload: ClusterWorkload
    used: dict[str, Ints] = field(default_factory=dict)
    device_used: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    quota_used: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    queue_running: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    pool_used: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    running: dict[int, tuple[Any, ...]] = field(default_factory=dict)  # job id -> its row
    held: dict[int, list[tuple[Any, ...]]] = field(default_factory=dict)  # job id -> rows of its allocations
    charged: dict[int, tuple[int, Start | None]] = field(default_factory=dict)
    promised: dict[int, int] = field(default_factory=dict)
    next_allocation: int = 1

    @classmethod
    def at_first(cls, workload: ClusterWorkload) -> _World:
        snapshot = workload.snapshot
        world = cls(
            workload,
            used={
                name: getattr(snapshot.nodes, f"used_{name}").copy()
                for name in ("cpu_millis", "memory_mib", "storage_mib")
            },
            device_used=snapshot.devices.used_millis.copy(),
            quota_used=snapshot.quotas.used.copy(),
            queue_running=snapshot.queues.running_jobs.copy(),
            pool_used=snapshot.pools.used.copy(),
        )
        for row in _rows(snapshot.running):
            world.running[row[0]] = row
            world.held[row[0]] = []
        for row in _rows(snapshot.allocations):
            world.held[row[1]].append(row)
            world.next_allocation = max(world.next_allocation, row[0] + 1)
        return world

    def picture(self, now_ms: int, waiting: Ints) -> Snapshot:
        """The snapshot of this moment."""
        base = self.workload.snapshot
        pending = base.pending.take(waiting)
        if self.promised:
            promised = [self.promised.get(number, 0) for number in pending.id.tolist()]
            pending = replace(pending, promised_ms=promised)
        return Snapshot.build(
            now_ms=now_ms,
            nodes=replace(base.nodes, **{f"used_{name}": column for name, column in self.used.items()}),
            devices=replace(base.devices, used_millis=self.device_used),
            classes=base.classes,
            pending=pending,
            running=RunningColumns.from_rows(self.running.values()),
            allocations=AllocationColumns.from_rows([row for rows in self.held.values() for row in rows]),
            reservations=base.reservations,
            queues=replace(base.queues, running_jobs=self.queue_running),
            projects=base.projects,
            quotas=replace(base.quotas, used=self.quota_used),
            pools=replace(base.pools, used=self.pool_used),
        )

    def start(self, start: Start, row: int, now_ms: int) -> None:
        snapshot = self.workload.snapshot
        pending, per_task = snapshot.pending, start.per_task
        rows = []
        for placement in start.placements:
            rows.append(
                (self.next_allocation, start.job_id, placement.rank, placement.node_id, per_task.cpu_millis,
                 per_task.memory_mib, per_task.storage_mib, placement.device_ids, placement.gpu_millis)
            )  # fmt: skip
            self.next_allocation += 1
        self.held[start.job_id] = rows
        limit = int(pending.time_limit_seconds[row])
        values = {
            "id": start.job_id, "attempt_id": start.job_id, "class_index": int(pending.class_index[row]),
            "queue_id": start.queue_id, "project_id": start.project_id, "user_id": int(pending.user_id[row]),
            "priority": int(pending.priority[row]), "started_ms": now_ms,
            "expected_end_ms": now_ms + limit * 1000 if limit else 0, "array_id": int(pending.array_id[row]),
        }  # fmt: skip
        self.running[start.job_id] = tuple(
            values.get(name, column.metadata["default"])
            for name, column in RunningColumns.__dataclass_fields__.items()
        )
        self.charged[start.job_id] = (row, start)
        self._count(start, 1)
        self._hold(rows, 1)

    def end(self, job_id: int) -> None:
        """Give back what a job holds; a second time is nothing."""
        if self.running.pop(job_id, None) is None:
            return
        self._hold(self.held.pop(job_id), -1)
        _, start = self.charged.pop(job_id, (0, None))
        if start is not None:
            self._count(start, -1)

    def _hold(self, rows: list[tuple[Any, ...]], sign: int) -> None:
        snapshot = self.workload.snapshot
        for _, _, _, node_id, cpu, memory, storage, devices, millis in rows:
            node = int(np.searchsorted(snapshot.nodes.id, node_id))
            for name, amount in (("cpu_millis", cpu), ("memory_mib", memory), ("storage_mib", storage)):
                self.used[name][node] += sign * amount
            for device in devices:
                self.device_used[int(np.searchsorted(snapshot.devices.id, device))] += sign * millis

    def _count(self, start: Start, sign: int) -> None:
        """Quotas, queues and pools; what ran at the beginning was counted in them by who made the snapshot."""
        snapshot, tasks = self.workload.snapshot, len(start.placements)
        self.queue_running[int(np.searchsorted(snapshot.queues.id, start.queue_id))] += sign
        project = int(np.searchsorted(snapshot.projects.id, start.project_id))
        for line_id in snapshot.projects.quota_line_ids[project]:
            line = int(np.searchsorted(snapshot.quotas.id, line_id))
            self.quota_used[line] += sign * charge(snapshot.quotas.resource[line], start.per_task, tasks)
        for name, amount in start.per_task.extras:
            self.pool_used[snapshot.pools.name.index(name)] += sign * amount * tasks


def simulate(
    workload: ClusterWorkload,
    policy: Policy,
    *,
    each_event: bool = False,
    progress: Progress = lambda ended: None,
) -> Outcome:
    """Let every job of a workload arrive, start and end under a policy.

    One cycle follows each moment at which something came or ended. With `each_event` one follows each event,
    arrivals first, and a job that has reached its limit holds nothing any more even if its end is still to be
    handled: the rules under which published schedules were made.
    """
    snapshot = workload.snapshot
    pending = snapshot.pending
    order = np.lexsort((pending.id, pending.submitted_ms))
    arrivals = [(int(pending.submitted_ms[row]), row) for row in order.tolist()]
    row_of = {number: row for row, number in enumerate(pending.id.tolist())}
    world = _World.at_first(workload)
    ends: list[tuple[int, int, int]] = []  # (end, turn of its start, job id)
    for turn, (number, row) in enumerate(world.running.items()):
        expected = row[_EXPECTED_END]
        end_ms = max(expected, snapshot.now_ms) if expected else snapshot.now_ms + DEFAULT_RUN_MS
        heapq.heappush(ends, (end_ms, turn, number))
    started = np.full(len(pending), -1, dtype=np.int64)
    waiting: list[int] = []
    wants_gpus = np.array([request.per_task.gpus > 0 for request in snapshot.classes] or [False])
    arrived, ended, cycles, turn = 0, 0, 0, len(ends)
    now_ms = snapshot.now_ms
    idle = wasted = 0.0
    while arrived < len(arrivals) or ends:
        due = min([arrivals[arrived][0]] if arrived < len(arrivals) else [ends[0][0]], default=now_ms)
        moment = max(min(due, ends[0][0]) if ends else due, now_ms)
        if waiting and len(snapshot.devices) and wants_gpus[pending.class_index[waiting]].any():
            wasted += float((1000 - world.device_used).sum()) * (moment - now_ms)
            idle += 1000.0 * len(snapshot.devices) * (moment - now_ms)
        now_ms = moment
        while arrived < len(arrivals) and arrivals[arrived][0] <= now_ms:
            waiting.append(arrivals[arrived][1])
            arrived += 1
            if each_event:
                break
        else:
            while ends and ends[0][0] <= now_ms:
                world.end(heapq.heappop(ends)[2])
                ended += 1
                if ended % 100 == 0:
                    progress(ended)
                if each_event:
                    break
        if each_event:
            for number, values in list(world.running.items()):
                if 0 < values[_EXPECTED_END] <= now_ms:
                    world.end(number)
        if not waiting:
            continue
        plan = plan_cycle(world.picture(now_ms, np.array(waiting, dtype=np.int64)), policy)
        cycles += 1
        for start in plan.starts:
            place = row_of[start.job_id]
            world.start(start, place, now_ms)
            started[place] = now_ms
            heapq.heappush(ends, (now_ms + int(workload.run_ms[place]), turn, start.job_id))
            turn += 1
        world.promised = {one.job_id: one.at_ms for one in plan.expected}
        if plan.starts:
            waiting = [row for row in waiting if started[row] < 0]
    return Outcome(started, cycles, 100 * wasted / idle if idle else 0.0)


_EXPECTED_END = list(RunningColumns.__dataclass_fields__).index("expected_end_ms")


def _rows(table: RunningColumns | AllocationColumns) -> list[tuple[Any, ...]]:
    columns = [getattr(table, name) for name in table.__dataclass_fields__]
    plain = [column.tolist() if isinstance(column, np.ndarray) else column for column in columns]
    return list(zip(*plain, strict=True))
