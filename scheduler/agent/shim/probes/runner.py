"""Runs the probes of one task in its guard: when each is due, its process, its failures in a row."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from scheduler.agent import processes
from scheduler.agent.protocol import PROBE_TEXT_BYTES, ProbeResult, TaskOrder
from scheduler.agent.shim.probes import checks
from scheduler.agent.shim.probes.checks import Found

#: The longest sleep between two looks; a suspended task is noticed within this.
_MOST_SLEEP_SECONDS: Final = 5.0

#: Starts a process with the task's rights: returns what the function that it is given returns.
Start = Callable[[Callable[[], int]], int]


class _Probe:
    """One probe: `due_at` and `killed_at` are monotonic; `pid` is its process while that runs."""

    def __init__(self, number: int, asked: Mapping[str, Any], now: float) -> None:
        self.number, self.asked = number, asked
        self.due_at = now + max(asked["start_after"], min(asked["every"], 1))
        self.pid: int | None = None
        self.read_end: int | None = None
        self.kill_at = 0.0
        self.timed_out = False
        #: Its process was killed since the task was suspended: no result.
        self.dropped = False
        self.failures = 0
        self.last: Found | None = None


class Probes:
    """`unhealthy` is the sentence about the first probe that failed too often; empty while none has.

    `on_change` gets the results of all probes when one has changed.
    """

    def __init__(
        self, order: TaskOrder, leader: int, *, start: Start, on_change: Callable[[list[ProbeResult]], None]
    ) -> None:
        self._order, self._leader, self._start, self._on_change = order, leader, start, on_change
        now = time.monotonic()
        #: Those by GPUs are of the agent, which measures them.
        self._probes = [
            _Probe(number, asked, now)
            for number, asked in enumerate(order.get("probes", ()))
            if asked["kind"] != "gpu"
        ]
        #: When the task began, or was resumed (as `time.time`).
        self._since = time.time()
        self.unhealthy = ""
        self._said = False

    def wait_seconds(self) -> float:
        """How long until `work` has something to do."""
        now = time.monotonic()
        due = [probe.kill_at if probe.pid is not None else probe.due_at for probe in self._probes]
        return max(0.001, min([now + _MOST_SLEEP_SECONDS, *due]) - now)

    def work(self) -> None:
        """Start the checks that are due, and kill those whose time is up; a suspended task is not checked."""
        now = time.monotonic()
        suspended = processes.state_of(self._leader) == "T"
        if suspended:
            self._since = time.time()
        for probe in self._probes:
            if probe.pid is not None:
                probe.dropped |= suspended
                if suspended or now >= probe.kill_at:
                    probe.timed_out = True
                    self._kill(probe)
                    probe.kill_at = now + 1.0
            elif suspended or self.unhealthy:
                probe.due_at = max(probe.due_at, now + min(probe.asked["every"], _MOST_SLEEP_SECONDS))
            elif now >= probe.due_at:
                self._check(probe, now)

    def ended(self, pid: int, code: int) -> bool:
        """A child of the guard has ended; False where it is not the process of a probe."""
        probe = next((one for one in self._probes if one.pid == pid), None)
        if probe is None:
            return False
        found = checks.result_of(code, probe.read_end)
        if probe.timed_out:
            found = Found(False, f"no answer within {probe.asked['timeout']} s")
        dropped = probe.dropped
        self._forget_process(probe)
        if not dropped:
            self._take(probe, found)
        return True

    def take_unhealthy(self) -> str:
        """Why the task is unhealthy, once; empty before and after."""
        if not self.unhealthy or self._said:
            return ""
        self._said = True
        return self.unhealthy

    def close(self) -> None:
        """The task has ended: kill what still checks; the guard reaps it with the other processes."""
        for probe in self._probes:
            if probe.pid is not None:
                self._kill(probe)
                self._forget_process(probe)

    # ------------------------------------------------------------ one check

    def _check(self, probe: _Probe, now: float) -> None:
        asked = probe.asked
        probe.due_at = now + asked["every"]
        if asked["kind"] == "output":
            self._take(probe, checks.output(self._order["folder"], asked["limit"], self._since))
            return
        probe.kill_at, probe.timed_out, probe.dropped = now + asked["timeout"], False, False
        try:
            if asked["kind"] == "command":
                probe.pid = self._start(lambda: _spawn(asked["command"], self._order["env"]))
            else:
                self._start(lambda: self._fork(probe))
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            self._take(probe, Found(False, f"it could not be started: {why}"))

    def _fork(self, probe: _Probe) -> int:
        asked, since = probe.asked, self._since

        def check() -> Found:
            if asked["kind"] == "http":
                return checks.http(asked["port"], asked["path"], asked["timeout"])
            return checks.heartbeat(asked["path"], asked["limit"], since)

        probe.pid, probe.read_end = checks.in_a_process(check)
        return probe.pid

    def _take(self, probe: _Probe, found: Found) -> None:
        before = probe.last
        probe.failures = 0 if found.ok else probe.failures + 1
        probe.last = found
        most = probe.asked["failures"]
        if probe.failures >= most and not self.unhealthy:
            times = f" {most} times in a row" if most > 1 else ""
            name = checks.described(probe.asked)
            self.unhealthy = f"Unhealthy: probe {name} failed{times}: {_short(found.text)}."
        if before is None or before.ok != found.ok or is_reported(probe.failures):
            self._on_change(self.results())

    def results(self) -> list[ProbeResult]:
        return [
            ProbeResult(
                number=probe.number,
                ok=probe.last.ok,
                failures=probe.failures,
                text=_short(probe.last.text),
                boot_ms=processes.boot_ms(),
            )
            for probe in self._probes
            if probe.last is not None
        ]

    @staticmethod
    def _kill(probe: _Probe) -> None:
        if probe.pid is not None:
            processes.signal_group(probe.pid, signal.SIGKILL)
            with contextlib.suppress(OSError):
                os.kill(probe.pid, signal.SIGKILL)

    @staticmethod
    def _forget_process(probe: _Probe) -> None:
        if probe.read_end is not None:
            os.close(probe.read_end)
        probe.pid = probe.read_end = None


def is_reported(failures: int) -> bool:
    """Whether this number of failures in a row is reported: 1, 2, 4, 8, ... so that a long row is few reports."""
    return failures > 0 and failures & (failures - 1) == 0


def _spawn(command: str, env: Mapping[str, str]) -> int:
    """Start a command of a probe, in a session of its own; what it prints is dropped."""
    return os.posix_spawn(
        "/bin/sh",
        ["/bin/sh", "-c", command],
        env,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, "/dev/null", os.O_WRONLY, 0),
            (os.POSIX_SPAWN_OPEN, 2, "/dev/null", os.O_WRONLY, 0),
        ],
        setsid=True,
        setsigmask=[],
        setsigdef=[signal.SIGPIPE, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD],
    )


def _short(text: str) -> str:
    """One line that has no more than `PROBE_TEXT_BYTES` bytes."""
    plain = "".join(letter if letter.isprintable() else " " for letter in text)
    return plain.encode(errors="replace")[:PROBE_TEXT_BYTES].decode(errors="ignore")
