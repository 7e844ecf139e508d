"""One connection to the server for all threads of the agent, and plain HTTP where there is none."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from scheduler.agent.protocol import STREAM_BYTES
from scheduler.agent.server.client import ServerClient, ServerUnreachable, answer_of
from scheduler.agent.server.websocket import NotUpgraded, WebSocket

#: How long calls go by HTTP after a server, or a proxy before it, gave us no websocket.
WITHOUT_SECONDS: Final = 300.0

#: Opens a websocket with this key; raises NotUpgraded, OSError or ServerUnreachable.
Open = Callable[[str], WebSocket]


class NoStream(Exception):
    """There is no stream to be had: the call goes by HTTP."""


class Lost(Exception):
    """The connection broke before the answer came."""


class _Answer:
    def __init__(self) -> None:
        self.came = threading.Event()
        self.message: dict[str, Any] | None = None


class _Link:
    """An open stream: calls of any thread, and one thread that hands the answers to them."""

    def __init__(self, websocket: WebSocket, key: str) -> None:
        self.key = key
        self.broken = ""
        self._websocket = websocket
        self._lock = threading.Lock()
        self._waiting: dict[int, _Answer] = {}
        self._number = 0
        threading.Thread(target=self._read, name="stream", daemon=True).start()

    def ask(self, call: str, data: bytes, *, timeout_seconds: float) -> dict[str, Any]:
        """Send a call and wait for its answer; raises Lost, and TimeoutError when none comes."""
        answer = _Answer()
        with self._lock:
            if self.broken:
                raise Lost(self.broken)
            self._number += 1
            number = self._number
            self._waiting[number] = answer
        try:
            self._websocket.send(b'{"id":%d,"call":"%s","body":%s}' % (number, call.encode(), data))
        except OSError as error:
            self.end(f"{type(error).__name__}: {error}")
            raise Lost(self.broken) from error
        if not answer.came.wait(timeout_seconds):
            self.end("no answer in time")
            raise TimeoutError(self.broken)
        if answer.message is None:
            raise Lost(self.broken)
        return answer.message

    def end(self, why: str) -> None:
        """Hang up; every call that waits is Lost."""
        with self._lock:
            self.broken = self.broken or why
            waiting, self._waiting = self._waiting, {}
        self._websocket.close()
        for answer in waiting.values():
            answer.came.set()

    def _read(self) -> None:
        why = "the server hung up"
        try:
            while True:
                message = json.loads(self._websocket.receive())
                with self._lock:
                    answer = self._waiting.pop(message["id"], None)
                if answer is not None:
                    answer.message = message
                    answer.came.set()
        except (OSError, ValueError, KeyError, TypeError) as error:
            why = f"{type(error).__name__}: {error}"
        finally:
            self.end(why)


class Stream:
    """The agent's stream to its server; it opens when a call needs it, and again after it broke."""

    def __init__(self, open_websocket: Open, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._open, self._clock = open_websocket, clock
        self._opening = threading.Lock()
        self._link: _Link | None = None
        #: Until when there is none for this key.
        self._without: tuple[str, float] = ("", 0.0)

    def call(self, key: str, call: str, data: bytes, *, timeout_seconds: float) -> dict[str, Any]:
        """The answer, with `status` and `body`; raises NoStream or ServerUnreachable.

        Every call may be sent twice, so one whose connection breaks is tried once more on a new one.
        """
        link, fresh = self._link_for(key)
        try:
            return link.ask(call, data, timeout_seconds=timeout_seconds)
        except TimeoutError as error:
            raise ServerUnreachable(str(error)) from error
        except Lost as error:
            if fresh:
                raise ServerUnreachable(str(error)) from error
        link, _ = self._link_for(key)
        try:
            return link.ask(call, data, timeout_seconds=timeout_seconds)
        except (Lost, TimeoutError) as error:
            raise ServerUnreachable(str(error)) from error

    def _link_for(self, key: str) -> tuple[_Link, bool]:
        """The open stream, and whether it has just been opened."""
        with self._opening:
            if self._link is not None and not self._link.broken and self._link.key == key:
                return self._link, False
            if self._without[0] == key and self._clock() < self._without[1]:
                raise NoStream
            self._hang_up("another key")
            try:
                self._link = _Link(self._open(key), key)
            except NotUpgraded as error:
                self._without = key, self._clock() + WITHOUT_SECONDS
                raise NoStream from error
            except OSError as error:
                raise ServerUnreachable(f"{type(error).__name__}: {error}") from error
            return self._link, True

    def _hang_up(self, why: str) -> None:
        if self._link is not None:
            self._link.end(why)
            self._link = None

    def close(self) -> None:
        with self._opening:
            self._hang_up("the agent ends")


class StreamClient(ServerClient):
    """A client of one thread whose calls go over the stream that all share, where there is one.

    A message that is large goes by HTTP, on a connection of this thread: it does not delay the others.
    """

    def __init__(self, stream: Stream, **where: Any) -> None:
        super().__init__(**where)
        self._stream = stream

    def post(self, path: str, body: Any, *, timeout_seconds: float = 30.0) -> Any:
        data = json.dumps(body, separators=(",", ":")).encode()
        if not self.key or len(data) > STREAM_BYTES:
            return self.post_bytes(path, data, timeout_seconds=timeout_seconds)
        call = path.rpartition("/")[2]
        try:
            answer = self._stream.call(self.key, call, data, timeout_seconds=timeout_seconds)
        except NoStream:
            return self.post_bytes(path, data, timeout_seconds=timeout_seconds)
        return answer_of(int(answer["status"]), "", answer["body"])
