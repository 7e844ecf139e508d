"""What the shim does at certain times: time limits, SIGKILL after a grace, the fence, the end of its owner."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterable
from typing import Final

from scheduler.agent import processes
from scheduler.agent.shim import control
from scheduler.agent.shim.task_store import TaskStore

#: From one SIGKILL to the next, for a task that outlived it.
KILL_AGAIN_SECONDS: Final = 1.0
#: From one attempt to send the signal before a time limit to the next, while no process of the task handles it.
SIGNAL_AGAIN_SECONDS: Final = 0.5


class Deadlines:
    """`fence_at` (monotonic) is when the server may give the node's devices to others; None = no fence."""

    def __init__(self, store: TaskStore) -> None:
        self._store = store
        self.fence_at: float | None = None

    def extend_lease(self, fence_seconds: float) -> None:
        """Put the fence this far ahead; 0 takes it away."""
        self.fence_at = time.monotonic() + fence_seconds if fence_seconds else None

    def enforce(self, now: float) -> None:
        """Stop and kill the tasks whose time has come; `now` is on the monotonic clock."""
        boot_ms = processes.boot_ms()
        for task in list(self._store.live.values()):
            if (signal_at_ms := task.signal_at_boot_ms) is not None and boot_ms >= signal_at_ms:
                control.signal_before_limit(self._store, task)
            limit_at_ms = task.limit_at_boot_ms
            if limit_at_ms is not None and task.awaits_time_limit and boot_ms >= limit_at_ms:
                control.stop(self._store, task, "time_limit", task.grace_seconds)
            if task.kill_at is not None and now >= task.kill_at:
                task.signal(signal.SIGKILL)
                task.kill_at = now + KILL_AGAIN_SECONDS
        if self.fence_at is not None and now >= self.fence_at:
            # The server gives our devices to other tasks soon: none of ours may run by then.
            control.stop_all(self._store, "fenced")
            self.fence_at = None

    def due_at(self, now: float) -> Iterable[float]:
        """The next times (monotonic) at which `enforce` has something to do."""
        if self.fence_at is not None:
            yield self.fence_at
        boot_ms = processes.boot_ms()
        for task in self._store.live.values():
            if task.kill_at is not None:
                yield task.kill_at
            if (signal_at_ms := task.signal_at_boot_ms) is not None:
                left_ms = signal_at_ms - boot_ms
                yield now + (left_ms / 1000 if left_ms > 0 else SIGNAL_AGAIN_SECONDS)
            limit_at_ms = task.limit_at_boot_ms
            if limit_at_ms is not None and task.awaits_time_limit:
                yield now + (limit_at_ms - boot_ms) / 1000


class Owner:
    """The process that the tasks must not outlive, by pid and start time; (0, 0) is none."""

    def __init__(self, pid: int, start_ticks: int) -> None:
        self.pid, self.start_ticks = pid, start_ticks

    def has_ended(self) -> bool:
        return bool(self.pid) and not processes.is_running(self.pid, self.start_ticks)
