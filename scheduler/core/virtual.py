"""A cluster under a virtual clock: who holds what from one moment to the next, and the snapshot of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

import numpy as np

from quotas.core.limits import charge
from quotas.core.resources import Resources
from scheduler.core.columns import Ints
from scheduler.core.gatherings import Gatherings
from scheduler.core.plan import Plan, Preempt, Resize, Start
from scheduler.core.snapshot import (
    AllocationColumns,
    JobGate,
    Pause,
    PendingColumns,
    RunningColumns,
    Snapshot,
)

_RUNNING: Final = tuple(f.name for f in fields(RunningColumns))
_AT: Final = {name: place for place, name in enumerate(_RUNNING)}


@dataclass(frozen=True, slots=True)
class _Charge:
    """What a job counts for beside its nodes."""

    queue_id: int
    project_id: int
    user_id: int
    job_type: int
    per_task: Resources
    tasks: int
    #: Thousandths of GPUs by model, where lines ask for them.
    devices: Mapping[str, int]


@dataclass(slots=True)
class VirtualCluster:
    """What changes while time passes; the rest is the snapshot it began with.

    `jobs` holds every job that may ever wait, in rows: those that are pending in the snapshot, then, with
    `restarts`, those that run in it, for they may be stopped and come back.
    """

    base: Snapshot
    jobs: PendingColumns
    row_of: dict[int, int]
    running: dict[int, list[Any]] = field(default_factory=dict)  # job id -> its row of RunningColumns
    promised: dict[int, int] = field(default_factory=dict)
    awaited: set[int] = field(default_factory=set)
    gatherings: Gatherings = field(default_factory=Gatherings)
    _held: dict[int, list[tuple[Any, ...]]] = field(default_factory=dict)  # job id -> rows of its allocations
    _charged: dict[int, _Charge] = field(default_factory=dict)
    _used: dict[str, Ints] = field(default_factory=dict)
    _device_used: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    _quota_used: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    _queue_running: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    _pool_used: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    _stopped: dict[int, int] = field(default_factory=dict)  # job id -> how often it was stopped
    _evicted: set[int] = field(default_factory=set)  # told to leave a tainted node, and to wait again
    _next_allocation: int = 1
    _next_attempt: int = 1

    @classmethod
    def at_first(cls, snapshot: Snapshot, *, restarts: bool = False) -> VirtualCluster:
        jobs = snapshot.pending
        if restarts and len(snapshot.running):
            jobs = _with_running(snapshot)
        cluster = cls(
            snapshot,
            jobs,
            {number: row for row, number in enumerate(jobs.id.tolist())},
            promised={
                number: at
                for number, at in zip(
                    snapshot.pending.id.tolist(), snapshot.pending.promised_ms.tolist(), strict=True
                )
                if at
            },
            awaited=set(snapshot.pending.id[snapshot.pending.awaited].tolist()),
            gatherings=Gatherings.of(snapshot),
            _used={
                name: getattr(snapshot.nodes, f"used_{name}").copy()
                for name in ("cpu_millis", "memory_mib", "storage_mib")
            },
            _device_used=snapshot.devices.used_millis.copy(),
            _quota_used=snapshot.quotas.used.copy(),
            _queue_running=snapshot.queues.running_jobs.copy(),
            _pool_used=snapshot.pools.used.copy(),
        )
        for row in _rows(snapshot.running):
            cluster.running[row[0]] = list(row)
            cluster._held[row[0]] = []
            cluster._next_attempt = max(cluster._next_attempt, row[_AT["attempt_id"]] + 1)
        for row in _rows(snapshot.allocations):
            cluster._held[row[1]].append(row)
            cluster._next_allocation = max(cluster._next_allocation, row[0] + 1)
        for number, held in cluster.running.items():
            per_task = snapshot.classes[held[_AT["class_index"]]].per_task
            if held[_AT["pause"]] == Pause.SUSPENDED:
                per_task = replace(per_task, cpu_millis=0)
            held[_AT["pause"]] = int(Pause.NO)  # ahead of now nobody stands still: a victim ends
            cluster._charged[number] = cluster._charge_of(number, per_task)
            cluster._stopped[number] = held[_AT["times_preempted"]]
        return cluster

    @property
    def device_used(self) -> Ints:
        """Thousandths of each device that are held now."""
        return self._device_used

    @property
    def used(self) -> Mapping[str, Ints]:
        """What is held of each node now."""
        return self._used

    def picture(self, now_ms: int, waiting: Ints) -> Snapshot:
        """The snapshot of this moment, in which these rows of `jobs` wait."""
        base, pending = self.base, self.jobs.take(waiting)
        moved: dict[str, Any] = {}
        used: dict[str, Any] = {f"used_{name}": column for name, column in self._used.items()}
        if self.promised or base.pending.promised_ms.any():
            moved["promised_ms"] = [self.promised.get(number, 0) for number in pending.id.tolist()]
        if self.awaited or base.pending.awaited.any():
            moved["awaited"] = [number in self.awaited for number in pending.id.tolist()]
        if moved:
            pending = replace(pending, **moved)
        pending, set_aside = self.gatherings.onto(pending, self.promised, now_ms)
        groups = {f.name: getattr(base, f.name) for f in fields(base)}
        changed = {
            "now_ms": now_ms,
            "nodes": replace(base.nodes, **used),
            "devices": replace(base.devices, used_millis=self._device_used),
            "pending": pending,
            "reservations": base.reservations if set_aside is None else set_aside,
            "running": RunningColumns.from_rows(self.running.values()),
            "allocations": AllocationColumns.from_rows([row for rows in self._held.values() for row in rows]),
            "queues": replace(base.queues, running_jobs=self._queue_running),
            "quotas": replace(base.quotas, used=self._quota_used),
            "pools": replace(base.pools, used=self._pool_used),
        }
        return Snapshot.build(**(groups | changed))

    def follow(self, plan: Plan, now_ms: int) -> list[int]:
        """Let what a plan of this moment decided happen: its starts run, its victims are told, its gangs gather.

        Answers the moments at which something is over by that alone.
        """
        for start in plan.starts:
            self._start(start, now_ms)
        for preempt in plan.preempts:
            self._stop(preempt, now_ms)
        for resize in plan.resizes:
            if resize.ranks:  # nobody knows when jobs save their work, so none starts again larger
                self._give_up(resize, now_ms)
        self.promised = {one.job_id: one.at_ms for one in plan.expected}
        return self.gatherings.follow(plan, self.jobs, self.row_of)

    def end(self, job_id: int) -> int | None:
        """Give back what a job holds. Answers its row if it was stopped for another, so that it waits again."""
        row = self.running.pop(job_id, None)
        if row is None:
            return None  # a second time is nothing
        self._hold(self._held.pop(job_id), -1)
        self._count(self._charged.pop(job_id), -1)
        again = row[_AT["stopped_for"]] or job_id in self._evicted
        self._evicted.discard(job_id)
        return self.row_of.get(job_id) if again else None

    def expected_end_ms(self, job_id: int) -> int:
        """When a running job has to be over, by its limit or because it is told to; 0 = nobody knows."""
        row = self.running[job_id]
        limit, told = row[_AT["expected_end_ms"]], row[_AT["stop_by_ms"]]
        return int(min(limit, told) if limit and told else limit or told)

    def _start(self, start: Start, now_ms: int) -> None:
        per_task, number = start.per_task, start.job_id
        rows = []
        for placement in start.placements:
            rows.append(
                (self._next_allocation, number, placement.rank, placement.node_id, per_task.cpu_millis,
                 per_task.memory_mib, per_task.storage_mib, placement.device_ids, placement.gpu_millis, False)
            )  # fmt: skip
            self._next_allocation += 1
        place = self.row_of[number]
        limit = int(self.jobs.time_limit_seconds[place])
        values = {
            "id": number,
            "attempt_id": self._next_attempt,
            "class_index": int(self.jobs.class_index[place]),
            "queue_id": start.queue_id,
            "project_id": start.project_id,
            "user_id": int(self.jobs.user_id[place]),
            "job_type": int(self.jobs.job_type[place]),
            "priority": int(self.jobs.priority[place]),
            "started_ms": now_ms,
            "expected_end_ms": now_ms + limit * 1000 if limit else 0,
            "array_id": int(self.jobs.array_id[place]),
            "times_preempted": self._stopped.get(number, 0),
        }
        self._next_attempt += 1
        self.running[number] = [values.get(f.name, f.metadata["default"]) for f in fields(RunningColumns)]
        self.awaited.discard(number)
        self._held[number] = rows
        self._charged[number] = self._charge_of(number, per_task)
        self._hold(rows, 1)
        self._count(self._charged[number], 1)

    def _stop(self, preempt: Preempt, now_ms: int) -> None:
        row = self.running[preempt.job_id]
        row[_AT["stop_by_ms"]] = now_ms + preempt.grace_seconds * 1000
        row[_AT["stopped_for"]] = preempt.for_job_id
        if not preempt.for_job_id:
            self._evicted.add(preempt.job_id)
            return
        self._stopped[preempt.job_id] = self._stopped.get(preempt.job_id, 0) + 1
        self.awaited.add(preempt.for_job_id)

    def _give_up(self, resize: Resize, now_ms: int) -> None:
        """Its last tasks end at once: it is a matter of seconds."""
        held, charged = self._held[resize.job_id], self._charged[resize.job_id]
        leaving = [row for row in held if row[2] in resize.ranks]
        self._hold(leaving, -1)
        self._held[resize.job_id] = [row for row in held if row[2] not in resize.ranks]
        self._count(charged, -1)
        self._charged[resize.job_id] = self._charge_of(resize.job_id, charged.per_task)
        self._count(self._charged[resize.job_id], 1)
        self.running[resize.job_id][_AT["resized_ms"]] = now_ms
        self.awaited.add(resize.for_job_id)

    def _hold(self, rows: list[tuple[Any, ...]], sign: int) -> None:
        snapshot = self.base
        for _, _, _, node_id, cpu, memory, storage, devices, millis, _ in rows:
            node = int(np.searchsorted(snapshot.nodes.id, node_id))
            for name, amount in (("cpu_millis", cpu), ("memory_mib", memory), ("storage_mib", storage)):
                self._used[name][node] += sign * amount
            for device in devices:
                self._device_used[int(np.searchsorted(snapshot.devices.id, device))] += sign * millis

    def _charge_of(self, number: int, per_task: Resources) -> _Charge:
        """What a job counts for, from its row and what it holds."""
        row, rows, models = self.running[number], self._held[number], self.base.devices.model
        devices: Counter[str] = Counter()
        for _, _, _, _, _, _, _, held, millis, *_ in rows if any(self.base.quotas.gpu_model) else ():
            for device in held:
                devices[models[int(np.searchsorted(self.base.devices.id, device))]] += millis
        return _Charge(
            queue_id=row[_AT["queue_id"]],
            project_id=row[_AT["project_id"]],
            user_id=row[_AT["user_id"]],
            job_type=row[_AT["job_type"]],
            per_task=per_task,
            tasks=len(rows),
            devices=devices,
        )

    def _count(self, held: _Charge, sign: int) -> None:
        """Quotas, queues and pools."""
        snapshot, quotas = self.base, self.base.quotas
        self._queue_running[int(np.searchsorted(snapshot.queues.id, held.queue_id))] += sign
        project = int(np.searchsorted(snapshot.projects.id, held.project_id))
        for line_id in snapshot.projects.quota_line_ids[project]:
            line = int(np.searchsorted(quotas.id, line_id))
            if quotas.user_id[line] in (0, held.user_id) and quotas.job_type[line] in (0, held.job_type):
                self._quota_used[line] += sign * charge(
                    quotas.resource[line], held.per_task, held.tasks,
                    gpu_model=quotas.gpu_model[line], devices=held.devices,
                )  # fmt: skip
        for name, amount in held.per_task.extras:
            if name in snapshot.pools.name:
                self._pool_used[snapshot.pools.name.index(name)] += sign * amount * held.tasks


def _with_running(snapshot: Snapshot) -> PendingColumns:
    """The pending jobs, and after them those that run as they would wait again."""
    pending, running, held = snapshot.pending, snapshot.running, snapshot.allocations
    tasks = np.bincount(np.searchsorted(running.id, held.job_id), minlength=len(running))
    limits = np.where(running.expected_end_ms > 0, (running.expected_end_ms - running.started_ms) // 1000, 0)
    again: dict[str, Any] = {
        "name": running.name, "labels": running.labels,
        "id": running.id, "class_index": running.class_index, "queue_id": running.queue_id,
        "project_id": running.project_id, "user_id": running.user_id, "priority": running.priority,
        "job_type": running.job_type, "submitted_ms": running.started_ms,
        "tasks": np.maximum(tasks, 1), "array_id": running.array_id,
        "time_limit_seconds": np.maximum(limits, 0),
    }  # fmt: skip
    columns: dict[str, Any] = {}
    for f in fields(PendingColumns):
        before, default = getattr(pending, f.name), f.metadata["default"]
        more = again.get(f.name, [default or 0] * len(running))
        columns[f.name] = (*before, *more) if f.metadata["kind"] == "objects" else np.append(before, more)
    return PendingColumns(**columns)


def moments_of(snapshot: Snapshot) -> list[int]:
    """When something changes by itself: a job may begin, nodes are set aside or free again."""
    pending, reservations = snapshot.pending, snapshot.reservations
    open_gates = np.isin(pending.gate, [JobGate.OPEN, JobGate.BACKOFF])
    moments = np.unique(
        np.concatenate([pending.eligible_ms[open_gates], reservations.starts_ms, reservations.ends_ms])
    )
    return [int(at_ms) for at_ms in moments[moments > snapshot.now_ms].tolist()]


def _rows(table: RunningColumns | AllocationColumns) -> list[tuple[Any, ...]]:
    columns = [getattr(table, f.name) for f in fields(table)]
    plain = [column.tolist() if isinstance(column, np.ndarray) else column for column in columns]
    return list(zip(*plain, strict=True))
