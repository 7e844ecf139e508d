"""The processes of a portal that may be killed, by what they are; never one that is not the portal's."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path

import psutil

from tests.support.stack import Stack

KINDS = (
    "planner", "spare planner", "worker", "beat", "web", "postgres", "valkey", "agent", "shim", "supervisor"
)  # fmt: skip
#: Those that a machine may leave without a processor for a while: of the others there is a spare, or nobody waits.
FREEZABLE = ("planner", "worker", "beat", "web", "postgres", "valkey", "agent", "shim")


def find(stack: Stack, kind: str, choose: Callable[[list[int]], int]) -> int | None:
    """A living process of this kind, or None while there is none."""
    found = [pid for pid in _candidates(stack, kind) if _is_ours(pid, stack.state)]
    return choose(sorted(found)) if found else None


def find_shim(stack: Stack, choose: Callable[[list[int]], int], *, folder: str) -> int | None:
    """A living shim of the agents whose state folders are in this folder of the portal's state."""
    found = [pid for pid in _numbers(stack.state / folder, "*/keeper.lock") if _is_ours(pid, stack.state)]
    return choose(sorted(found)) if found else None


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _candidates(stack: Stack, kind: str) -> list[int]:
    run = stack.state / "run"
    match kind:
        case "planner" | "spare planner":
            both = _numbers(run, "worker-scheduling*.pid")
            at_work = _numbers(run, "planner.lock")
            return [pid for pid in both if (pid in at_work) == (kind == "planner")]
        case "worker":
            return _numbers(run, "worker-default.pid")
        case "agent":
            return _numbers(run, "node-*.pid")
        case "shim":
            return _numbers(stack.state / "agents", "*/keeper.lock")
        case "web":
            return _numbers(run, "web*.pid")
        case "supervisor":
            return [stack.popen.pid] if stack.popen else []
        case _:
            return _numbers(run, f"{kind}.pid")


def _numbers(folder: Path, pattern: str) -> list[int]:
    found = []
    for file in folder.glob(pattern):
        with contextlib.suppress(OSError, ValueError, IndexError):
            found.append(int(file.read_text().split()[0]))
    return found


def _is_ours(pid: int, state: Path) -> bool:
    """By its command line, its environment or its folder: numbers in files may mean another process by now."""
    try:
        process = psutil.Process(pid)
        # Valkey writes over its command line, and works in a folder of the state.
        words = [*process.cmdline(), *process.environ().values(), process.cwd()]
        return process.status() != psutil.STATUS_ZOMBIE and any(str(state) in word for word in words)
    except psutil.Error:
        return False
