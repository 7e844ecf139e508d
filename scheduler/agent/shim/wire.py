"""JSON lines over a socket that never blocks."""

from __future__ import annotations

import json
import socket
from typing import Any, Final

#: The other side counts as gone when this much is unread.
MAX_BACKLOG_BYTES: Final = 32 * 1024 * 1024


#: `json.dumps` with separators makes an encoder for each call.
_encode: Final = json.JSONEncoder(separators=(",", ":")).encode


def as_line(message: dict[str, Any]) -> bytes:
    """A message as a line of JSON."""
    return _encode(message).encode() + b"\n"


class Wire:
    """One connection; bytes that cannot be sent at once are kept, and sent with the next message."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.connection.setblocking(False)
        self._in = bytearray()
        self._out = bytearray()

    def fileno(self) -> int:
        return self.connection.fileno()

    def close(self) -> None:
        self.connection.close()

    @property
    def backlog(self) -> int:
        return len(self._out)

    def send(self, *messages: dict[str, Any]) -> bool:
        """Send the backlog and these messages; False when the other side is gone or too far behind."""
        for message in messages:
            self._out += as_line(message)
        try:
            while self._out:
                sent = self.connection.send(self._out)
                del self._out[:sent]
        except BlockingIOError:
            return len(self._out) < MAX_BACKLOG_BYTES
        except OSError:
            return False
        return True

    def receive(self) -> list[dict[str, Any]] | None:
        """Every whole message that has arrived; None when the other side is gone."""
        try:
            data = self.connection.recv(1024 * 1024)
        except BlockingIOError:
            return []
        except OSError:
            return None
        if not data:
            return None
        self._in += data
        *lines, rest = self._in.split(b"\n")
        self._in = bytearray(rest)
        return [json.loads(line) for line in lines if line]
