"""Processes by pid, start time and boot: a pid alone may mean another process later."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

#: In which /proc counts CPU time.
_TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES: Final = 4096


def boot_id() -> str:
    """The id of this start of the machine; no process outlives it."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "unknown"


def boot_ms() -> int:
    """Milliseconds since the machine started, on a clock that cannot be set."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime_ns(clock) // 1_000_000


def read_small(path: str) -> bytes:
    """The content of a file of the kernel that is no longer than a page; raises OSError.

    It costs a third of what `open` does, which matters for a short task.
    """
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(file, _PAGE_BYTES)
    finally:
        os.close(file)


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat from the state on; None when there is no such process."""
    try:
        text = read_small(f"/proc/{pid}/stat").decode(errors="replace")
    except OSError:
        return None
    # The name in brackets may hold anything, brackets and blanks included.
    return text.rpartition(")")[2].split()


def state_of(pid: int) -> str:
    """The letter that `ps` shows, `T` for stopped and `Z` for a zombie; empty when there is no such process."""
    fields = _stat(pid)
    return fields[0] if fields else ""


def start_ticks(pid: int) -> int:
    """When the process started, in ticks since boot; 0 when there is none, or only a zombie."""
    fields = _stat(pid)
    if fields is None or fields[0] in "ZX":
        return 0
    return int(fields[19])


def is_running(pid: int, ticks: int) -> bool:
    return ticks > 0 and start_ticks(pid) == ticks


def session_of(pid: int) -> int:
    """The pid of the leader of its session; 0 when there is no such process."""
    fields = _stat(pid)
    return int(fields[3]) if fields and fields[0] not in "ZX" else 0


def parent_of(pid: int) -> int:
    """The pid of its parent; 0 when there is no such process."""
    fields = _stat(pid)
    return int(fields[1]) if fields and fields[0] not in "ZX" else 0


def cpu_ms_of(pid: int, *, only_reaped: bool = False) -> int:
    """The CPU time (ms) that the process and the children that it has reaped used; 0 when there is none."""
    fields = _stat(pid)
    if fields is None:
        return 0
    return sum(map(int, fields[13 if only_reaped else 11 : 15])) * 1000 // _TICKS_PER_SECOND


def children_of(pid: int) -> list[int]:
    """Its children, the children of all its threads."""
    found: list[int] = []
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return found
    for thread in threads:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
            found += map(int, file.read().split())
    return found


def all_pids() -> Iterator[int]:
    try:
        names = os.listdir("/proc")
    except OSError:
        return
    for name in names:
        if name.isdecimal():
            yield int(name)


def environment_value(pid: int, name: str) -> str:
    """A variable of the environment that the process was started with; empty without one, or when it is unreadable."""
    prefix = name.encode() + b"="
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            entries = file.read().split(b"\0")
    except OSError:
        return ""
    return next((e[len(prefix) :].decode(errors="replace") for e in entries if e.startswith(prefix)), "")


def signal_group(group: int, sig: int) -> None:
    """Signal a whole process group; a group that is gone is ignored."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, sig)


def signal_tree(leader: int, sig: int, *, below: int) -> None:
    """Signal a process group, and the descendants of `below` that are not in it."""
    signal_group(leader, sig)
    for pid in descendants_of(below):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getpgid(pid) != leader:
                os.kill(pid, sig)


def descendants_of(pid: int) -> Iterator[int]:
    """All descendants of a process, parents before their children."""
    waiting = children_of(pid)
    while waiting:
        child = waiting.pop()
        yield child
        waiting += children_of(child)


def handles(pid: int, sig: int) -> bool:
    """Whether the process has a handler for this signal, which would otherwise do what is usual: end it, mostly."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            for line in file:
                if line.startswith(b"SigCgt:"):
                    return bool(int(line.split()[1], 16) >> (sig - 1) & 1)
    except (OSError, ValueError, IndexError):
        pass
    return False


def signal_handlers(leader: int, sig: int, *, tree: bool) -> int:
    """Signal the process, and with `tree` its descendants, as far as they handle it; answers how many did get it."""
    reached = 0
    for pid in [leader, *(descendants_of(leader) if tree else ())]:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if handles(pid, sig):
                os.kill(pid, sig)
                reached += 1
    return reached


def kill_tree(pid: int) -> None:
    """SIGKILL to a process and its descendants; a process that is forked meanwhile is left to the subreaper."""
    waiting = [pid]
    while waiting:
        victim = waiting.pop()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            children = children_of(victim)
            os.kill(victim, signal.SIGKILL)
            waiting += children
