"""A program of the site that says whether this machine is fit for jobs, as Slurm's HealthCheckProgram."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

#: Seconds from one run to the next, where the command line does not say.
INTERVAL_SECONDS: Final = 300.0
#: A run that takes longer has failed.
TIMEOUT_SECONDS: Final = 60.0
_MOST_TEXT: Final = 150
_MOST_OUTPUT_BYTES: Final = 64 * 1024


class HealthCheck:
    """`problem` is what the last run found: "" = none, None = it has not run yet."""

    def __init__(self, program: Path, *, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        self._program, self._timeout = program, timeout_seconds
        self.problem: str | None = None

    def watch(self, seconds: float, stopping: threading.Event, on_change: Callable[[], None]) -> None:
        """Run the program every `seconds` until `stopping` is set."""
        while not stopping.wait(seconds):
            before = self.problem
            self.run()
            if self.problem != before:
                on_change()

    def run(self) -> None:
        """Run the program once, in a session of its own; its last line of output is the problem."""
        try:
            with subprocess.Popen(
                [str(self._program)],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                start_new_session=True,
            ) as process:  # fmt: skip
                try:
                    output, _ = process.communicate(timeout=self._timeout)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    self.problem = f"{self._program.name} did not end within {self._timeout:g} s"
                    return
        except OSError as error:
            self.problem = f"{self._program} cannot be run: {error.strerror}"
            return
        self.problem = "" if process.returncode == 0 else _words(output, process.returncode)


def _words(output: bytes, code: int) -> str:
    """The last line that was printed, or how the program ended."""
    lines = output[-_MOST_OUTPUT_BYTES:].decode(errors="replace").split("\n")
    last = next((line for line in reversed(lines) if line.strip()), "")
    plain = " ".join("".join(letter if letter.isprintable() else " " for letter in last).split())
    return plain[:_MOST_TEXT] or (f"exit code {code}" if code > 0 else f"ended by signal {-code}")
