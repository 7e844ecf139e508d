"""Child processes, how they are started, which outlive the supervisor, and what to do when one ends by itself."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Protocol

LOG_LIMIT_BYTES = 20 * 1024 * 1024
# A process that served and ran this long was healthy: the next restart is at once again.
HEALTHY_SECONDS = 10.0
BACKOFF_SECONDS = (0.0, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0)

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


def die_with_parent(sig: int) -> Callable[[], None] | None:
    """For Popen's preexec_fn: the kernel sends the child this signal when the supervisor is gone.

    It also holds after `kill -9` of the supervisor. The kernel ties it to the thread that forked, so
    children are started from the main thread only.
    """
    libc = _LIBC
    if libc is None:
        return None
    parent = os.getpid()

    def in_the_child() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, sig)
        if os.getppid() != parent:  # it died before we could ask
            os._exit(1)

    return in_the_child


class Child(Protocol):
    """A child process; `subprocess.Popen` is one."""

    @property
    def pid(self) -> int: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, sig: int) -> None: ...


class Forks(Protocol):
    """Forks processes from what it has loaded; `config.up.forks.forking.ForkServer` does."""

    @property
    def ready(self) -> bool: ...
    def fork(self, process: Process, log: IO[bytes]) -> Child: ...


class NotForked(Exception):
    """A process could not be forked; the message says why."""


@dataclass
class Process:
    """One program of the portal, started as often as it takes."""

    name: str
    argv: Sequence[str]
    env: Mapping[str, str]
    log_folder: Path
    # Says whether it serves; asked again and again, so it must be quick.
    is_ready: Callable[[], bool] = lambda: True
    before_start: Callable[[], None] = lambda: None
    cwd: Path | str = "/"
    stop_signal: int = signal.SIGTERM
    # What the kernel sends it when the supervisor dies; None lets it live on, for the next start to find.
    death_signal: int | None = signal.SIGKILL
    stop_seconds: float = 10.0
    ready_seconds: float = 60.0
    # After this many failures in a row the whole portal stops; None: try forever.
    give_up_after: int | None = None
    user: int | None = None
    group: int | None = None
    pass_fds: tuple[int, ...] = ()
    # Has its modules loaded; None: a new interpreter, or another program, loads its own.
    forked_by: Forks | None = None

    popen: Child | None = None
    ready: bool = False
    started_at: float = 0.0
    restart_at: float = 0.0
    failures: int = 0
    restarts: int = 0
    last_exit: str = ""
    _log: IO[bytes] | None = field(default=None, repr=False)

    @property
    def log_file(self) -> Path:
        return self.log_folder / f"{self.name}.log"

    @property
    def pid_file(self) -> Path:
        """Holds the pid, for people and for tests."""
        return self.log_folder.parent / "run" / f"{self.name}.pid"

    @property
    def pid(self) -> int | None:
        return self.popen.pid if self.popen else None

    def start(self) -> None:
        """Start it, except while what forks it loads, or fails: then it is to be asked again from `restart_at` on."""
        if self.forked_by is not None and not self.forked_by.ready:
            return
        self.before_start()
        self._rotate_log()
        with self.log_file.open("ab") as log:
            try:
                self.popen = self._spawn(log) if self.forked_by is None else self.forked_by.fork(self, log)
            except NotForked as problem:
                self._failed(str(problem))
                return
        self.pid_file.write_text(f"{self.popen.pid}\n")
        self.ready = False
        self.started_at = time.monotonic()

    def _spawn(self, log: IO[bytes]) -> Child:
        as_user: dict[str, object] = {}
        if self.user is not None:
            as_user = {"user": self.user, "group": self.group, "extra_groups": []}
        child: subprocess.Popen[bytes] = subprocess.Popen(  # type: ignore[call-overload]
            list(self.argv),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=dict(self.env),
            cwd=self.cwd,
            start_new_session=True,  # Ctrl-C reaches the supervisor alone, which stops things in order
            preexec_fn=self._preexec(),  # noqa: PLW1509  single-threaded by design
            pass_fds=self.pass_fds,
            **as_user,
        )
        return child

    def _preexec(self) -> Callable[[], None] | None:
        return None if self.death_signal is None else die_with_parent(self.death_signal)

    def look(self) -> None:
        """Notice readiness, or an end; plan the restart after an end."""
        if self.popen is None:
            return
        code = self.popen.poll()
        if code is None:
            if not self.ready and self.is_ready():
                self.ready = True
            if self.failures and self.ready and time.monotonic() - self.started_at > HEALTHY_SECONDS:
                self.failures = 0
            return
        self.popen = None
        self.ready = False
        self._failed(exit_words(code))

    def _failed(self, how: str) -> None:
        self.last_exit = how
        delay = BACKOFF_SECONDS[min(self.failures, len(BACKOFF_SECONDS) - 1)]
        self.failures += 1
        self.restart_at = time.monotonic() + delay

    def ask_to_stop(self) -> None:
        if self.popen and self.popen.poll() is None:
            self.popen.send_signal(self.stop_signal)

    def wait_stopped(self, deadline: float) -> bool:
        """True when it ended by itself; past the deadline its whole session is killed."""
        if self.popen is None:
            return True
        try:
            self.popen.wait(max(0.0, deadline - time.monotonic()))
            gentle = True
        except subprocess.TimeoutExpired:
            gentle = False
        kill_session(self.popen.pid)
        self.popen.wait()
        self.pid_file.unlink(missing_ok=True)
        self.popen = None
        self.ready = False
        return gentle

    def log_tail(self, lines: int = 15) -> str:
        try:
            with self.log_file.open("rb") as log:
                log.seek(0, os.SEEK_END)
                log.seek(max(0, log.tell() - 8192))
                return "\n".join(log.read().decode(errors="replace").splitlines()[-lines:])
        except OSError:
            return ""

    def _rotate_log(self) -> None:
        try:
            if self.log_file.stat().st_size > LOG_LIMIT_BYTES:
                self.log_file.replace(self.log_file.with_suffix(".log.1"))
        except FileNotFoundError:
            pass


def kill_session(pid: int) -> None:
    """SIGKILL to what is left of a child's process group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def exit_words(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"
