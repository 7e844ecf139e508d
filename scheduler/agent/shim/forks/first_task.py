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
    started_boot_ms: int
    cpu_seconds: float

    def as_json(self) -> bytes:
        fields = [self.cell, self.status_offset, self.started_boot_ms, self.cpu_seconds]
        return json.dumps(fields).encode()

    @classmethod
    def of(cls, data: bytes) -> Made:
        return cls(*json.loads(data))


def start(become: Callable[[int], NoReturn]) -> tuple[int, bytes]:
    """Fork the first process of a task, which calls `become` with where to report, until it runs the task's program.

    Returns its pid, 0 where none can be forked, and what it has said: nothing when it was killed.
    """
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    try:
        pid = os.fork()
    except OSError:
        os.close(read_end)
        os.close(write_end)
        return 0, b""
    if pid == 0:
        try:
            become(write_end)
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
    return pid, said


def runs(said: bytes) -> bool:
    """Whether the process that has said this runs the task's program."""
    return said != b"" and not said.endswith(_FAILED)


def become(
    order: TaskOrder,
    cell: Cell,
    status: StatusWriter,
    *,
    report: int,
    binding: Callable[[], AbstractContextManager[None]],
    why_not: Callable[[OSError | ValueError], str],
) -> NoReturn:
    """In the forked process: enter the cell, take the task's rights and become its program; or write down why not.

    The program starts inside `binding`; `why_not` puts an error into words.
    """
    pid = cell.own_pid()
    status.write({"guard": cell.pid, "key": order["key"]}, announce=False)
    try:
        cell.enter()
    except (OSError, ValueError) as error:
        _fail(status, report, f"The task could not be isolated: {error}."[:300])
    try:
        with binding():
            ticks = processes.start_ticks(os.getpid())
            cell.confine_for(order)
            now_ms = processes.boot_ms()
            status.write({"pid": pid, "ticks": ticks, "at": now_ms}, announce=False)
            made = Made(cell.state(), status.offset, now_ms, time.process_time())
            os.write(report, made.as_json())
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
