"""Ends tasks that hold more memory or more processes than they may."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from typing import Final

from scheduler.agent import processes
from scheduler.agent.protocol import OUT_OF_MEMORY
from scheduler.agent.shim.task import ShimTask
from scheduler.agent.shim.task_store import TaskStore

#: How often memory and processes of tasks are measured.
POLL_SECONDS: Final = 1.0
#: The share of one CPU that measuring may take: where a measurement is slow, the next one comes later.
_MOST_OF_A_CPU: Final = 0.01

_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_MIB: Final = 1024 * 1024


class UsageWatch:
    """Measures the running tasks now and then; `due_at` is the next time (monotonic), None while nothing runs."""

    def __init__(self, store: TaskStore) -> None:
        self.due_at: float | None = None
        self._store = store

    def task_started(self) -> None:
        """Begin to measure; a steady flow of starts does not put a measurement off."""
        if self.due_at is None:
            self.schedule()

    def schedule(self, took_seconds: float = 0.0) -> None:
        """Plan the next measurement, where there is a live task; `took_seconds` is what the last one took."""
        wait = max(POLL_SECONDS, took_seconds / _MOST_OF_A_CPU)
        self.due_at = time.monotonic() + wait if self._store.live else None

    def check_when_due(self, now: float) -> None:
        if self.due_at is None or now < self.due_at:
            return
        before = time.monotonic()
        for task in list(self._store.live.values()):
            if task.runs and task.guard_pid and (text := _excess_of(task)):
                task.record["text"] = text
                if task.memory_limit_mib is not None and "memory" in text:
                    task.record["failure"] = OUT_OF_MEMORY
                self._store.write(task)
                task.signal(signal.SIGKILL)  # the guard ends the other processes of the task
        self.schedule(time.monotonic() - before)


def _excess_of(task: ShimTask) -> str:
    """A sentence that says what the task has too much of; empty while it keeps its limits."""
    members = list(processes.descendants_of(task.guard_pid))
    if task.process_limit is not None and len(members) > task.process_limit:
        return f"The task had {len(members):,} processes; the limit on this node is {task.process_limit:,}."
    if task.memory_limit_mib is None:
        return ""
    held = held_mib(members, task.memory_limit_mib, shared_bytes=_private_shared_memory(task.guard_pid))
    if held <= task.memory_limit_mib:
        return ""
    return f"The task used {held} MiB of memory; its limit is {task.memory_limit_mib} MiB."


def held_mib(pids: Iterable[int], over_mib: int, *, shared_bytes: int = 0) -> int:
    """MiB that these processes hold together, with what is in their private /dev/shm (`shared_bytes`).

    The kernel is slow to say how processes share their pages. So every page is first counted once for each
    process that has it, and shared pages are divided only where that sum exceeds `over_mib`.
    """
    pids = list(pids)
    held = sum(map(_resident_bytes, pids)) + shared_bytes
    if held > over_mib * _MIB:
        parts = [_proportional_bytes(pid) for pid in pids]
        # What a process has mapped of /dev/shm is among its shared memory already.
        held = sum(own for own, _ in parts) + max(shared_bytes, sum(shared for _, shared in parts))
    return held // _MIB


def _private_shared_memory(guard: int) -> int:
    """Bytes of the files in the /dev/shm of this guard's tasks; 0 where it is not their own."""
    path = f"/proc/{guard}/root/dev/shm"
    try:
        if os.stat(path).st_dev == os.stat("/dev/shm").st_dev:  # noqa: S108  the machine's
            return 0
        found = os.statvfs(path)
    except OSError:
        return 0
    return (found.f_blocks - found.f_bfree) * found.f_frsize


def _resident_bytes(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError, ValueError):
        return 0


def _proportional_bytes(pid: int) -> tuple[int, int]:
    """The process's share of every page that it has in memory (PSS): its own and files', and shared memory.

    Whole pages where the kernel has no PSS.
    """
    found = {}
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            for line in file:
                if line.startswith((b"Pss:", b"Pss_Shmem:")):
                    name, amount = line.split()[:2]
                    found[name] = int(amount) * 1024
    except (OSError, IndexError, ValueError):
        pass
    if b"Pss:" not in found:
        return _resident_bytes(pid), 0
    shared = found.get(b"Pss_Shmem:", 0)
    return found[b"Pss:"] - shared, shared
