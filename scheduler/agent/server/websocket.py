"""The client's half of a websocket (RFC 6455): text messages both ways over a connected socket.

Standard library only, as all of the agent. One thread may receive while others send.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import select
import socket
import ssl
import struct
import threading
from collections.abc import Mapping
from typing import Final

#: RFC 6455, 1.3: what a server has to add to the key before it hashes it.
_MAGIC: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_CONTINUATION, _TEXT, _CLOSE, _PING, _PONG = 0x0, 0x1, 0x8, 0x9, 0xA
_FIN: Final = 0x80
_MASKED: Final = 0x80
_MAX_HEAD_BYTES: Final = 64 * 1024
MAX_MESSAGE_BYTES: Final = 64 * 1024 * 1024


class NotUpgraded(Exception):
    """The server, or a proxy before it, answered with this HTTP status and not with a websocket."""

    def __init__(self, status: int) -> None:
        super().__init__(f"HTTP {status}")
        self.status = status


class Closed(OSError):
    """The other side has closed the websocket."""


class WebSocket:
    """An open websocket; `OSError` says that the connection is lost."""

    def __init__(self, connection: socket.socket, *, silence_seconds: float) -> None:
        """`silence_seconds` after the last byte the connection counts as lost: servers send pings."""
        self._socket, self._silence_seconds = connection, silence_seconds
        # OpenSSL may not read and write one connection in two threads at once.
        self._using = threading.Lock()
        self._buffer = bytearray()

    # ------------------------------------------------------------ begin and end

    def upgrade(self, host: str, path: str, headers: Mapping[str, str]) -> None:
        """Ask for the websocket at this path; raises NotUpgraded where there is none."""
        key = base64.b64encode(os.urandom(16))
        asked = {
            "Host": host, "Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Key": key.decode(), **headers,
        }  # fmt: skip
        lines = [f"GET {path} HTTP/1.1", *(f"{name}: {value}" for name, value in asked.items()), "", ""]
        self._socket.sendall("\r\n".join(lines).encode("latin-1"))
        while b"\r\n\r\n" not in self._buffer:
            if len(self._buffer) > _MAX_HEAD_BYTES:
                raise OSError("the answer to the upgrade is too long")
            self._fill()
        head, _, rest = bytes(self._buffer).partition(b"\r\n\r\n")
        self._buffer = bytearray(rest)
        status_line, *fields = head.decode("latin-1").split("\r\n")
        words = status_line.split(" ", 2)
        if len(words) < 2 or not words[1].isdigit():
            raise OSError("the server does not speak HTTP")
        if words[1] != "101":
            raise NotUpgraded(int(words[1]))
        answers = {
            name.lower(): value.strip() for name, _, value in (field.partition(":") for field in fields)
        }
        wanted = base64.b64encode(hashlib.sha1(key + _MAGIC, usedforsecurity=False).digest()).decode()
        if answers.get("sec-websocket-accept") != wanted:
            raise OSError("the answer to the upgrade is that to another question")

    def close(self) -> None:
        """Hang up: a thread that receives gets OSError."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    # ------------------------------------------------------------ messages

    def send(self, data: bytes) -> None:
        """Send a text message; `data` is UTF-8."""
        self._send_frame(_TEXT, data)

    def receive(self) -> bytes:
        """The next text message; answers pings meanwhile."""
        parts: list[bytes] = []
        size = 0
        while True:
            kind, final, data = self._frame()
            if kind == _PING:
                self._send_frame(_PONG, data)
            elif kind == _CLOSE:
                code = struct.unpack(">H", data[:2])[0] if len(data) >= 2 else 0
                raise Closed(f"the server closed the stream ({code})")
            elif kind in (_TEXT, _CONTINUATION):
                size += len(data)
                if size > MAX_MESSAGE_BYTES:
                    raise OSError(f"a message has more than {MAX_MESSAGE_BYTES} bytes")
                parts.append(data)
                if final:
                    return b"".join(parts)

    def _send_frame(self, kind: int, data: bytes) -> None:
        """RFC 6455, 5.2: what a client sends is masked."""
        size = len(data)
        if size < 126:
            head = struct.pack(">BB", _FIN | kind, _MASKED | size)
        elif size < 2**16:
            head = struct.pack(">BBH", _FIN | kind, _MASKED | 126, size)
        else:
            head = struct.pack(">BBQ", _FIN | kind, _MASKED | 127, size)
        mask = os.urandom(4)
        with self._using:
            self._socket.sendall(head + mask + _masked(data, mask))

    def _frame(self) -> tuple[int, bool, bytes]:
        first, second = self._take(2)
        size = second & 0x7F
        if second & _MASKED:
            raise OSError("the server masks its frames")
        if size == 126:
            (size,) = struct.unpack(">H", self._take(2))
        elif size == 127:
            (size,) = struct.unpack(">Q", self._take(8))
        if size > MAX_MESSAGE_BYTES:
            raise OSError(f"a frame has {size} bytes")
        return first & 0x0F, bool(first & _FIN), self._take(size)

    def _take(self, size: int) -> bytes:
        while len(self._buffer) < size:
            self._fill()
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        return data

    def _fill(self) -> None:
        """Read what is there, once something is."""
        pending = isinstance(self._socket, ssl.SSLSocket) and self._socket.pending()
        if not pending:
            poll = select.poll()
            poll.register(self._socket, select.POLLIN)
            if not poll.poll(self._silence_seconds * 1000):
                raise TimeoutError(f"nothing came for {self._silence_seconds:g} s")
        with self._using:
            data = self._socket.recv(256 * 1024)
        if not data:
            raise Closed("the server hung up")
        self._buffer += data


def _masked(data: bytes, mask: bytes) -> bytes:
    """RFC 6455, 5.3: each byte with one of the four of the mask; here as one long number."""
    size = len(data)
    repeated = (mask * (size // 4 + 1))[:size]
    return (int.from_bytes(data, "little") ^ int.from_bytes(repeated, "little")).to_bytes(size, "little")
