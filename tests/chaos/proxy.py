"""A proxy between one agent and the portal, which can lose, hold back, double and reorder what passes.

Bytes of HTTP pass as they come; of a websocket (RFC 6455) each message passes whole, so that one can be doubled, or
pass after the next one.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import struct
import threading
from dataclasses import dataclass, field
from typing import Final

_HEAD_END: Final = b"\r\n\r\n"
_CHUNK: Final = 65536
_TEXT: Final = 0x81  # a whole text message: FIN, opcode 1
#: How long a message that passes after the next one waits for that.
_LATE_SECONDS: Final = 0.3


@dataclass(slots=True)
class Weather:
    """What happens to bytes now. One-way partitions hold one direction; what was held arrives when it is over."""

    to_portal: bool = True
    to_agent: bool = True
    refuses: bool = False
    doubles: bool = False
    reorders: bool = False


@dataclass(eq=False)
class Proxy:
    """Listens on a port of its own, in a thread of its own, for connections of one agent."""

    portal_port: int
    seed: int
    port: int = 0
    weather: Weather = field(default_factory=Weather)
    doubled: int = 0
    reordered: int = 0

    def start(self) -> Proxy:
        self._dice = random.Random(self.seed)
        self._loop = asyncio.new_event_loop()
        self._writers: set[asyncio.StreamWriter] = set()
        ready = threading.Event()
        self._thread = threading.Thread(target=self._run, args=[ready], daemon=True)
        self._thread.start()
        assert ready.wait(10)
        return self

    def stop(self) -> None:
        """Cut all connections, and listen no more."""
        self.weather = Weather(refuses=True)
        self._loop.call_soon_threadsafe(self._cut)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def set(self, weather: Weather) -> None:
        """From now on; open connections are cut where the new weather refuses them."""
        self.weather = weather
        if weather.refuses:
            self._loop.call_soon_threadsafe(self._cut)

    def _run(self, ready: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", self.port))
        self.port = server.sockets[0].getsockname()[1]
        ready.set()
        self._loop.run_forever()
        server.close()
        left = asyncio.all_tasks(self._loop)
        for task in left:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        self._loop.close()

    def _cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.weather.refuses:
            writer.transport.abort()
            return
        try:
            theirs, ours = await asyncio.open_connection("127.0.0.1", self.portal_port)
        except OSError:
            writer.transport.abort()
            return
        both = {writer, ours}
        self._writers |= both
        upgraded = asyncio.Event()
        try:
            ways = [self._pass(reader, ours, True, upgraded), self._pass(theirs, writer, False, upgraded)]
            done, rest = await asyncio.wait(
                [asyncio.ensure_future(way) for way in ways], return_when=asyncio.FIRST_COMPLETED
            )
            for way in rest:
                way.cancel()
            await asyncio.gather(*done, *rest, return_exceptions=True)
        finally:
            self._writers -= both
            for one in both:
                with contextlib.suppress(OSError, RuntimeError):
                    one.close()

    async def _pass(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        to_portal: bool,
        upgraded: asyncio.Event,
    ) -> None:
        """Pass on one direction until it ends; from the answer to an upgrade on, message by message."""
        kept = b""
        while data := await reader.read(_CHUNK):
            await self._until_it_passes(to_portal)
            if not upgraded.is_set():
                if not to_portal and data.startswith(b"HTTP/1.1 101"):
                    head, end, data = data.partition(_HEAD_END)
                    writer.write(head + end)
                    upgraded.set()
                else:
                    writer.write(data)
                    await writer.drain()
                    continue
            kept = await self._pass_messages(kept + data, writer)
            await writer.drain()

    async def _until_it_passes(self, to_portal: bool) -> None:
        while True:  # the weather is set by another thread
            if self.weather.to_portal if to_portal else self.weather.to_agent:
                return
            await asyncio.sleep(0.05)

    async def _pass_messages(self, data: bytes, writer: asyncio.StreamWriter) -> bytes:
        """Pass on the whole messages of these bytes; returns what is left."""
        while (size := frame_size(data)) and len(data) >= size:
            frame, data = data[:size], data[size:]
            if frame[0] == _TEXT and self.weather.reorders and self._dice.random() < 0.5:
                self.reordered += 1
                self._loop.call_later(_LATE_SECONDS, _write, writer, frame)
                continue
            writer.write(frame)
            if frame[0] == _TEXT and self.weather.doubles:
                self.doubled += 1
                writer.write(frame)
        return data


def _write(writer: asyncio.StreamWriter, frame: bytes) -> None:
    if not writer.is_closing():
        writer.write(frame)


def frame_size(data: bytes) -> int:
    """The bytes of the frame that begins here, by its head (RFC 6455, 5.2); 0 while the head is not there."""
    if len(data) < 2:
        return 0
    masked, short = data[1] & 0x80, data[1] & 0x7F
    head = 2 + {126: 2, 127: 8}.get(short, 0)
    if len(data) < head:
        return 0
    size = short
    if short == 126:
        size = struct.unpack(">H", data[2:4])[0]
    elif short == 127:
        size = struct.unpack(">Q", data[2:10])[0]
    return head + (4 if masked else 0) + size
