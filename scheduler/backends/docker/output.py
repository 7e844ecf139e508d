"""The output of containers: one thread for each follows it, and keeps what the server does not have yet."""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator, Mapping
from typing import Any, Final

import structlog

from scheduler.agent.protocol import CHUNK_BYTES
from scheduler.backends.base import Output
from scheduler.backends.docker.host_link import HostLink

log = structlog.get_logger(__name__)

STREAMS: Final = {1: "stdout", 2: "stderr"}
#: The beginning of a frame of Docker's: the stream, three empty bytes, and the length.
_HEADER: Final = struct.Struct(">BxxxL")
#: What a follower keeps at most; it reads no further until some of it is stored.
MAX_KEPT_BYTES: Final = 4 * 1024 * 1024


class OutputFollower:
    """Follows one container from its first byte on; `stored` is called with what the server has of each stream."""

    def __init__(self, link: HostLink, container: str, task: int, epoch: int) -> None:
        self.task, self.epoch = task, epoch
        self._link, self._container = link, container
        self._changed = threading.Condition()
        self._kept = {stream: bytearray() for stream in STREAMS.values()}
        self._begins = dict.fromkeys(STREAMS.values(), 0)
        self._closed = False
        #: The container has ended and was read to its end; or it cannot be read any more.
        self.is_done = False
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

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        response = self._response
        if response is not None:
            response.close()

    # ------------------------------------------------------------ the thread

    def _run(self) -> None:
        try:
            self._follow()
        except Exception as error:
            # What the container writes after a connection that broke is read by the next follower, from the start.
            log.warning("output_not_followed", host=self._link.host.name, task=self.task, error=str(error)[:300])
        with self._changed:
            self.is_done = True

    def _follow(self) -> None:
        client = self._link.client(None)
        try:
            url = client._url("/containers/{0}/logs", self._container)
            params = {"stdout": 1, "stderr": 1, "follow": 1, "timestamps": 0}
            self._response = client._get(url, params=params, stream=True)
            client._raise_for_status(self._response)
            for stream, data in frames(self._response.raw.read):
                self._keep(stream, data)
                if self._closed:
                    return
        finally:
            client.close()

    def _keep(self, stream: str, data: bytes) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._kept[stream]) < MAX_KEPT_BYTES)
            self._kept[stream] += data


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
