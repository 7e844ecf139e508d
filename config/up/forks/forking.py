"""The supervisor's side of `fork_server`: has processes forked, and looks after them as their parent."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final

from config.up.forks.fork_server import PASSED_BELOW, ROOM
from config.up.processes import Child, NotForked, Process

#: To fork takes milliseconds; a fork server that takes longer is replaced.
ANSWER_SECONDS: Final = 10.0
_PR_SET_CHILD_SUBREAPER: Final = 36


def can_fork() -> bool:
    """Whether what a fork server forks can become our child; elsewhere each process loads for itself."""
    return sys.platform == "linux"


def adopt_orphans() -> None:
    """Become the parent of each process below us whose own parent ends, as what a fork server forks has to be."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def reap_orphans(known: Collection[int]) -> None:
    """Collect adopted processes that have ended, and none of these children, whose end others collect."""
    with contextlib.suppress(ChildProcessError):
        while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if ended.si_pid in known:
                return  # it comes first each time, until it is collected
            os.waitpid(ended.si_pid, 0)


class ForkedChild:
    """A child of ours that a fork server has forked."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            if ended:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
            time.sleep(0.01)
        return code

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, sig)


@dataclass
class ForkServer(Process):
    """A process that has loaded these modules and forks others."""

    preload: tuple[str, ...] = ()
    _orders: socket.socket | None = field(default=None, repr=False)

    def start(self) -> None:
        if self._orders is not None:
            self._orders.close()
        ready_file = self._ready_file()
        ready_file.unlink(missing_ok=True)
        self._orders, theirs = socket.socketpair()
        self._orders.settimeout(ANSWER_SECONDS)
        self.is_ready = ready_file.exists
        self.pass_fds = (theirs.fileno(),)
        self.argv = [
            *(sys.executable, "-m", "config.up.forks.fork_server", "--fd", str(theirs.fileno())),
            *("--ready-file", str(ready_file)),
            *(word for name in self.preload for word in ("--preload", name)),
            ROOM,
        ]
        with theirs:
            super().start()

    def wait_stopped(self, deadline: float) -> bool:
        stopped = super().wait_stopped(deadline)
        if self._orders is not None:
            self._orders.close()
            self._orders = None
        return stopped

    def _ready_file(self) -> Path:
        return self.log_folder.parent / "run" / f"{self.name}.ready"

    def fork(self, process: Process, log: IO[bytes]) -> Child:
        """Fork it with what it asks for; raises NotForked."""
        known, ours = os.pipe()
        try:
            pid = self._order(process, [log.fileno(), known, *process.pass_fds])
            os.write(ours, b"!")  # until now it has waited; without this it ends
        except (OSError, ValueError) as problem:
            # What it may have forked meanwhile waits for a word that does not come, and ends.
            if self.popen is not None:
                self.popen.send_signal(signal.SIGKILL)
            raise NotForked(f"{self.name} did not fork it: {problem}") from problem
        finally:
            os.close(known)
            os.close(ours)
        return ForkedChild(pid)

    def _order(self, process: Process, fds: list[int]) -> int:
        """The number of the forked process, which waits. Raises NotForked, OSError, ValueError."""
        if self._orders is None:
            raise NotForked(f"{self.name} does not run")
        assert process.argv[1] == "-m"
        assert all(fd < PASSED_BELOW for fd in process.pass_fds)
        order = {
            "module": process.argv[2],
            "arguments": list(process.argv[3:]),
            "env": dict(process.env),
            "cwd": str(process.cwd),
            "death_signal": process.death_signal,
            "supervisor": os.getpid(),
            "pass_fds": process.pass_fds,
        }
        data = json.dumps(order).encode() + b"\n"
        sent = socket.send_fds(self._orders, [data], fds)
        self._orders.sendall(data[sent:])
        pid = int(self._orders.recv(20))
        if pid <= 0:
            raise NotForked("no other process can be started")
        return pid
