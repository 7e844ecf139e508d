"""The running jobs under a virtual clock: their rows, how far their work is, and when each of them ends."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Final

import numpy as np

from scheduler.core.forecast.progress import Progress, speed_of
from scheduler.core.forecast.virtual_allocations import VirtualAllocations
from scheduler.core.plan import Start
from scheduler.core.snapshot.snapshot import Pause, PendingColumns, RunningColumns, Snapshot

_COLUMN: Final = {f.name: place for place, f in enumerate(fields(RunningColumns))}


class VirtualRuns:
    """Every running job, from its start (or the beginning) to its end.

    A job has as much work as its tasks do in the time that `run` says. A suspended job does none and loses none; a
    job that is made smaller or larger works as fast as it is large. A requeued job goes on from its last checkpoint;
    where sizes change (`resize_seconds`), elastic jobs are taken to save their work all the time.
    """

    def __init__(self, snapshot: Snapshot, allocations: VirtualAllocations, resize_seconds: int) -> None:
        self._allocations, self._resize_seconds = allocations, resize_seconds
        self._progress = Progress()
        columns = [getattr(snapshot.running, f.name) for f in fields(RunningColumns)]
        plain = [column.tolist() if isinstance(column, np.ndarray) else column for column in columns]
        #: Job id -> its row of RunningColumns.
        self.rows: dict[int, list[Any]] = {row[0]: list(row) for row in zip(*plain, strict=True)}
        self._next_attempt = int(snapshot.running.attempt_id.max(initial=0)) + 1
        self._suspended: dict[int, int] = {}  # job id -> ms left of its time limit; 0 = it has no limit
        self._leaving: dict[int, bool] = {}  # jobs that end to wait again -> whether to start again larger
        self._resizable: set[int] = set()  # jobs whose time limit may come before their work is done
        self._saving: set[int] = set()  # jobs that save their work all the time
        self._serial: dict[int, int] = {}  # job id -> part of its work that more tasks do not speed up
        self._preemptions: dict[int, int] = {}  # job id -> how often it was preempted or suspended
        self._adopt(snapshot.now_ms)

    def _adopt(self, now_ms: int) -> None:
        """Take the jobs that run in the snapshot as they are."""
        for number in self.rows:
            self._preemptions[number] = self._get(number, "times_preempted")
            pause = self._get(number, "pause")
            if pause == Pause.SUSPENDED:
                self._suspended[number] = self._left_of_limit(number, now_ms)
            elif pause == Pause.ASKED:
                self.suspend(number, now_ms)
            if self._get(number, "stopped_for") and self._get(number, "stop_by_ms"):
                self._leaving[number] = False
            if self._get(number, "least_tasks"):
                self._resizable.add(number)
            young = now_ms - self._get(number, "started_ms") < self._resize_seconds * 1000
            if self._get(number, "saved_ms") or young:
                self.save_always(number)

    # ---------------------------------------------------------------- what happens to a job

    def start(self, start: Start, jobs: PendingColumns, row: int, now_ms: int) -> None:
        """Add the job in this row of `jobs`, which has its allocations already; `run` says how long it runs."""
        number = start.job_id
        limit_seconds, elastic = jobs.time_limit_seconds.item(row), jobs.elastic.item(row)
        values = {
            "id": number,
            "attempt_id": self._next_attempt,
            "class_index": jobs.class_index.item(row),
            "queue_id": start.queue_id,
            "project_id": start.project_id,
            "user_id": jobs.user_id.item(row),
            "job_type": jobs.job_type.item(row),
            "priority": jobs.priority.item(row),
            "started_ms": now_ms,
            "expected_end_ms": now_ms + limit_seconds * 1000 if limit_seconds else 0,
            "predicted_seconds": jobs.predicted_seconds.item(row),
            "array_id": jobs.array_id.item(row),
            "times_preempted": self._preemptions.get(number, 0),
            "preemptible": jobs.preemptible.item(row),
            "least_tasks": jobs.tasks.item(row) if elastic else 0,
            "most_tasks": jobs.most_tasks.item(row) if elastic else 0,
            "pack": jobs.pack.item(row),
            "reservation_id": jobs.reservation_id.item(row),
            "name": jobs.name[row],
            "labels": jobs.labels[row],
        }
        self._next_attempt += 1
        self.rows[number] = [values.get(f.name, f.metadata["default"]) for f in fields(RunningColumns)]
        self.save_always(number)
        if jobs.most_tasks.item(row):
            self._resizable.add(number)

    def run(
        self, job_id: int, now_ms: int, length_ms: int | None, *, tasks: int = 0, serial_millis: int = 0
    ) -> None:
        """Say how long a job takes from now on with `tasks` tasks (0 = those it has); None = unknown.

        A job that has saved some of its work before takes what was left of that instead.
        """
        if serial_millis:
            self._serial[job_id] = serial_millis
        asked = tasks or self._allocations.tasks(job_id)
        at_speed = speed_of(asked, self._serial.get(job_id, 0))
        self._progress.begin(job_id, now_ms, length_ms, at_speed=at_speed, speed=self._speed(job_id))

    def save_always(self, job_id: int) -> None:
        """Take a job to save its work all the time, if sizes change and the job is elastic."""
        if self._resize_seconds and self._get(job_id, "least_tasks"):
            self._saving.add(job_id)

    def preempt(self, job_id: int, for_job_id: int, by_ms: int) -> None:
        """Ask a job to end by a moment and to wait again; for no job (0) where its node evicts it."""
        self._count_preemption(job_id, for_job_id)
        self._set(job_id, stop_by_ms=by_ms, stopped_for=for_job_id)
        self._leaving.setdefault(job_id, False)

    def suspend_for(self, job_id: int, for_job_id: int, now_ms: int) -> None:
        """Suspend a job so that another can run."""
        self._count_preemption(job_id, for_job_id)
        self._set(job_id, times_preempted=self._get(job_id, "times_preempted") + 1)
        self.suspend(job_id, now_ms)

    def suspend(self, job_id: int, now_ms: int) -> None:
        """Stop the work of a job; it gives its CPUs back, and its time limit does not run."""
        self._suspended[job_id] = self._left_of_limit(job_id, now_ms)
        self._set(job_id, pause=int(Pause.SUSPENDED), stop_by_ms=0, stopped_for=0)
        if not self._leaving.get(job_id, True):
            del self._leaving[job_id]
        self._allocations.set_cpus(job_id, 0)
        self._progress.change(job_id, now_ms, 0)

    def resume(self, job_id: int, now_ms: int, cpu_millis: int) -> None:
        """Go on with a suspended job, whose tasks hold these CPUs again."""
        left_ms = self._suspended.pop(job_id)
        self._set(job_id, expected_end_ms=now_ms + left_ms if left_ms else 0, pause=int(Pause.NO))
        self._allocations.set_cpus(job_id, cpu_millis)
        self._progress.change(job_id, now_ms, self._speed(job_id))

    def shrink(self, job_id: int, ranks: tuple[int, ...], now_ms: int) -> None:
        """End some tasks of a job at once: their nodes take seconds for that."""
        self._allocations.release_tasks(job_id, ranks)
        self._set(job_id, resized_ms=now_ms)
        self._progress.change(job_id, now_ms, self._speed(job_id))

    def grow(self, job_id: int, now_ms: int, by_ms: int) -> None:
        """Ask a job to save its work and to end by a moment, so as to start again larger; it works no more."""
        self._set(job_id, stop_by_ms=by_ms, resized_ms=now_ms)
        self._progress.change(job_id, now_ms, 0)
        self._leaving[job_id] = True

    def end(self, job_id: int, now_ms: int) -> tuple[int, bool] | None:
        """End a job that still has its allocations.

        Where it waits again: the ms of its work that it has to do once more, and whether it starts again larger.
        """
        grows = self._leaving.pop(job_id, None)
        saving, resumable_ms = job_id in self._saving, self._get(job_id, "saved_ms")
        lost_ms = 0
        if grows is None:
            self._progress.end(job_id, now_ms)
        else:
            speed = speed_of(self._allocations.tasks(job_id), self._serial.get(job_id, 0))
            unsaved_ms = 0 if saving else now_ms - resumable_ms
            lost_ms = min(self._progress.worked_ms(job_id, now_ms, speed), unsaved_ms)
            keeps = saving or resumable_ms > 0
            self._progress.end(job_id, now_ms, lost=unsaved_ms * speed if keeps else None)
        del self.rows[job_id]
        self._resizable.discard(job_id)
        self._saving.discard(job_id)
        self._suspended.pop(job_id, None)
        return None if grows is None else (lost_ms, grows)

    # ---------------------------------------------------------------- what is known of a job

    def due_ms(self, job_id: int) -> int | None:
        """When a job ends: its work is done, or it is asked to end. None = unknown, or it does not run."""
        if job_id not in self.rows:
            return None
        limited = job_id in self._resizable and job_id not in self._suspended
        limit_ms = self._get(job_id, "expected_end_ms") if limited else 0
        moments = [at_ms for at_ms in (self._get(job_id, "stop_by_ms"), limit_ms) if at_ms]
        done_ms = self._progress.done_ms(job_id)
        return min(moments if done_ms is None else [*moments, done_ms], default=None)

    def expected_end_ms(self, job_id: int) -> int:
        """When a job has to be over, by its limit or because it is asked to end; 0 = unknown."""
        limit_ms, stop_ms = self._get(job_id, "expected_end_ms"), self._get(job_id, "stop_by_ms")
        return int(min(limit_ms, stop_ms) if limit_ms and stop_ms else limit_ms or stop_ms)

    def resizable_ms(self, job_id: int) -> int | None:
        """When the size of a job may change again; None = it never does."""
        if not self._resize_seconds or not self._get(job_id, "least_tasks"):
            return None
        since_ms = max(self._get(job_id, "started_ms"), self._get(job_id, "resized_ms"))
        return int(since_ms + self._resize_seconds * 1000)

    def class_index(self, job_id: int) -> int:
        return int(self._get(job_id, "class_index"))

    def is_suspended(self, job_id: int) -> bool:
        return job_id in self._suspended

    @property
    def may_change(self) -> bool:
        """Whether a job could resume or grow."""
        return bool(self._suspended) or any(
            self._get(number, "most_tasks") > self._allocations.tasks(number) for number in self._saving
        )

    def columns(self, now_ms: int) -> RunningColumns:
        """The running jobs of this moment."""
        for number, left_ms in self._suspended.items():
            if left_ms:
                self._set(number, expected_end_ms=now_ms + left_ms)
        for number in self._saving:
            self._set(number, saved_ms=now_ms)
        return RunningColumns.from_rows(self.rows.values())

    def _get(self, job_id: int, column: str) -> Any:
        return self.rows[job_id][_COLUMN[column]]

    def _set(self, job_id: int, **values: int) -> None:
        row = self.rows[job_id]
        for column, value in values.items():
            row[_COLUMN[column]] = value

    def _count_preemption(self, job_id: int, for_job_id: int) -> None:
        if for_job_id:
            self._preemptions[job_id] = self._preemptions.get(job_id, 0) + 1

    def _left_of_limit(self, job_id: int, now_ms: int) -> int:
        """Ms until the time limit of a job; 0 = it has none."""
        end_ms = self._get(job_id, "expected_end_ms")
        return max(end_ms - now_ms, 1) if end_ms else 0

    def _speed(self, job_id: int) -> int:
        if job_id in self._suspended:
            return 0
        return speed_of(self._allocations.tasks(job_id), self._serial.get(job_id, 0))
