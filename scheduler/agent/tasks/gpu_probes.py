"""Probes by GPUs: whether the GPUs of a task have worked for it within a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from scheduler.agent import processes
from scheduler.agent.protocol import ProbeResult
from scheduler.agent.shim.probes.runner import is_reported
from scheduler.agent.tasks.task_table import RunningTask, TaskTable
from scheduler.agent.times import in_words

NOT_MEASURED = "this node does not measure the use of GPUs"


@dataclass(slots=True)
class _Watched:
    """A task: the time that its GPUs have worked, and when that rose last; when each probe is due, its failures."""

    busy_ms: float
    rose_at_ms: int
    due_ms: dict[int, int] = field(default_factory=dict)
    failures: dict[int, int] = field(default_factory=dict)
    results: dict[int, ProbeResult] = field(default_factory=dict)


class GpuProbes:
    """`look` is called every second or so; `stop` ends a task: it gets its key and the sentence why."""

    def __init__(self, table: TaskTable, stop: Callable[[str, str], None]) -> None:
        self._table, self._stop = table, stop
        self._watched: dict[str, _Watched] = {}

    def look(self) -> None:
        tasks = [task for task in self._table.running() if task.gpu_probes]
        now_ms = processes.boot_ms()
        for task in tasks:
            self._look_at(task, now_ms)
        running = {task.key for task in tasks}
        self._watched = {key: one for key, one in self._watched.items() if key in running}

    def _look_at(self, task: RunningTask, now_ms: int) -> None:
        use = self._table.gpu_use_of(task.key)
        busy_ms = use.busy_ms if use is not None else 0.0
        watched = self._watched.get(task.key)
        if watched is None:
            watched = self._watched[task.key] = _Watched(busy_ms, now_ms)
        if busy_ms > watched.busy_ms or task.suspended:
            watched.busy_ms, watched.rose_at_ms = busy_ms, now_ms
        changed, why = False, ""
        for probe in task.gpu_probes:
            number = probe["number"]
            first_ms = now_ms + max(0, 1000 * probe["start_after"] - task.ran_ms)
            if task.suspended or now_ms < watched.due_ms.setdefault(number, first_ms):
                continue
            watched.due_ms[number] = now_ms + 1000 * probe["every"]
            idle = (now_ms - watched.rose_at_ms) / 1000
            text = f"GPUs idle for {in_words(idle)}" if use is not None else NOT_MEASURED
            changed |= self._take(watched, probe, use is None or idle <= probe["limit"], text, now_ms)
            if watched.failures[number] >= probe["failures"]:
                why = f"Unhealthy: probe {probe.get('name') or 'gpu'} failed: {text}."
        if changed:
            self._report(task, list(watched.results.values()))
        if why:
            self._stop(task.key, why)

    def _report(self, task: RunningTask, results: list[ProbeResult]) -> None:
        with self._table.changed:
            entry = self._table.get(task.task, task.epoch)
            if entry is not None and entry.running:
                entry.gpu_probe_results = results
                entry.version += 1
                self._table.changed.notify_all()

    @staticmethod
    def _take(watched: _Watched, probe: dict[str, Any], ok: bool, text: str, now_ms: int) -> bool:
        """Keep a result; answers whether it is to be reported."""
        number = probe["number"]
        failures = 0 if ok else watched.failures.get(number, 0) + 1
        before = watched.results.get(number)
        watched.failures[number] = failures
        watched.results[number] = ProbeResult(
            number=number, ok=ok, failures=failures, text=text, boot_ms=now_ms
        )
        return before is None or before["ok"] != ok or is_reported(failures)
