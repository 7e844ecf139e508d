"""HTTP to the server: one kept connection for each thread, JSON both ways, a sentence for each failure."""

from __future__ import annotations

import http.client
import ipaddress
import json
import socket
import ssl
import time
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import urlsplit

from scheduler.agent.server.websocket import NotUpgraded, WebSocket

CONNECT_SECONDS: Final = 10.0
#: The server pings a websocket every 20 s; one that is silent for so long is lost.
SILENCE_SECONDS: Final = 60.0
MAX_ANSWER_BYTES: Final = 64 * 1024 * 1024


class ServerUnreachable(Exception):
    """No answer, or one that says to come back later."""


class Refused(Exception):
    """The server answered, and its answer to the same call will be the same."""

    def __init__(self, status: int, code: str, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code


class InsecureServer(Exception):
    """The node's key would be sent over a network without encryption."""


class ServerClient:
    """One connection to the server; use one in each thread.

    With `find`, each new connection asks this function for the address; it may raise ServerUnreachable.
    """

    def __init__(
        self,
        url: str = "",
        *,
        find: Callable[[], str] | None = None,
        insecure_ok: bool = False,
        ca_file: str | None = None,
    ) -> None:
        self._find, self._insecure_ok, self._ca_file = find, insecure_ok, ca_file
        self._connection: http.client.HTTPConnection | None = None
        self._url = ""
        self.key = ""
        if find is None:
            self._point_at(url)

    def _point_at(self, url: str) -> None:
        if url == self._url:
            return
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InsecureServer(
                f"{url} is not the address of a server; write for example https://muster.example.org"
            )
        if parts.scheme == "http" and not self._insecure_ok and not is_loopback(parts.hostname):
            raise InsecureServer(
                f"{url} is not encrypted, and this node's key would travel over it. "
                "Use https, or --insecure-ok on a network that nobody else can listen to."
            )
        self._host, self._tls = parts.hostname, parts.scheme == "https"
        self._port = parts.port or (443 if self._tls else 80)
        self._path = parts.path.rstrip("/")
        self._context = ssl.create_default_context(cafile=self._ca_file) if self._tls else None
        self._url = url

    def post(self, path: str, body: Any, *, timeout_seconds: float = 30.0) -> Any:
        """Send a message and return the answer.

        Every message may be sent twice, so a kept connection that the server has closed meanwhile is simply
        tried once more.
        """
        data = json.dumps(body, separators=(",", ":")).encode()
        return self.post_bytes(path, data, timeout_seconds=timeout_seconds)

    def post_bytes(self, path: str, data: bytes, *, timeout_seconds: float = 30.0) -> Any:
        """The same for a message that is JSON already."""
        status, reason, text = self._send(path, data, "application/json", timeout_seconds)
        return _json_of(status, reason, text)

    def put_raw(self, path: str, data: bytes, *, timeout_seconds: float = 120.0) -> Any:
        """Send bytes as they are; the answer is JSON."""
        status, reason, text = self._send(path, data, "application/octet-stream", timeout_seconds)
        return _json_of(status, reason, text)

    def get_raw(self, path: str, body: Any, *, timeout_seconds: float = 120.0) -> bytes:
        """Send a message whose answer is bytes; an error is JSON all the same."""
        data = json.dumps(body, separators=(",", ":")).encode()
        status, reason, text = self._send(path, data, "application/json", timeout_seconds)
        if status != 200:
            _json_of(status, reason, text)
        return text

    def _send(self, path: str, data: bytes, kind: str, timeout_seconds: float) -> tuple[int, str, bytes]:
        kept = self._connection is not None
        try:
            return self._exchange(path, data, kind, timeout_seconds)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            if not kept or isinstance(error, TimeoutError):
                raise ServerUnreachable(f"{type(error).__name__}: {error}") from error
        try:
            return self._exchange(path, data, kind, timeout_seconds)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise ServerUnreachable(f"{type(error).__name__}: {error}") from error

    def _exchange(self, path: str, data: bytes, kind: str, timeout_seconds: float) -> tuple[int, str, bytes]:
        connection = self._connection or self._connect()
        if connection.sock is not None:
            connection.sock.settimeout(timeout_seconds)
        headers = {"Content-Type": kind, "Authorization": f"Bearer {self.key}"}
        connection.request("POST", self._path + path, body=data, headers=headers)
        if connection.sock is not None:
            connection.sock.settimeout(timeout_seconds)
        answer = connection.getresponse()
        return answer.status, answer.reason, answer.read(MAX_ANSWER_BYTES)

    def _connect(self) -> http.client.HTTPConnection:
        self._connection = self._new_connection()
        return self._connection

    def _new_connection(self) -> http.client.HTTPConnection:
        """A connection of its own, open."""
        if self._find is not None:
            self._point_at(self._find())
        connection: http.client.HTTPConnection
        if self._context is not None:
            connection = http.client.HTTPSConnection(
                self._host, self._port, timeout=CONNECT_SECONDS, context=self._context
            )
        else:
            connection = http.client.HTTPConnection(self._host, self._port, timeout=CONNECT_SECONDS)
        connection.connect()
        return connection

    def open_websocket(self, path: str, key: str) -> WebSocket:
        """A websocket to this path, apart from the kept connection; raises NotUpgraded, OSError, ServerUnreachable."""
        connection = self._new_connection().sock
        connection.settimeout(SILENCE_SECONDS)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        websocket = WebSocket(connection, silence_seconds=SILENCE_SECONDS)
        host = f"[{self._host}]" if ":" in self._host else self._host
        try:
            headers = {"Authorization": f"Bearer {key}"}
            websocket.upgrade(f"{host}:{self._port}", self._path + path, headers)
        except (NotUpgraded, OSError):
            websocket.close()
            raise
        return websocket

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _json_of(status: int, reason: str, text: bytes) -> Any:
    if _is_away(status):
        raise ServerUnreachable(f"the server answers {status} {reason}")
    try:
        parsed = json.loads(text) if text else {}
    except ValueError as error:
        raise ServerUnreachable(f"the server answers {status} with something that is no JSON") from error
    return answer_of(status, reason, parsed)


def answer_of(status: int, reason: str, body: Any) -> Any:
    """The body of an answer; raises ServerUnreachable or Refused for one that says no."""
    if _is_away(status):
        raise ServerUnreachable(f"the server answers {status} {reason}".rstrip())
    if status >= 400:
        raise Refused(status, str(body.get("code", "")), str(body.get("detail", reason)))
    return body


def _is_away(status: int) -> bool:
    """Whether the same call may be answered well in a moment."""
    return status >= 500 or status == 429


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def clock_ms() -> int:
    return time.time_ns() // 1_000_000
