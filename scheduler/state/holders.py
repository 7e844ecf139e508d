"""Who holds a lease: a name that says which process it is, so that a dead one need not be waited for."""

from __future__ import annotations

import functools
import hashlib
import os
import socket
import uuid
from pathlib import Path

import psutil


def new_holder() -> str:
    """A name that no other planner has, on any machine, in any thread."""
    started = int(psutil.Process().create_time() * 1000)
    return f"{socket.gethostname()[:50]}:{_place()}:{os.getpid()}:{started}:{uuid.uuid4().hex[:12]}"


def is_gone(holder: str) -> bool:
    """Whether this holder's process has certainly ended.

    Only a process of this very place can be looked up; about every other one, and about names of another
    form, the answer is no. A process number that was given out again started later, and is another one.
    """
    try:
        _, place, pid, started, _ = holder.rsplit(":", 4)
        number, began_ms = int(pid), int(started)
    except ValueError:
        return False
    if not place or place != _place():
        return False
    try:
        process = psutil.Process(number)
        # The kernel counts in ticks of 10 ms, and the time of boot, which psutil adds, may be corrected.
        return process.status() == psutil.STATUS_ZOMBIE or process.create_time() * 1000 > began_ms + 5_000
    except psutil.NoSuchProcess:
        return True
    except psutil.Error:
        return False


@functools.cache
def _place() -> str:
    """This boot of this machine and this table of processes; "" where the system does not tell."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        table = Path("/proc/self/ns/pid").readlink()
    except OSError:
        return ""
    return hashlib.sha256(f"{boot} {table}".encode()).hexdigest()[:10]
