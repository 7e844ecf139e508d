"""Runs several elements of an array one after another, as the first process of one task.

Its folder has a line of JSON in `elements` for each element that has ended: index, exit code or null, signal or null,
when it started and when it ended (ms on the boot clock), CPU time in ms, peak memory in MiB, offset and bytes of its
standard output, the same of its standard error, and why it was ended. Elements print into the output of the task, one
after another, so that a part of it is the output of each.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from scheduler.agent import processes
from scheduler.agent.shim.guard import UNKILLABLE_SECONDS, Usage, become_subreaper, end_descendants

#: The file in the task's folder.
RESULTS: Final = "elements"
#: Why an element was ended, where it was.
TIME_LIMIT: Final = "time_limit"
_PACKAGE_ROOT: Final = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
#: Its environment is the elements' own, so the interpreter finds this module by no variable of it. The folder above
#: the package is not searched: it may hold what jobs may not see.
_START: Final = (
    "import sys, types; package = sys.modules['scheduler'] = types.ModuleType('scheduler');"
    " package.__path__ = [sys.argv.pop(1) + '/scheduler']; from scheduler.agent.elements import main; main()"
)
_WAITED_FOR: Final = (signal.SIGCHLD, signal.SIGTERM)


@dataclass(frozen=True, slots=True)
class Elements:
    """What to run: the arguments of each element's first process, its index being in the environment.

    `limit_seconds` is of one element, None for no limit; `worst` is the highest exit code of those that ended before.
    """

    folder: str
    indices: tuple[int, ...]
    limit_seconds: int | None
    grace_seconds: int
    worst: int
    argv: list[str]


def arguments_of(elements: Elements) -> list[str]:
    """The arguments of the process that runs these elements: `main` reads them."""
    limit = "" if elements.limit_seconds is None else str(elements.limit_seconds)
    numbers = ",".join(map(str, elements.indices))
    return [
        # A job sees the folders of the interpreter itself, not a link through which the agent was started.
        os.path.realpath(sys.executable), "-S", "-I", "-c", _START, _PACKAGE_ROOT,
        elements.folder, numbers, limit, str(elements.grace_seconds), str(elements.worst), *elements.argv,
    ]  # fmt: skip


def main() -> None:
    """Run the elements of the command line; exits with the highest exit code of all, as a shell would say it."""
    folder, numbers, limit, grace, worst, *argv = sys.argv[1:]
    indices = tuple(int(number) for number in numbers.split(",") if number)
    run = _Run(Elements(folder, indices, int(limit) if limit else None, int(grace), int(worst), argv))
    sys.exit(run.all())


class _Run:
    """One after another, until all have ended or this process gets SIGTERM."""

    def __init__(self, elements: Elements) -> None:
        self._elements = elements
        self._worst = elements.worst
        #: Set by SIGTERM: the element that runs is ended, has no result, and no other starts.
        self._stopping = False
        signal.pthread_sigmask(signal.SIG_BLOCK, _WAITED_FOR)
        become_subreaper("muster-elements")
        path = f"{elements.folder}/{RESULTS}"
        self._results = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def all(self) -> int:
        for index in self._elements.indices:
            result = self._run(index)
            if self._stopping:
                break
            # Not buffered: whatever is killed next, an element that has ended is known to have ended.
            os.write(self._results, json.dumps(result, separators=(",", ":")).encode() + b"\n")
        return min(self._worst, 255)

    def _run(self, index: int) -> list[Any]:
        """Run one element to its end; its line of the results."""
        began, printed = processes.boot_ms(), _printed()
        argv = self._elements.argv
        environment = os.environ | {"MUSTER_ARRAY_INDEX": str(index), "SLURM_ARRAY_TASK_ID": str(index)}
        try:
            leader = os.posix_spawn(
                argv[0],
                argv,
                environment,
                setpgroup=0,
                setsigmask=[],
                setsigdef=[signal.SIGTERM, signal.SIGCHLD],
            )
        except OSError as error:
            os.write(2, f"{argv[0]}: {error.strerror}\n".encode())
            self._worst = max(self._worst, 126)
            return _line(index, 126, began, Usage(), printed, "")
        usage = Usage()
        code, why = self._wait_for(leader, usage)
        if end_descendants(UNKILLABLE_SECONDS, usage):
            why, self._stopping = "its processes cannot be ended", True
        self._worst = max(self._worst, code if code >= 0 else 128 - code)
        return _line(index, code, began, usage, printed, why)

    def _wait_for(self, leader: int, usage: Usage) -> tuple[int, str]:
        """Its exit code, or its signal below 0, and why it was ended."""
        why, limit = "", self._elements.limit_seconds
        due = time.monotonic() + limit if limit is not None else None
        while True:
            pid, status, used = os.wait4(-1, os.WNOHANG)
            if pid:
                usage.add(used)
                if pid == leader:
                    return os.waitstatus_to_exitcode(status), why
                continue
            found = _wait_for_signal(due)
            if found == signal.SIGTERM:
                self._stopping = True
                _signal(leader, signal.SIGTERM)
            elif due is not None and time.monotonic() >= due:
                _signal(leader, signal.SIGKILL if why else signal.SIGTERM)
                why = why or TIME_LIMIT
                due = time.monotonic() + self._elements.grace_seconds


def _wait_for_signal(due: float | None) -> int | None:
    """The next signal of those that are waited for; None when `due` (monotonic) comes first."""
    if due is None:
        return int(signal.sigwait(_WAITED_FOR))
    found = signal.sigtimedwait(_WAITED_FOR, max(0.0, due - time.monotonic()))
    return None if found is None else found.si_signo


def _signal(leader: int, number: int) -> None:
    """To the group of an element's first process, which is not reaped yet."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)


def _printed() -> tuple[int, int]:
    """How long the two streams of the task are."""
    return os.fstat(1).st_size, os.fstat(2).st_size


def _line(index: int, code: int, began: int, usage: Usage, printed: Sequence[int], why: str) -> list[Any]:
    used = usage.as_line()
    streams = [n for at, now in zip(printed, _printed(), strict=True) for n in (at, max(0, now - at))]
    ended = (code, None) if code >= 0 else (None, -code)
    return [index, *ended, began, processes.boot_ms(), used["cpu_ms"], used["memory_mib"], *streams, why]
