"""Work of several callers done together by one thread: what arrives while one group is done makes the next."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Final, Generic, TypeVar

from django.db import connections

from infra.errors import MusterError

M = TypeVar("M")
A = TypeVar("A")

#: A thread that has had nothing to do for so long ends, and the next member starts another.
IDLE_SECONDS: Final = 60.0


class Groups(Generic[M, A]):
    """Calls `work` with groups of members, one group at a time, in a thread of its own.

    `work` answers each member, in their order; an answer that is an exception is raised to that member alone. When
    `work` itself raises, each member is tried alone, so that one bad member refuses no other; with an error of
    `shared`, which would meet every member (a database that is away), all of the group get it instead.

    A group begins `linger_seconds` after its first member came, and holds members of at most the weight `most`,
    or a single one that is heavier. Callers who were answered together come back within a moment of each other: for
    half of what the last group took, at most `gather_seconds`, the next one waits until it has as many members as
    were there when that group ended, its own and those that waited. Who comes alone, or after a pause, never waits.
    Beyond `waiting` members nobody is let in: `submit` raises MusterError with
    status 503, and the caller comes again.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[Sequence[M]], Sequence[A | Exception]],
        *,
        most: int,
        waiting: int,
        linger_seconds: float = 0.0,
        gather_seconds: float = 0.0,
        weight: Callable[[M], int] = lambda _: 1,
        shared: tuple[type[Exception], ...] = (),
    ) -> None:
        self._name, self._work, self._weight, self._shared = name, work, weight, shared
        self._most, self._limit, self._linger_seconds = most, waiting, linger_seconds
        self._gather_seconds = gather_seconds
        #: The members that the thread waits for; until when it gathers as many as there were with the last group.
        self._enough, self._together, self._gather_until = 1, 0, float("-inf")
        self._members: deque[tuple[M, Future[A]]] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False

    def submit(self, member: M) -> Future[A]:
        """Let the member go with the next group; the future has its answer, or raises its error."""
        future: Future[A] = Future()
        with self._changed:
            if len(self._members) >= self._limit or self._closed:
                raise MusterError(
                    message=f"{self._limit} messages are already waiting.",
                    code="unavailable",
                    way_out="Send the message again in a moment.",
                    status=503,
                )
            self._members.append((member, future))
            if (
                self._thread is None or not self._thread.is_alive()
            ):  # not yet, idle for long, or this is a fork
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
            if len(self._members) >= self._enough:
                self._changed.notify_all()
        return future

    def close(self) -> None:
        """Let nobody in any more, do what waits, and end the thread."""
        with self._changed:
            self._closed, thread = True, self._thread
            self._changed.notify_all()
        if thread is not None:
            thread.join()

    # ------------------------------------------------------------ the thread

    def _run(self) -> None:
        try:
            while self._wait():
                self._answer(self._take())
        finally:
            connections.close_all()

    def _wait(self) -> bool:
        """Wait for a member; False when none has come for long, and none will be taken by this thread."""
        with self._changed:
            self._changed.wait_for(lambda: self._members or self._closed, IDLE_SECONDS)
            self._gather()
            if not self._members:
                self._thread = None
            return bool(self._members)

    def _gather(self) -> None:
        """Wait for those who were there with the last group, if it has just ended."""
        left = self._gather_until - time.monotonic()
        if not self._members or left <= 0:
            return
        self._enough = min(self._together, self._most)
        self._changed.wait_for(lambda: len(self._members) >= self._enough or self._closed, left)
        self._enough = 1

    def _take(self) -> list[tuple[M, Future[A]]]:
        if self._linger_seconds:
            time.sleep(self._linger_seconds)
        group: list[tuple[M, Future[A]]] = []
        weight = 0
        with self._changed:
            while self._members:
                weight += self._weight(self._members[0][0])
                if group and weight > self._most:
                    break
                group.append(self._members.popleft())
        return [one for one in group if one[1].set_running_or_notify_cancel()]

    def _answer(self, group: Sequence[tuple[M, Future[A]]]) -> None:
        if not group:
            return
        began = time.monotonic()
        try:
            answers = self._work([member for member, _ in group])
        except self._shared as error:
            for _, future in group:
                future.set_exception(error)
        except Exception as error:
            if len(group) == 1:
                group[0][1].set_exception(error)
                return
            for one in group:
                self._answer([one])
        else:
            ended = time.monotonic()  # from the first answer on they come back
            self._together = len(group) + len(self._members)
            self._gather_until = ended + min((ended - began) / 2, self._gather_seconds)
            for (_, future), answer in zip(group, answers, strict=True):
                if isinstance(answer, Exception):
                    future.set_exception(answer)
                else:
                    future.set_result(answer)
