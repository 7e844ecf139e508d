"""A cluster under a virtual clock: it applies plans, ends jobs, and gives the snapshot of each moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, Final, NamedTuple

import numpy as np

from scheduler.core.cluster.index import ClusterIndex
from scheduler.core.columns import Ints
from scheduler.core.forecast.virtual_allocations import VirtualAllocations
from scheduler.core.forecast.virtual_reservations import VirtualReservations
from scheduler.core.forecast.virtual_runs import VirtualRuns
from scheduler.core.ordering.fair_queue import fair_queues, remembered, turns_after
from scheduler.core.plan import Plan, Preempt, Resize
from scheduler.core.policy import Policy
from scheduler.core.snapshot.snapshot import JobGate, Pause, PendingColumns, Snapshot

#: How long a suspension, or the end of some tasks of a job, takes: one sync of its node.
_SOON_MS: Final = 1000

#: (moment, job): the job may end then; 0 = no job ends, but a cycle may start one.
Event = tuple[int, int]


class Requeue(NamedTuple):
    """A job that has ended and waits again."""

    row: int  # of `VirtualCluster.jobs`
    lost_ms: int  # of its work, which it has to do once more
    grown: bool  # it ended to start again larger, and not for another job


class VirtualCluster:
    """What changes while time passes; the rest is the snapshot that it began with.

    `jobs` holds every job that may ever wait, in rows: the pending jobs of the snapshot, then its running jobs, since
    they may be requeued.
    """

    def __init__(self, snapshot: Snapshot, *, resize_seconds: int = 0) -> None:
        """`resize_seconds`: of the policy, the least time between two changes of a job's size; 0 = no changes."""
        pending = snapshot.pending
        self._base = snapshot
        self.jobs = _with_running(snapshot) if len(snapshot.running) else pending
        self.row_of = {number: row for row, number in enumerate(self.jobs.id.tolist())}
        self._allocations = VirtualAllocations(snapshot)
        self._runs = VirtualRuns(snapshot, self._allocations, resize_seconds)
        self._reservations = VirtualReservations.of(snapshot)
        expected = zip(pending.id.tolist(), pending.promised_ms.tolist(), strict=True)
        self._expected_starts = {number: at_ms for number, at_ms in expected if at_ms}
        #: Pending jobs for which others end, are suspended or shrink.
        self._preemptors: set[int] = set(pending.id[pending.awaited].tolist())
        self._turns = snapshot.turns
        self._finish_changes(snapshot)

    def _finish_changes(self, snapshot: Snapshot) -> None:
        """Take suspensions and leaving tasks that the snapshot has asked for as done."""
        running, held = snapshot.running, snapshot.allocations
        asked = running.pause == Pause.ASKED
        self._preemptors.update(running.stopped_for[asked].tolist())
        leaving: dict[int, list[int]] = {}
        for row in np.flatnonzero(held.leaving).tolist():
            leaving.setdefault(held.job_id.item(row), []).append(held.rank.item(row))
        for number, ranks in leaving.items():
            self._allocations.release_tasks(number, ranks)
            row = int(np.searchsorted(running.id, number))
            self._preemptors.add(running.resized_for.item(row))

    # ---------------------------------------------------------------- what is known of a moment

    @property
    def device_used(self) -> Ints:
        """Thousandths of each device that are held now."""
        return self._allocations.device_used

    @property
    def used(self) -> Mapping[str, Ints]:
        """What is held of each node now: `cpu_millis`, `memory_mib`, `storage_mib`."""
        return self._allocations.used

    @property
    def running(self) -> tuple[int, ...]:
        """The ids of the running jobs, in the order of their starts."""
        return tuple(self._runs.rows)

    @property
    def may_change(self) -> bool:
        """Whether a cycle could do something although no job waits: resume a job, or make one larger."""
        return self._runs.may_change

    def due_ms(self, job_id: int) -> int | None:
        """When a job ends: its work is done, or it is asked to end. None = unknown, or it does not run."""
        return self._runs.due_ms(job_id)

    def expected_end_ms(self, job_id: int) -> int:
        """When a running job has to be over, by its limit or because it is asked to end; 0 = unknown."""
        return self._runs.expected_end_ms(job_id)

    def is_suspended(self, job_id: int) -> bool:
        return self._runs.is_suspended(job_id)

    def amounts_held(self, job_id: int) -> tuple[int, int]:
        """Thousandths of GPUs and of cores that a running job holds now."""
        return self._allocations.amounts(job_id)

    def snapshot_at(self, now_ms: int, waiting: Ints) -> Snapshot:
        """The snapshot of this moment, in which these rows of `jobs` wait."""
        base, pending = self._base, self.jobs.take(waiting)
        moved: dict[str, Any] = {}
        if self._expected_starts or base.pending.promised_ms.any():
            moved["promised_ms"] = [self._expected_starts.get(number, 0) for number in pending.id.tolist()]
        if self._preemptors or base.pending.awaited.any():
            moved["awaited"] = [number in self._preemptors for number in pending.id.tolist()]
        if moved:
            pending = replace(pending, **moved)
        pending, reservations = self._reservations.add_to(pending, self._expected_starts, now_ms)
        groups = {f.name: getattr(base, f.name) for f in fields(base)}
        changed = {
            "now_ms": now_ms,
            "pending": pending,
            "running": self._runs.columns(now_ms),
            "turns": self._turns,
            "reservations": base.reservations if reservations is None else reservations,
        }
        return Snapshot.build(**(groups | self._allocations.groups() | changed))

    # ---------------------------------------------------------------- what happens

    def apply(self, plan: Plan, now_ms: int) -> list[Event]:
        """Apply the decisions of a plan of this moment; returns the events that follow from them.

        How long the jobs run that it starts is not known yet: `run` says it.
        """
        events: list[Event] = []
        for resumed in plan.resumes:
            number = resumed.job_id
            per_task = self._base.classes[self._runs.class_index(number)].per_task
            self._runs.resume(number, now_ms, per_task.cpu_millis)
            events += self._end_of(number)
        for start in plan.starts:
            row = self.row_of[start.job_id]
            one_domain = self._base.classes[self.jobs.class_index.item(row)].one_domain
            self._allocations.start(
                start,
                user_id=self.jobs.user_id.item(row),
                job_type=self.jobs.job_type.item(row),
                one_domain=one_domain,
            )
            self._runs.start(start, self.jobs, row, now_ms)
            self._preemptors.discard(start.job_id)
        for preempt in plan.preempts:
            events += self._preempt(preempt, now_ms)
        for resize in plan.resizes:
            events += self._resize(resize, now_ms)
        self._expected_starts = {one.job_id: one.at_ms for one in plan.expected}
        return events + [(at_ms, 0) for at_ms in self._reservations.apply(plan, self.jobs, self.row_of)]

    def count_turns(self, snapshot: Snapshot, policy: Policy, plan: Plan) -> None:
        """Remember which tenants the starts of a plan of this snapshot have served, where tenants take turns."""
        if fair_queues(policy):
            started = [start.job_id for start in plan.starts]
            self._turns = remembered(self._turns, turns_after(ClusterIndex(snapshot), policy, started))

    def run(
        self, job_id: int, now_ms: int, length_ms: int | None, *, tasks: int = 0, serial_millis: int = 0
    ) -> list[Event]:
        """Say how long a job takes from now on with `tasks` tasks (0 = those it has); None = unknown.

        A job that has saved some of its work before takes what was left of that instead. `serial_millis`: the part
        of its work that more tasks do not speed up, in thousandths. Returns the events that follow.
        """
        self._runs.run(job_id, now_ms, length_ms, tasks=tasks, serial_millis=serial_millis)
        return self._end_of(job_id) + self._resize_of(job_id)

    def end(self, job_id: int, now_ms: int) -> Requeue | None:
        """End a job and release what it holds; a Requeue where it waits again. A second time does nothing."""
        if job_id not in self._runs.rows:
            return None
        requeued = self._runs.end(job_id, now_ms)
        self._allocations.release(job_id)
        if requeued is None or job_id not in self.row_of:
            return None
        lost_ms, grown = requeued
        return Requeue(self.row_of[job_id], lost_ms, grown)

    def _preempt(self, preempt: Preempt, now_ms: int) -> list[Event]:
        number, for_job_id = preempt.job_id, preempt.for_job_id
        if for_job_id:
            self._preemptors.add(for_job_id)
        if preempt.mode == "suspend":
            self._runs.suspend_for(number, for_job_id, now_ms)
        else:
            self._runs.preempt(number, for_job_id, now_ms + preempt.grace_seconds * 1000)
        return [(now_ms + _SOON_MS, 0), *self._end_of(number)]

    def _resize(self, resize: Resize, now_ms: int) -> list[Event]:
        number, events = resize.job_id, []
        if resize.ranks:
            self._runs.shrink(number, resize.ranks, now_ms)
            self._preemptors.add(resize.for_job_id)
            events = [(now_ms + _SOON_MS, 0)]
        else:
            self._runs.grow(number, now_ms, now_ms + resize.grace_seconds * 1000)
            self._preemptors.add(number)  # it goes first when it waits again
        return events + self._end_of(number) + self._resize_of(number)

    def _end_of(self, job_id: int) -> list[Event]:
        at_ms = self._runs.due_ms(job_id)
        return [] if at_ms is None else [(at_ms, job_id)]

    def _resize_of(self, job_id: int) -> list[Event]:
        """When the size of a job may change again."""
        at_ms = self._runs.resizable_ms(job_id)
        return [] if at_ms is None else [(max(at_ms, self._base.now_ms + _SOON_MS), 0)]


def _with_running(snapshot: Snapshot) -> PendingColumns:
    """The pending jobs, and after them the running jobs as they would wait after a requeue."""
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
        "reservation_id": running.reservation_id,
        "time_limit_seconds": np.maximum(limits, 0), "predicted_seconds": running.predicted_seconds,
    }  # fmt: skip
    columns: dict[str, Any] = {}
    for f in fields(PendingColumns):
        before, default = getattr(pending, f.name), f.metadata["default"]
        more = again.get(f.name, (default or 0,) * len(running))
        columns[f.name] = (*before, *more) if f.metadata["kind"] == "objects" else np.append(before, more)
    return PendingColumns(**columns)


def moments_of(snapshot: Snapshot) -> list[int]:
    """When something changes without a job: the eligible time of a job, the start or end of a reservation."""
    pending, reservations = snapshot.pending, snapshot.reservations
    open_gates = np.isin(pending.gate, [JobGate.OPEN, JobGate.BACKOFF])
    moments = np.unique(
        np.concatenate([pending.eligible_ms[open_gates], reservations.starts_ms, reservations.ends_ms])
    )
    return [int(at_ms) for at_ms in moments[moments > snapshot.now_ms].tolist()]
