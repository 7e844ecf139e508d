"""The lock that gives a state folder to one agent, and how the next agent takes the folder over."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import time
from pathlib import Path
from typing import Final

from scheduler.agent import processes

#: For a killed agent to end, and for an agent that has just started to write its pid.
TAKE_OVER_SECONDS: Final = 10.0
_POLL_SECONDS: Final = 0.02


class FolderInUse(Exception):
    """Another agent has the folder."""


def claim(state: Path, *, take_over: bool = False, seconds: float = TAKE_OVER_SECONDS) -> int:
    """Become the folder's one agent; returns the descriptor whose lock says so, to be kept open.

    With `take_over` an agent that has the folder is killed first, and never another process: the lock says that there
    is an agent, the file which process that is and when it began. Jobs go on; their shim waits for the next agent.
    Raises FolderInUse when the folder does not come free.
    """
    lock = os.open(state / "agent.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + seconds
    while not _locked(lock):
        if not take_over or time.monotonic() > deadline:
            os.close(lock)
            raise FolderInUse(f"another agent runs with the state folder {state}; one folder, one agent")
        _kill_holder(lock)
        time.sleep(_POLL_SECONDS)
    os.ftruncate(lock, 0)
    pid = os.getpid()
    os.pwrite(lock, f"{pid} {processes.start_ticks(pid)} {processes.boot_id()}\n".encode(), 0)
    return lock


def _locked(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _kill_holder(lock: int) -> None:
    """Kill the agent that wrote the file, if that process still is the one that wrote it."""
    words = os.pread(lock, 200, 0).decode(errors="replace").split()
    if len(words) != 3 or not (words[0].isdecimal() and words[1].isdecimal()):
        return  # it has locked the file and not written it yet
    pid, ticks, boot = int(words[0]), int(words[1]), words[2]
    if boot != processes.boot_id() or pid == os.getpid():
        return
    with contextlib.suppress(OSError):
        # Checked after it was opened: from then on the number cannot mean another process.
        process = os.pidfd_open(pid)
        try:
            if processes.is_running(pid, ticks):
                signal.pidfd_send_signal(process, signal.SIGKILL)
        finally:
            os.close(process)
