"""Whether PostgreSQL responds at all: found once for all threads of a process.

A server that is stopped, or behind a network that swallows everything, still takes TCP connections and says
nothing. A thread that has waited a moment for an answer asks for a look: one thread beside tries a new
connection. While that answers, everybody goes on waiting, for a long statement is no fault. Once it does not,
all who wait give up, and nobody begins, until it answers again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from typing import Any, Final, TypeVar

import psycopg
import structlog

log = structlog.get_logger(__name__)
T = TypeVar("T")

#: How often a thread that waits looks up.
TICK_SECONDS: Final = 0.1
#: A look that takes longer has no answer. Two is the least that a connection may be given.
LOOK_SECONDS: Final = 2
#: Interval of checks while the server is silent, and while a statement only takes long.
RETRY_SECONDS: Final = 0.3
AGAIN_SECONDS: Final = 2.0
SILENT: Final = "PostgreSQL has not answered for a while; nothing was asked of it."


class Silent(psycopg.OperationalError):
    """The server takes connections and does not answer, or cannot be reached at all."""


class Pulse:
    """One for each server that a process asks; `look` returns when it answers, and raises otherwise."""

    def __init__(self, look: Callable[[], None]) -> None:
        self._look = look
        self._lock = threading.Lock()
        self._watcher: threading.Thread | None = None
        self._suspected_at = 0.0
        self._silent = False

    @property
    def silent(self) -> bool:
        return self._silent

    def require(self) -> None:
        """Raise Silent at once where asking would only wait."""
        if self._silent:
            raise Silent(SILENT)

    def suspect(self) -> None:
        """Somebody has waited for longer than is usual: see whether the server answers others."""
        with self._lock:
            self._suspected_at = time.monotonic()
            if self._watcher is None or not self._watcher.is_alive():
                self._watcher = threading.Thread(target=self._watch, name="database-pulse", daemon=True)
                self._watcher.start()

    def _watch(self) -> None:
        while True:
            answers = self._answers()
            if self._silent is answers:
                self._silent = not answers
                log.warning("database_pulse", answers=answers)
            with self._lock:
                if answers and time.monotonic() - self._suspected_at > 2 * AGAIN_SECONDS:
                    self._watcher = None
                    return
            time.sleep(AGAIN_SECONDS if answers else RETRY_SECONDS)

    def _answers(self) -> bool:
        """A refusal is an answer too: every caller gets the same answer, and need not wait for it."""
        try:
            self._look()
        except (psycopg.errors.ConnectionTimeout, Silent):
            return False
        except (psycopg.Error, OSError):
            return True
        return True


def watched(work: Generator[Any, Any, T], tick: Callable[[int], None]) -> Generator[Any, Any, T]:
    """What a connection does with its server, and `tick` with how often in a row there was nothing to read.

    Ticks are counted and no clock is read: a process that was itself stopped must not take that for silence.
    """
    ticks = 0
    try:
        wanted = next(work)
        while True:
            ready = yield wanted
            if ready:
                ticks = 0
            else:
                ticks += 1
                tick(ticks)
            wanted = work.send(ready)
    except StopIteration as end:
        return end.value
