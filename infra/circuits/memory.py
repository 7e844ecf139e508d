"""The circuit of Redis: in the memory of each process, for it is asked with every request."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

import redis

#: A Redis that hangs costs one time-out; then hints are dropped, and reads of the cache miss, for so long.
PAUSE_SECONDS: Final = 2.0


class MemoryCircuit:
    """Closed until `failed`; then open for the pause, and after it one caller at a time tries (half-open)."""

    def __init__(
        self, *, pause_seconds: float = PAUSE_SECONDS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._pause, self._clock = pause_seconds, clock
        self._lock = threading.Lock()
        self._open_until: float | None = None

    def may_call(self) -> bool:
        """Whether to call now. Who is let through by an open circuit tries for all, until the next pause is over."""
        if self._open_until is None:  # the usual case needs no lock
            return True
        with self._lock:
            now = self._clock()
            if self._open_until is not None and now < self._open_until:
                return False
            if self._open_until is not None:
                self._open_until = now + self._pause
            return True

    def failed(self) -> bool:
        """It did not answer; True where the circuit was closed until now."""
        with self._lock:
            was_closed = self._open_until is None
            self._open_until = self._clock() + self._pause
            return was_closed

    def answered(self) -> None:
        """It answered: everybody may call."""
        self._open_until = None

    @property
    def is_open(self) -> bool:
        """Whether calls are dropped, without asking for a try."""
        until = self._open_until
        return until is not None and self._clock() < until


#: Of this process: hints, mailbox of files and cache are one server.
redis_circuit: Final = MemoryCircuit()


def redis_raised(error: Exception) -> None:
    """A call of Redis ended with this error; a refusal, such as of a write while its memory is full, is an answer."""
    if isinstance(error, redis.ResponseError):
        redis_circuit.answered()
    else:
        redis_circuit.failed()
