"""Starts the first task of a guard: in a process that is forked from the guard, and becomes the task's program.

Python writes into each page that has an object it uses, so a guard that isolates and starts a task holds 2 MiB or more
of its own for as long as the task runs. Here the forked process does that, and its memory goes when it becomes the
program. It tells its guard by a pipe what was made, for the guard to go on with once the task has ended; the pipe is
closed by the kernel in the moment in which the program starts.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from scheduler.agent import processes
from scheduler.agent.isolation.cell import Cell
from scheduler.agent.protocol import TaskOrder
from scheduler.agent.shim.guard_status import StatusWriter

#: Ends what the forked process says where no program was started; its status line says why.
_FAILED: Final = b"!"
#: Python, and guards, ignore some signals, and a program would inherit that.
DEFAULT_SIGNALS: Final = [signal.SIGPIPE, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD]
#: What a task's output is opened with.
APPEND: Final = os.O_WRONLY | os.O_CREAT | os.O_APPEND


@dataclass(frozen=True, slots=True)
class Made:
    """What was made for a task before its program started; `cpu_seconds` were used for that, by the same process."""

    cell: dict[str, Any]
    status_offset: int
    cpu_seconds: float


@dataclass(frozen=True, slots=True)
class Started:
    """The first process of a task; `ran` says whether it has become the program. What it said is read later."""

    leader: int
    said: bytes

    @property
    def ran(self) -> bool:
        return bool(self.said) and not self.said.endswith(_FAILED)

    def made(self) -> Made:
        return Made(**json.loads(self.said))


def start(
    order: TaskOrder,
    cell: Cell,
    status: StatusWriter,
    *,
    binding: Callable[[], AbstractContextManager[None]],
    why_not: Callable[[OSError | ValueError], str],
) -> Started:
    """Fork the first process of a task, and return once it runs the task's program, or cannot. Raises OSError.

    It runs inside `binding`. It writes the lines of the status file until then; `why_not` puts an error into words.
    """
    guard_pid = cell.pid
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    try:
        pid = os.fork()
    except OSError:
        os.close(read_end)
        os.close(write_end)
        raise
    if pid == 0:
        try:
            _become(order, cell, status, write_end, guard_pid, binding, why_not)
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(127)
    os.close(write_end)
    said = b""
    while piece := os.read(read_end, 65536):
        said += piece
    os.close(read_end)
    return Started(pid, said)


def _become(
    order: TaskOrder,
    cell: Cell,
    status: StatusWriter,
    report: int,
    guard_pid: int,
    binding: Callable[[], AbstractContextManager[None]],
    why_not: Callable[[OSError | ValueError], str],
) -> NoReturn:
    """Enter the cell, take the task's rights and become its program; where that fails, say why."""
    pid = cell.own_pid()
    status.write({"guard": guard_pid, "key": order["key"]}, announce=False)
    try:
        cell.enter()
    except (OSError, ValueError) as error:
        _fail(status, report, f"The task could not be isolated: {error}."[:300])
    try:
        with binding():
            ticks = processes.start_ticks(os.getpid())
            cell.confine_for(order)
            status.write({"pid": pid, "ticks": ticks, "at": processes.boot_ms()}, announce=False)
            made = Made(cell.state(), status.offset, time.process_time())
            os.write(report, json.dumps({name: getattr(made, name) for name in Made.__slots__}).encode())
            _execute(order)
    except (OSError, ValueError) as error:
        _fail(status, report, why_not(error))


def _execute(order: TaskOrder) -> NoReturn:
    """Become the program, in a session of its own, with the files and signals that a task starts with."""
    os.setsid()
    for number, file in (
        (0, os.open("/dev/null", os.O_RDONLY)),
        (1, os.open(order["folder"] + "/stdout", APPEND, 0o600)),
        (2, os.open(order["folder"] + "/stderr", APPEND, 0o600)),
    ):
        os.dup2(file, number)
    for name in DEFAULT_SIGNALS:
        signal.signal(name, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    os.execve(order["argv"][0], order["argv"], order["env"])  # noqa: S606  no shell is wanted


def _fail(status: StatusWriter, report: int, text: str) -> NoReturn:
    status.write({"error": text, "worn": True})
    os.write(report, _FAILED)
    os._exit(127)
