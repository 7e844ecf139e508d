"""Samples what running tasks use: their CPU time and memory from /proc, their GPUs from the meter of the GPUs."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from scheduler.agent import processes
from scheduler.agent.gpu.usage import Use
from scheduler.agent.protocol import UsageSamples
from scheduler.agent.shim.usage_watch import held_mib
from scheduler.agent.tasks.task_table import RunningTask, TaskTable

#: How often tasks are sampled; a task that ends before is not sampled at all.
SAMPLE_SECONDS: Final = 10.0
#: Samples are sent when this part of the task's age has passed since the last one, and at least this often.
_PART_OF_AGE: Final = 1 / 120
_MOST_SECONDS: Final = 60.0
#: The share of one CPU that sampling may take: where it is slow, the next sample comes later.
_MOST_OF_A_CPU: Final = 0.01
#: Where a task has no memory request, pages that processes share are counted for each of them.
_NO_REQUEST_MIB: Final = 2**40


@dataclass(slots=True)
class _Seen:
    """A task at its last sample that was sent, and the most memory that it held since."""

    at_ms: int
    cpu_ms: int
    memory_mib: int = 0
    watched_ms: float = 0.0
    busy_ms: float = 0.0


def measure(leader: int, memory_request_mib: int) -> tuple[int, int]:
    """The CPU time (ms) that a task has used, and the memory (MiB) that it holds.

    The processes are those below the guard, which is the parent of the task's first process; the time of the ended
    ones is that of the parents that have reaped them.
    """
    guard = processes.parent_of(leader)
    if not guard:
        return 0, 0
    members = list(processes.descendants_of(guard))
    cpu_ms = sum(map(processes.cpu_ms_of, members)) + processes.cpu_ms_of(guard, only_reaped=True)
    return cpu_ms, held_mib(members, memory_request_mib or _NO_REQUEST_MIB)


class UsageSampler:
    """`take` returns the samples that are due; what is not sent is lost, and only makes a line coarser."""

    def __init__(
        self,
        table: TaskTable,
        *,
        seconds: float = SAMPLE_SECONDS,
        measured: Callable[[int, int], tuple[int, int]] = measure,
    ) -> None:
        self._table, self._seconds, self._measured = table, seconds, measured
        self._seen: dict[str, _Seen] = {}
        #: How long to wait until the next call of `take`.
        self.wait_seconds = seconds

    def take(self) -> UsageSamples:
        before = time.thread_time()
        tasks = self._table.running()
        samples = [sample for task in tasks if (sample := self._sample(task)) is not None]
        running = {task.key for task in tasks}
        self._seen = {key: seen for key, seen in self._seen.items() if key in running}
        self.wait_seconds = max(self._seconds, (time.thread_time() - before) / _MOST_OF_A_CPU)
        return UsageSamples(samples=samples)

    def _sample(self, task: RunningTask) -> list[int | None] | None:
        """None where it is not due, and for a task that is seen for the first time."""
        now_ms = processes.boot_ms()
        cpu_ms, memory_mib = self._measured(task.leader, task.memory_mib)
        use = self._table.gpu_use_of(task.key) if task.has_gpus else None
        seen = self._seen.get(task.key)
        if seen is None:
            self._seen[task.key] = _seen(now_ms, cpu_ms, use)
            return None
        seen.memory_mib = max(seen.memory_mib, memory_mib)
        elapsed_ms = now_ms - seen.at_ms
        wanted = min(max(task.ran_ms / 1000 * _PART_OF_AGE, self._seconds), max(_MOST_SECONDS, self._seconds))
        if elapsed_ms < 900 * wanted or task.ran_ms < 1000 * self._seconds:
            return None
        cpu_millis = max(0, cpu_ms - seen.cpu_ms) * 1000 // elapsed_ms
        gpu = _gpu_figures(use, seen)
        self._seen[task.key] = _seen(now_ms, cpu_ms, use)
        return [task.task, task.epoch, cpu_millis, seen.memory_mib, *gpu]


def _seen(now_ms: int, cpu_ms: int, use: Use | None) -> _Seen:
    return _Seen(now_ms, cpu_ms, 0, use.watched_ms if use else 0.0, use.busy_ms if use else 0.0)


def _gpu_figures(use: Use | None, seen: _Seen) -> tuple[int | None, int | None]:
    """(percent of the time since the last sample in which its GPUs were busy, MiB of their memory); None = unknown."""
    if use is None or use.watched_ms <= seen.watched_ms:
        return None, None
    percent = 100 * (use.busy_ms - seen.busy_ms) / (use.watched_ms - seen.watched_ms)
    return min(100, max(0, round(percent))), use.memory_mib
