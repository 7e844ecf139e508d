"""Does together what came in while the last piece of work was being done, in one thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

T = TypeVar("T")


class GroupedWork(Generic[T]):
    """A thread that takes all that waits, up to `most_together`, and calls `work` with it: so a commit is shared.

    Nothing waits for others to come: a piece that comes alone is done alone, at once. `work` answers for its pieces
    itself and raises nothing.
    """

    def __init__(
        self, work: Callable[[list[T]], None], *, name: str, most_together: int, most_waiting: int
    ) -> None:
        self._work = work
        self._name = name
        self._most_together = most_together
        self._most_waiting = most_waiting
        self._waiting: SimpleQueue[T] = SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def put(self, piece: T) -> bool:
        """Let a piece wait for its turn; False when as many wait as may, and then it does not."""
        if self._waiting.qsize() >= self._most_waiting:
            return False
        self._waiting.put(piece)
        if self._thread is None or not self._thread.is_alive():  # not yet, or this is a fork
            with self._lock:
                if self._thread is None or not self._thread.is_alive():
                    self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                    self._thread.start()
        return True

    def _run(self) -> None:
        while True:
            pieces = [self._waiting.get()]
            while len(pieces) < self._most_together:
                try:
                    pieces.append(self._waiting.get_nowait())
                except Empty:
                    break
            self._work(pieces)
