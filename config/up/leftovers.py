"""Agents and shims that outlived a supervisor that was killed: which there are, and how to end them."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from pathlib import Path

from scheduler.agent.state_folder import FolderInUse, claim

POLL_SECONDS = 0.05


def nodes_with_jobs(agents: Path) -> list[str]:
    """The names of the nodes of this state folder whose shim runs: they may have running jobs."""
    return sorted(folder.name for folder in agents.glob("*") if is_held(folder / "keeper.lock"))


def is_held(lock: Path) -> bool:
    """Whether a running process holds the lock on this file; one that has ended may have left the file."""
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
    """End the agents of these nodes, which would only start shims again; their jobs go on."""
    for folder in folders:
        if is_held(folder / "agent.lock"):
            with suppress(FolderInUse, OSError):
                os.close(claim(folder, take_over=True))


def end_shims(folders: Iterable[Path], *, seconds: float) -> list[str]:
    """Have the shims of these nodes end their jobs and themselves; returns the names of nodes that took too long.

    An agent does this as it stops. This is for nodes whose agent had ended before everything was stopped.
    """
    left = [folder for folder in folders if is_held(folder / "keeper.lock")]
    with ExitStack() as connections:  # a shim may read nothing from a connection that is closed already
        for folder in left:
            with suppress(OSError):  # a shim that ends at this moment needs no command
                _shut_down(
                    connections.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)), folder
                )
        deadline = time.monotonic() + seconds
        while left and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
            left = [folder for folder in left if is_held(folder / "keeper.lock")]
    return [folder.name for folder in left]


def _shut_down(connection: socket.socket, folder: Path) -> None:
    """Send the shim the command with which an agent stops everything."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # By way of the folder's descriptor: the path itself may be longer than the kernel takes.
        connection.connect(f"/proc/self/fd/{opened}/keeper.sock")
    finally:
        os.close(opened)
    connection.sendall(json.dumps({"op": "shutdown"}).encode() + b"\n")
