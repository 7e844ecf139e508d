"""Who holds a lease: a name that says which process it is, so that a dead one need not be waited for."""

from __future__ import annotations

import functools
import hashlib
import os
import socket
import uuid
from pathlib import Path

from scheduler.agent.processes import start_ticks


def new_holder() -> str:
    """A name that no other planner has, on any machine, in any thread.

    When its process began is said in ticks since boot: times of day move when somebody sets the clock.
    """
    began = f"t{start_ticks(os.getpid())}"
    return f"{socket.gethostname()[:50]}:{_place()}:{os.getpid()}:{began}:{uuid.uuid4().hex[:12]}"


#: Holders of this process whose cycle has ended, without a word to the database.
_retired: set[str] = set()


def retire(holder: str) -> None:
    """Say that nothing more is done under this name of this process, although its lease could not be released."""
    _retired.add(holder)


def is_gone(holder: str) -> bool:
    """Whether this holder has certainly ended: its process, or its cycle in this process.

    Of other processes, only those of this very place can be looked up; about every other one, and about names of
    another form, the answer is no. A process number that was given out again started later, and is another one.
    """
    if holder in _retired:
        return True
    try:
        _, place, pid, began, _ = holder.rsplit(":", 4)
        number, ticks = int(pid), int(began.removeprefix("t"))
    except ValueError:
        return False
    if not place or place != _place() or not began.startswith("t") or not ticks:
        return False
    if now := start_ticks(number):
        return now != ticks
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return Path(f"/proc/{number}/stat").exists()  # only its zombie is there; else it is hidden from us


@functools.cache
def _place() -> str:
    """This boot of this machine and this table of processes; "" where the system does not tell."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        table = Path("/proc/self/ns/pid").readlink()
    except OSError:
        return ""
    return hashlib.sha256(f"{boot} {table}".encode()).hexdigest()[:10]
