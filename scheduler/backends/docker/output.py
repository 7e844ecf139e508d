"""The output of containers: one thread for each follows it, and keeps what the server does not have yet."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator, Mapping
from typing import Any, Final

import structlog

from scheduler.agent.protocol import CHUNK_BYTES
from scheduler.agent.tasks.local_task import cap_marker
from scheduler.backends.base import Output
from scheduler.backends.docker.host_link import HostAway, HostLink, Refused

log = structlog.get_logger(__name__)

STREAMS: Final = {1: "stdout", 2: "stderr"}
#: The beginning of a frame of Docker's: the stream, three empty bytes, and the length.
_HEADER: Final = struct.Struct(">BxxxL")
#: From a stream that broke to the next one.
AGAIN_SECONDS: Final = 1.0
#: What a follower keeps at most; it reads no further until some of it is stored.
MAX_KEPT_BYTES: Final = 4 * 1024 * 1024


class OutputFollower:
    """Follows one container from its first byte on; `stored` is called with what the server has of each stream."""

    def __init__(self, link: HostLink, container: str, task: int, epoch: int, *, cap_bytes: int) -> None:
        self.task, self.epoch = task, epoch
        self._link, self._container = link, container
        #: Only so much of each stream is kept, with a line that says so.
        self._cap_bytes = cap_bytes
        self._changed = threading.Condition()
        self._kept = {stream: bytearray() for stream in STREAMS.values()}
        self._begins = dict.fromkeys(STREAMS.values(), 0)
        self._closed = False
        #: The container has ended and was read to its end, or is gone.
        self.is_done = False
        #: The container has ended: the next reading is the last.
        self._has_ended = threading.Event()
        self._response: Any = None
        self._thread = threading.Thread(target=self._run, name=f"output-of-task-{task}", daemon=True)
        self._thread.start()

    @property
    def is_stored(self) -> bool:
        """Whether the server has all of it."""
        with self._changed:
            return self.is_done and not any(self._kept.values())

    @property
    def sizes(self) -> dict[str, int]:
        """The bytes of each stream so far."""
        with self._changed:
            return {stream: self._begins[stream] + len(kept) for stream, kept in self._kept.items()}

    def output(self) -> Iterator[Output]:
        """What is to be stored next, one chunk a stream."""
        with self._changed:
            for stream, kept in self._kept.items():
                if kept:
                    data = bytes(kept[:CHUNK_BYTES])
                    yield Output(self.task, self.epoch, stream, self._begins[stream], data)

    def stored(self, ends: Mapping[str, int]) -> None:
        """The server has each stream up to this offset."""
        with self._changed:
            for stream, end in ends.items():
                if stream in self._kept and end > self._begins[stream]:
                    del self._kept[stream][: end - self._begins[stream]]
                    self._begins[stream] = max(end, self._begins[stream])
            self._changed.notify_all()

    def ended(self) -> None:
        """The container has ended: what it has printed is read to its end now."""
        self._has_ended.set()

    def close(self) -> None:
        self._has_ended.set()
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._response is not None:
            _shut_down(self._response)

    # ------------------------------------------------------------ the thread

    def _run(self) -> None:
        """Follow until the container has ended, then read once more without following.

        Docker may end a stream that follows before the last lines, and it breaks when the daemon is restarted.
        """
        while not self._closed:
            is_last = self._has_ended.is_set()
            try:
                self._read(follow=not is_last)
            except Exception as error:
                log.info(
                    "output_interrupted", host=self._link.host.name, task=self.task, error=str(error)[:300]
                )
                is_last = is_last and self._is_gone()
            if is_last:
                break
            self._has_ended.wait(AGAIN_SECONDS)
        with self._changed:
            self.is_done = True

    def _is_gone(self) -> bool:
        try:
            return self._link.inspect(self._container) is None
        except (HostAway, Refused):
            return False

    def _read(self, *, follow: bool) -> None:
        """Read the output from its first byte, and keep what was not read before."""
        client = self._link.client(None)
        passed = dict.fromkeys(STREAMS.values(), 0)
        try:
            url = client._url("/containers/{0}/logs", self._container)
            params = {"stdout": 1, "stderr": 1, "follow": int(follow), "timestamps": 0}
            self._response = client._get(url, params=params, stream=True)
            client._raise_for_status(self._response)
            for stream, data in frames(self._response.raw.read):
                if self._closed:
                    return
                self._keep(stream, passed[stream], data)
                passed[stream] += len(data)
        finally:
            if self._response is not None:
                self._response.close()
            client.close()

    def _keep(self, stream: str, at: int, data: bytes) -> None:
        """Keep what is new of these bytes, which begin at this offset of the stream."""
        with self._changed:
            kept = self._kept[stream]
            there = self._begins[stream] + len(kept)
            fresh = data[max(0, there - at) :]
            if not fresh or there > self._cap_bytes:
                return
            self._changed.wait_for(lambda: self._closed or len(kept) < MAX_KEPT_BYTES)
            kept += fresh[: self._cap_bytes - there]
            if there + len(fresh) > self._cap_bytes:
                kept += cap_marker(self._cap_bytes)


def _shut_down(response: Any) -> None:
    """End the connection under a thread that waits for more of it: to close the response would wait for that thread."""
    buffered = getattr(getattr(response.raw, "_fp", None), "fp", None)
    found = getattr(getattr(buffered, "raw", None), "_sock", None)
    if isinstance(found, socket.socket):
        with contextlib.suppress(OSError):
            found.shutdown(socket.SHUT_RDWR)


def frames(read: Any) -> Iterator[tuple[str, bytes]]:
    """The frames of a container's output: (stream, bytes), from a `read(size)` that may return less."""
    while len(header := _exactly(read, _HEADER.size)) == _HEADER.size:
        number, length = _HEADER.unpack(header)
        data = _exactly(read, length)
        if data:
            yield STREAMS.get(number, "stdout"), data
        if len(data) < length:
            return


def _exactly(read: Any, size: int) -> bytes:
    data = b""
    while len(data) < size and (more := read(size - len(data))):
        data += more
    return data
