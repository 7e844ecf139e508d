"""Keeps the processes of a portal running, and stops them in order."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable, Iterable
from types import FrameType

from config.up.forks.forking import reap_orphans
from config.up.processes import Process, kill_session
from config.up.state import StateError

TICK_SECONDS = 0.5
# Something that never yet worked and ends this often will not work.
FAILURES_AT_START = 3
# A process that fails again and again is mentioned this often at first, then every tenth time.
MENTIONED_FAILURES = 3


class Supervisor:
    """Signals in, processes out; single-threaded: children are tied to the thread that starts them."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.say = say
        self.stopping = False
        self.stop_reason = ""
        self._signals = 0
        self._running: list[Process] = []
        self._wake_read, wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(wake_write, False)
        # Any signal, SIGCHLD too, ends the wait below at once: a crashed child is noticed when it crashes.
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.stopping = True
        self._signals += 1
        self.stop_reason = signal.Signals(number).name
        if self.hurried:
            for process in self._running:
                if process.pid:
                    kill_session(process.pid)

    def start(self, processes: Iterable[Process]) -> None:
        """Start these, and return when all of them serve."""
        fresh = list(processes)
        for process in fresh:
            process.start()
            self._running.append(process)
        deadline = time.monotonic() + max((process.ready_seconds for process in fresh), default=0)
        while not all(process.ready for process in fresh):
            self.require_not_stopping()
            self._look_after(self._running)
            late = [process for process in fresh if not process.ready]
            hopeless = [process for process in late if process.failures >= FAILURES_AT_START]
            if hopeless or (late and time.monotonic() > deadline):
                process = (hopeless or late)[0]
                why = f"ended {process.failures} times ({process.last_exit})" if hopeless else "is not ready"
                raise StateError(
                    f"{process.name} {why}. Its log {process.log_file} ends:\n{process.log_tail()}"
                )
            if late:
                self._wait(0.05)

    def adopt(self, processes: Iterable[Process]) -> None:
        """Supervise these processes, and start the ones that do not run, without waiting for them."""
        for process in processes:
            self._running.append(process)
            if process.popen is None:
                process.start()

    @property
    def hurried(self) -> bool:
        """Whether a third signal has come: processes get no more time to end."""
        return self._signals > 2

    def require_not_stopping(self) -> None:
        if self.stopping:
            raise KeyboardInterrupt

    def watch(self) -> None:
        """Restart processes that end, until a signal comes; raises StateError when an essential one keeps failing."""
        while not self.stopping:
            self._look_after(self._running)
            self._wait(TICK_SECONDS)

    def stop(self, groups: Iterable[Iterable[Process]]) -> None:
        """Stop group after group; within one, all at once."""
        for group in groups:
            running = [process for process in group if process.popen is not None]
            if not running:
                continue
            started = time.monotonic()
            for process in running:
                process.ask_to_stop()
            for process in running:
                seconds = 0.0 if self.hurried else process.stop_seconds
                if not process.wait_stopped(started + seconds):
                    self.say(
                        f"{process.name} did not stop within {process.stop_seconds:.0f} s and was killed"
                    )
            names = ", ".join(process.name for process in running)
            self.say(f"stopped {names} ({time.monotonic() - started:.1f} s)")

    def _look_after(self, processes: Iterable[Process]) -> None:
        for process in processes:
            was_running = process.popen is not None
            process.look()
            if process.popen is not None or self.stopping:
                continue
            if was_running:
                self._mention(process)
                if process.give_up_after is not None and process.failures >= process.give_up_after:
                    raise StateError(
                        f"{process.name} ended {process.failures} times in a row. "
                        f"Its log {process.log_file} ends:\n{process.log_tail()}"
                    )
            if time.monotonic() >= process.restart_at:
                self._start_again(process)
        reap_orphans({child.pid for child in self._running if child.pid is not None})

    def _start_again(self, process: Process) -> None:
        failures = process.failures
        process.start()
        if process.popen is not None:
            process.restarts += 1
        elif process.failures > failures:
            self._mention(process)

    def _mention(self, process: Process) -> None:
        if process.failures > MENTIONED_FAILURES and process.failures % 10:
            return
        delay = max(0.0, process.restart_at - time.monotonic())
        when = f"in {delay:.1f} s" if delay > 0.05 else "now"
        again = f", {process.failures} times in a row" if process.failures > 1 else ""
        self.say(
            f"{process.name} ended ({process.last_exit}{again}); starting it again {when}; "
            f"see {process.log_file}"
        )

    def _wait(self, seconds: float) -> None:
        ready, _, _ = select.select([self._wake_read], [], [], seconds)
        if ready:
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake_read, 4096)
