"""Agents and keepers that outlived a supervisor that was killed: who is there, and how the last of them ends."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from pathlib import Path

from scheduler.agent.folder import FolderInUse, claim

NAP_SECONDS = 0.05


def nodes_with_jobs(agents: Path) -> list[str]:
    """The nodes of this state folder whose keeper lives, by name: they may have jobs that run."""
    return sorted(folder.name for folder in agents.glob("*") if is_held(folder / "keeper.lock"))


def is_held(lock: Path) -> bool:
    """Whether a living process holds the lock on this file; a file that somebody left is held by nobody."""
    try:
        file = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False


def kill_agents(folders: Iterable[Path]) -> None:
    """End the agents of these nodes, which would only start keepers again; jobs do not notice."""
    for folder in folders:
        if is_held(folder / "agent.lock"):
            with suppress(FolderInUse, OSError):
                os.close(claim(folder, take_over=True))


def end_keepers(folders: Iterable[Path], *, seconds: float) -> list[str]:
    """Have the keepers of these nodes end their jobs and themselves; the names of those that did not in time.

    Agents do this as they stop. This is for nodes whose agent was gone when everything was stopped.
    """
    left = [folder for folder in folders if is_held(folder / "keeper.lock")]
    with ExitStack() as lines:  # a keeper reads nothing more of a line that is closed
        for folder in left:
            with suppress(OSError):  # one that ends just now gets no signal, and needs none
                _shut_down(lines.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)), folder)
        deadline = time.monotonic() + seconds
        while left and time.monotonic() < deadline:
            time.sleep(NAP_SECONDS)
            left = [folder for folder in left if is_held(folder / "keeper.lock")]
    return [folder.name for folder in left]


def _shut_down(line: socket.socket, folder: Path) -> None:
    """Say so over the keeper's socket, as an agent would."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # By way of the folder's descriptor: the path itself may be longer than the kernel takes.
        line.connect(f"/proc/self/fd/{opened}/keeper.sock")
    finally:
        os.close(opened)
    line.sendall(json.dumps({"op": "shutdown"}).encode() + b"\n")
