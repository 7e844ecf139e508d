"""Ends tasks that fill more of the disk than they may: their working folder, their output and their private /tmp.

Disks are measured name by name, so the cost is bounded: a round looks at no more than `MOST_NAMES` names of all tasks
together, takes no more than a hundredth of a CPU, and goes on in the next round where it has stopped. A task is ended
as soon as the part that was counted is over its limit.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Generator
from typing import Final

from scheduler.agent.protocol import OUT_OF_STORAGE
from scheduler.agent.shim.task import ShimTask
from scheduler.agent.shim.task_store import TaskStore

#: From one round to the next, at least.
ROUND_SECONDS: Final = 5.0
MOST_NAMES: Final = 20_000
#: The share of one CPU that measuring may take.
_MOST_OF_A_CPU: Final = 0.01
#: Files with several names are counted once, as long as there are no more of these.
_MOST_LINKED: Final = 100_000
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_BLOCK_BYTES: Final = 512
_MIB: Final = 1024 * 1024

#: Yields the bytes of each name that it has looked at.
_Walk = Generator[int]


class ScratchWatch:
    """Measures tasks with a limit; `due_at` is the next round (monotonic), None while there is no such task."""

    def __init__(self, store: TaskStore) -> None:
        self._store = store
        self.due_at: float | None = None
        self._walks: dict[str, _Walk] = {}
        self._counted: dict[str, int] = {}

    def task_started(self, task: ShimTask) -> None:
        if task.scratch_limit_mib is not None and self.due_at is None:
            self.due_at = time.monotonic() + ROUND_SECONDS

    def check_when_due(self, now: float) -> None:
        """Look at the next names of each task, and end what is over its limit."""
        if self.due_at is None or now < self.due_at:
            return
        before = time.monotonic()
        tasks = [task for task in self._store.live.values() if task.scratch_limit_mib is not None]
        for key in self._walks.keys() - {task.key for task in tasks}:
            del self._walks[key], self._counted[key]
        for task in tasks:
            if task.runs and not task.record["stop_reason"]:
                self._look(task, MOST_NAMES // len(tasks) + 1)
        wait = max(ROUND_SECONDS, (time.monotonic() - before) / _MOST_OF_A_CPU)
        self.due_at = time.monotonic() + wait if tasks else None

    def _look(self, task: ShimTask, names: int) -> None:
        limit = task.scratch_limit_mib
        assert limit is not None
        walk = self._walks.get(task.key)
        if walk is None:
            walk = self._walks[task.key] = _sizes([task.record["folder"], task.private_tmp])
            self._counted[task.key] = 0
        for _ in range(names):
            if (size := next(walk, None)) is None:
                del self._walks[task.key], self._counted[task.key]
                return
            self._counted[task.key] += size
            if self._counted[task.key] > limit * _MIB:
                self._end(task, self._counted[task.key] // _MIB, limit)
                return

    def _end(self, task: ShimTask, holds: int, limit: int) -> None:
        task.record["text"] = (
            f"The task used {holds} MiB or more of disk (working folder, output and /tmp); its limit is {limit} MiB."
        )
        task.record["failure"] = OUT_OF_STORAGE
        self._store.write(task)
        task.signal(signal.SIGKILL)  # the guard ends the other processes of the task


def _sizes(roots: list[str]) -> _Walk:
    """The allocated bytes of all that is below, without following a link or leaving a file system.

    What a job has made unreadable for its agent is not seen, nor what is deleted and still open.
    """
    linked: set[tuple[int, int]] = set()
    for root in filter(None, roots):
        waiting = [root]
        device: int | None = None
        while waiting:
            folder = waiting.pop()
            try:
                opened = os.open(folder, _FOLDER)
            except OSError:
                continue
            try:
                here = os.fstat(opened)
                device = here.st_dev if device is None else device
                names = os.listdir(opened) if here.st_dev == device else []
                yield here.st_blocks * _BLOCK_BYTES
                for name in names:
                    try:
                        found = os.stat(name, dir_fd=opened, follow_symlinks=False)
                    except OSError:
                        continue
                    if found.st_mode & 0o170000 == 0o040000:
                        waiting.append(f"{folder}/{name}")
                        continue
                    if found.st_nlink > 1 and len(linked) < _MOST_LINKED:
                        if (found.st_dev, found.st_ino) in linked:
                            continue
                        linked.add((found.st_dev, found.st_ino))
                    yield found.st_blocks * _BLOCK_BYTES
            except OSError:
                continue
            finally:
                os.close(opened)
