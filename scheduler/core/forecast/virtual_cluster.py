"""A cluster under a virtual clock: what each job holds from one moment to the next, and the snapshot of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, NamedTuple

import numpy as np

from quotas.core.limits import charge
from quotas.core.resources import Resources
from scheduler.core.cluster.numa import Bound, bind, bound_column, bound_in
from scheduler.core.columns import Ints
from scheduler.core.forecast.progress import Progress, speed_of
from scheduler.core.forecast.virtual_reservations import VirtualReservations
from scheduler.core.plan import Plan, Preempt, Resize, Start
from scheduler.core.snapshot.snapshot import (
    AllocationColumns,
    JobGate,
    Pause,
    PendingColumns,
    RunningColumns,
    Snapshot,
)

_RUNNING: Final = tuple(f.name for f in fields(RunningColumns))
_AT: Final = {name: place for place, name in enumerate(_RUNNING)}
#: What a job that is to be suspended, or a task that is to leave, takes for that: one sync of its node.
_SOON_MS: Final = 1000

#: (moment, job): something may be over then; of no job = 0 only somebody may start then.
Event = tuple[int, int]


class Requeue(NamedTuple):
    """A job that has ended and waits again."""

    row: int  # of `VirtualCluster.jobs`
    lost_ms: int  # of its work, which it has to do once more
    grown: bool  # it stopped to start again larger, for nobody


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

    `jobs` holds every job that may ever wait, in rows: those that are pending in the snapshot, then those that
    run in it, for they may be stopped and come back.

    A job has so much work as its tasks do in the time it is said to run (`runs_for`). A suspended one does none
    and loses none; one that is made smaller or larger gets on as fast as it is large. One that waits again goes on
    from its last checkpoint; elastic jobs are taken to save their work as they go (`_saves`).
    """

    base: Snapshot
    jobs: PendingColumns
    row_of: dict[int, int]
    resize_seconds: int = 0  # of the policy: whether and how often sizes change
    running: dict[int, list[Any]] = field(default_factory=dict)  # job id -> its row of RunningColumns
    promised: dict[int, int] = field(default_factory=dict)
    awaited: set[int] = field(default_factory=set)
    gatherings: VirtualReservations = field(default_factory=VirtualReservations)
    progress: Progress = field(default_factory=Progress)
    _held: dict[int, list[tuple[Any, ...]]] = field(default_factory=dict)  # job id -> rows of its allocations
    _charged: dict[int, _Charge] = field(default_factory=dict)
    _used: dict[str, Ints] = field(default_factory=dict)
    _bound: Bound = field(default_factory=dict)
    _device_used: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    _quota_used: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    _queue_running: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    _pool_used: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    _stopped: dict[int, int] = field(default_factory=dict)  # job id -> how often it was stopped
    _evicted: set[int] = field(default_factory=set)  # asked to leave a tainted node, and to wait again
    _growing: set[int] = field(default_factory=set)  # asked to end so as to start again larger
    _bounded: set[int] = field(
        default_factory=set
    )  # of an open size: their limit may come before their work is done
    _still: dict[int, int] = field(
        default_factory=dict
    )  # suspended jobs, and what is left of their time limit
    _saves: set[int] = field(default_factory=set)  # running jobs that save their work as they go
    _serial: dict[int, int] = field(
        default_factory=dict
    )  # job id -> part of its work that tasks cannot divide
    _next_allocation: int = 1
    _next_attempt: int = 1

    @classmethod
    def at_first(cls, snapshot: Snapshot, *, resize_seconds: int = 0) -> VirtualCluster:
        jobs = _with_running(snapshot) if len(snapshot.running) else snapshot.pending
        cluster = cls(
            snapshot,
            jobs,
            {number: row for row, number in enumerate(jobs.id.tolist())},
            resize_seconds,
            promised={
                number: at
                for number, at in zip(
                    snapshot.pending.id.tolist(), snapshot.pending.promised_ms.tolist(), strict=True
                )
                if at
            },
            awaited=set(snapshot.pending.id[snapshot.pending.awaited].tolist()),
            gatherings=VirtualReservations.of(snapshot),
            _used={
                name: getattr(snapshot.nodes, f"used_{name}").copy()
                for name in ("cpu_millis", "memory_mib", "storage_mib")
            },
            _bound=bound_in(snapshot.nodes),
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
        now_ms = snapshot.now_ms
        for number, held in cluster.running.items():
            per_task = snapshot.classes[held[_AT["class_index"]]].per_task
            still = held[_AT["pause"]] == Pause.SUSPENDED
            cluster._charged[number] = cluster._charge_of(
                number, replace(per_task, cpu_millis=0) if still else per_task
            )
            cluster._stopped[number] = held[_AT["times_preempted"]]
            if still:
                cluster._still[number] = cluster._left_of_limit(number, now_ms)
            elif held[_AT["pause"]] == Pause.ASKED:
                cluster.awaited.add(held[_AT["stopped_for"]])
                cluster._stand_still(number, now_ms)
            leaving = tuple(row[2] for row in cluster._held[number] if row[9])
            if leaving:
                cluster._leave(number, leaving)
                cluster.awaited.add(held[_AT["resized_for"]])
            if held[_AT["least_tasks"]]:
                cluster._bounded.add(number)
            began_ms = held[_AT["started_ms"]]
            if held[_AT["saved_ms"]] or now_ms - began_ms < resize_seconds * 1000:
                cluster._may_save(number)
        return cluster

    @property
    def device_used(self) -> Ints:
        """Thousandths of each device that are held now."""
        return self._device_used

    @property
    def used(self) -> Mapping[str, Ints]:
        """What is held of each node now."""
        return self._used

    @property
    def is_restless(self) -> bool:
        """Whether something may change although nobody waits: a job is suspended, or could have more tasks."""
        return bool(self._still) or any(
            self.running[number][_AT["most_tasks"]] > len(self._held[number]) for number in self._saves
        )

    def picture(self, now_ms: int, waiting: Ints) -> Snapshot:
        """The snapshot of this moment, in which these rows of `jobs` wait."""
        base, pending = self.base, self.jobs.take(waiting)
        moved: dict[str, Any] = {}
        used: dict[str, Any] = {f"used_{name}": column for name, column in self._used.items()}
        if self._bound:
            used["bound"] = bound_column(self._bound, len(base.nodes))
        if self.promised or base.pending.promised_ms.any():
            moved["promised_ms"] = [self.promised.get(number, 0) for number in pending.id.tolist()]
        if self.awaited or base.pending.awaited.any():
            moved["awaited"] = [number in self.awaited for number in pending.id.tolist()]
        if moved:
            pending = replace(pending, **moved)
        pending, set_aside = self.gatherings.onto(pending, self.promised, now_ms)
        for number, left_ms in self._still.items():
            if left_ms:
                self.running[number][_AT["expected_end_ms"]] = now_ms + left_ms
        for number in self._saves:
            self.running[number][_AT["saved_ms"]] = now_ms
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

    def follow(self, plan: Plan, now_ms: int) -> list[Event]:
        """Let what a plan of this moment decided happen: its starts run, its victims end, its gangs gather.

        Answers when something is over by that. How long the jobs run that it starts is said by `runs_for`.
        """
        events: list[Event] = []
        for resumed in plan.resumes:
            self._go_on(resumed.job_id, now_ms)
            events += self._due(resumed.job_id)
        for start in plan.starts:
            self._start(start, now_ms)
        for preempt in plan.preempts:
            self._stop(preempt, now_ms)
            events.append((now_ms + _SOON_MS, 0))
            events += self._due(preempt.job_id)
        for resize in plan.resizes:
            number = resize.job_id
            if resize.ranks:
                self._give_up(resize, now_ms)
                events += [(now_ms + _SOON_MS, 0), *self._due(number)]
            else:
                self._grow(resize, now_ms)
                events += self._due(number)
            events += self._settles(number)
        self.promised = {one.job_id: one.at_ms for one in plan.expected}
        return events + [(at_ms, 0) for at_ms in self.gatherings.follow(plan, self.jobs, self.row_of)]

    def runs_for(
        self, job_id: int, now_ms: int, length_ms: int | None, *, tasks: int = 0, serial_millis: int = 0
    ) -> list[Event]:
        """Say how long a running job takes from now on with so many tasks (0 = those it has); None = nobody knows.

        If it has saved some of its work before, it takes what was left of that. Answers when it is over.
        """
        if serial_millis:
            self._serial[job_id] = serial_millis
        asked, now = tasks or len(self._held[job_id]), self._speed(job_id)
        at_speed = speed_of(asked, self._serial.get(job_id, 0))
        self.progress.begin(job_id, now_ms, length_ms, at_speed=at_speed, speed=now)
        return self._due(job_id) + self._settles(job_id)

    def due_ms(self, job_id: int) -> int | None:
        """When a running job is over: its work is done, or it is asked to end. None = nobody knows, or it is over."""
        row = self.running.get(job_id)
        if row is None:
            return None
        limit = row[_AT["expected_end_ms"]] if job_id in self._bounded and job_id not in self._still else 0
        moments = [at_ms for at_ms in (row[_AT["stop_by_ms"]], limit) if at_ms]
        done_ms = self.progress.done_ms(job_id)
        return min(moments if done_ms is None else [*moments, done_ms], default=None)

    def end(self, job_id: int, now_ms: int) -> Requeue | None:
        """Give back what a job holds. Answers what becomes of it if it was stopped for another, and waits again."""
        row = self.running.pop(job_id, None)
        if row is None:
            return None  # a second time is nothing
        tasks = len(self._held[job_id])
        self._hold(self._held.pop(job_id), -1)
        self._count(self._charged.pop(job_id), -1)
        grown = job_id in self._growing
        again = bool(row[_AT["stopped_for"]] and row[_AT["stop_by_ms"]]) or job_id in self._evicted or grown
        if again:
            saved_ms, speed = row[_AT["saved_ms"]], speed_of(tasks, self._serial.get(job_id, 0))
            unsaved_ms = 0 if job_id in self._saves else now_ms - saved_ms
            lost_ms = min(self.progress.worked_ms(job_id, now_ms, speed), unsaved_ms)
            keeps = saved_ms > 0 or job_id in self._saves
            self.progress.end(job_id, now_ms, lost=unsaved_ms * speed if keeps else None)
        else:
            self.progress.end(job_id, now_ms)
        for known in (self._evicted, self._growing, self._bounded, self._saves):
            known.discard(job_id)
        self._still.pop(job_id, None)
        if not again or job_id not in self.row_of:
            return None
        return Requeue(self.row_of[job_id], lost_ms, grown)

    def expected_end_ms(self, job_id: int) -> int:
        """When a running job has to be over, by its limit or because it is asked to; 0 = nobody knows."""
        row = self.running[job_id]
        limit, stop = row[_AT["expected_end_ms"]], row[_AT["stop_by_ms"]]
        return int(min(limit, stop) if limit and stop else limit or stop)

    def stands_still(self, job_id: int) -> bool:
        return job_id in self._still

    def holds(self, job_id: int) -> tuple[int, int]:
        """Thousandths of GPUs and of cores that a running job holds now."""
        held = self._held[job_id]
        return sum(len(row[7]) * row[8] for row in held), sum(row[4] for row in held)

    def _due(self, job_id: int) -> list[Event]:
        at_ms = self.due_ms(job_id)
        return [] if at_ms is None else [(at_ms, job_id)]

    def _settles(self, job_id: int) -> list[Event]:
        """When its size may change again, where it may at all."""
        row = self.running[job_id]
        if not self.resize_seconds or not row[_AT["least_tasks"]]:
            return []
        since_ms = max(row[_AT["started_ms"]], row[_AT["resized_ms"]])
        return [(max(since_ms + self.resize_seconds * 1000, self.base.now_ms + _SOON_MS), 0)]

    def _speed(self, job_id: int) -> int:
        if job_id in self._still:
            return 0
        return speed_of(len(self._held[job_id]), self._serial.get(job_id, 0))

    def _may_save(self, job_id: int) -> None:
        """Only where sizes change does it matter when elastic jobs save their work."""
        if self.resize_seconds and self.running[job_id][_AT["least_tasks"]]:
            self._saves.add(job_id)

    def _start(self, start: Start, now_ms: int) -> None:
        per_task, number = start.per_task, start.job_id
        rows = []
        bound = self.base.classes[self.jobs.class_index.item(self.row_of[number])].one_domain
        for placement in start.placements:
            rows.append(
                (self._next_allocation, number, placement.rank, placement.node_id, per_task.cpu_millis,
                 per_task.memory_mib, per_task.storage_mib, placement.device_ids, placement.gpu_millis, False,
                 placement.numa if bound else -1)
            )  # fmt: skip
            self._next_allocation += 1
        place = self.row_of[number]
        limit = int(self.jobs.time_limit_seconds[place])
        elastic = bool(self.jobs.elastic[place])
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
            "preemptible": bool(self.jobs.preemptible[place]),
            "least_tasks": int(self.jobs.tasks[place]) if elastic else 0,
            "most_tasks": int(self.jobs.most_tasks[place]) if elastic else 0,
            "pack": int(self.jobs.pack[place]),
            "name": self.jobs.name[place],
            "labels": self.jobs.labels[place],
        }
        self._next_attempt += 1
        self.running[number] = [values.get(f.name, f.metadata["default"]) for f in fields(RunningColumns)]
        self.awaited.discard(number)
        self._held[number] = rows
        self._charged[number] = self._charge_of(number, per_task)
        self._hold(rows, 1)
        self._count(self._charged[number], 1)
        self._may_save(number)
        if self.jobs.most_tasks[place]:
            self._bounded.add(number)

    def _stop(self, preempt: Preempt, now_ms: int) -> None:
        number, row = preempt.job_id, self.running[preempt.job_id]
        if preempt.for_job_id:
            self._stopped[number] = self._stopped.get(number, 0) + 1
            self.awaited.add(preempt.for_job_id)
        else:
            self._evicted.add(number)
        if preempt.mode == "suspend":
            row[_AT["times_preempted"]] += 1
            self._stand_still(number, now_ms)
            return
        row[_AT["stop_by_ms"]] = now_ms + preempt.grace_seconds * 1000
        row[_AT["stopped_for"]] = preempt.for_job_id

    def _stand_still(self, job_id: int, now_ms: int) -> None:
        """It gives back its CPUs, of its node and of every limit, and its time limit runs no more."""
        row = self.running[job_id]
        self._still[job_id] = self._left_of_limit(job_id, now_ms)
        row[_AT["pause"]], row[_AT["stop_by_ms"]], row[_AT["stopped_for"]] = int(Pause.SUSPENDED), 0, 0
        self._move_cpus(job_id, 0)
        self.progress.change(job_id, now_ms, 0)

    def _left_of_limit(self, job_id: int, now_ms: int) -> int:
        """0 = it has none."""
        end_ms = self.running[job_id][_AT["expected_end_ms"]]
        return max(end_ms - now_ms, 1) if end_ms else 0

    def _go_on(self, job_id: int, now_ms: int) -> None:
        row = self.running[job_id]
        left_ms = self._still.pop(job_id)
        row[_AT["expected_end_ms"]] = now_ms + left_ms if left_ms else 0
        row[_AT["pause"]] = int(Pause.NO)
        self._move_cpus(job_id, self.base.classes[row[_AT["class_index"]]].per_task.cpu_millis)
        self.progress.change(job_id, now_ms, self._speed(job_id))

    def _move_cpus(self, job_id: int, each: int) -> None:
        """From now on each of its tasks holds so much."""
        held, charged = self._held[job_id], self._charged[job_id]
        self._hold(held, -1)
        self._count(charged, -1)
        self._held[job_id] = [(*row[:4], each, *row[5:]) for row in held]
        self._charged[job_id] = replace(charged, per_task=replace(charged.per_task, cpu_millis=each))
        self._hold(self._held[job_id], 1)
        self._count(self._charged[job_id], 1)

    def _give_up(self, resize: Resize, now_ms: int) -> None:
        """Its last tasks end at once: it is a matter of seconds."""
        self._leave(resize.job_id, resize.ranks)
        self.running[resize.job_id][_AT["resized_ms"]] = now_ms
        self.progress.change(resize.job_id, now_ms, self._speed(resize.job_id))
        self.awaited.add(resize.for_job_id)

    def _leave(self, job_id: int, ranks: tuple[int, ...]) -> None:
        held, charged = self._held[job_id], self._charged[job_id]
        self._hold([row for row in held if row[2] in ranks], -1)
        self._held[job_id] = [row for row in held if row[2] not in ranks]
        self._count(charged, -1)
        self._charged[job_id] = self._charge_of(job_id, charged.per_task)
        self._count(self._charged[job_id], 1)

    def _grow(self, resize: Resize, now_ms: int) -> None:
        """It saves its work and ends, and goes first when it waits again: it gets on no further until then."""
        row = self.running[resize.job_id]
        row[_AT["stop_by_ms"]] = now_ms + resize.grace_seconds * 1000
        row[_AT["resized_ms"]] = now_ms
        self.progress.change(resize.job_id, now_ms, 0)
        self._growing.add(resize.job_id)
        self.awaited.add(resize.job_id)

    def _hold(self, rows: list[tuple[Any, ...]], sign: int) -> None:
        snapshot = self.base
        for _, _, _, node_id, cpu, memory, storage, devices, millis, _, numa in rows:
            node = int(np.searchsorted(snapshot.nodes.id, node_id))
            for name, amount in (("cpu_millis", cpu), ("memory_mib", memory), ("storage_mib", storage)):
                self._used[name][node] += sign * amount
            bind(self._bound, node, numa, sign * cpu, sign * memory)
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
    elastic = running.least_tasks > 0
    limits = np.where(running.expected_end_ms > 0, (running.expected_end_ms - running.started_ms) // 1000, 0)
    again: dict[str, Any] = {
        "name": running.name, "labels": running.labels,
        "id": running.id, "class_index": running.class_index, "queue_id": running.queue_id,
        "project_id": running.project_id, "user_id": running.user_id, "priority": running.priority,
        "job_type": running.job_type, "submitted_ms": running.started_ms,
        "tasks": np.where(elastic, running.least_tasks, np.maximum(tasks, 1)),
        "most_tasks": np.where(elastic, running.most_tasks, 0), "elastic": elastic,
        "array_id": running.array_id, "pack": running.pack, "preemptible": running.preemptible,
        "time_limit_seconds": np.maximum(limits, 0),
    }  # fmt: skip
    columns: dict[str, Any] = {}
    for f in fields(PendingColumns):
        before, default = getattr(pending, f.name), f.metadata["default"]
        more = again.get(f.name, (default or 0,) * len(running))
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
