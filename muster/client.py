"""Calls of the API: JSON both ways, and bytes of any size; a sentence for each failure."""

from __future__ import annotations

import http.client
import ipaddress
import json
import ssl
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPResponse, HTTPSConnection
from typing import IO, Any, Final
from urllib.parse import quote, urlencode, urlsplit

#: How long the portal may be silent, in seconds.
SILENCE_SECONDS: Final = 120.0
#: What is taken into memory at a time.
PIECE_BYTES: Final = 1024 * 1024


class Failed(Exception):
    """The portal refused, or was not reached; the text is for people."""


class Unavailable(Failed):
    """The portal was not reached, or is too busy: the same call may succeed later."""


#: Answers that may be others a moment later.
_LATER: Final = frozenset({429, 502, 503, 504})


class Client:
    """Calls with one token; each has a connection of its own, and none follows a redirect with the token."""

    def __init__(self, url: str, token: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise Failed(f"{url or 'MUSTER_URL'} is no address: write for example https://muster.example.org")
        if parts.scheme == "http" and not _is_loopback(parts.hostname):
            raise Failed(f"The token would be sent to {parts.hostname} without encryption: use https.")
        if not token:
            raise Failed("Set MUSTER_TOKEN to an API token; make one in the portal under API tokens.")
        self._parts, self._token = parts, token

    def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """The answer of one call as JSON, None for one without a body; raises Failed."""
        data = None if body is None else json.dumps(body).encode()
        sent = {"Content-Type": "application/json", **(headers or {})} if data is not None else headers
        with self.open(method, path, query=query, data=data, headers=sent) as answer:
            text = answer.read()
            return json.loads(text) if text else None

    def open(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        data: bytes | IO[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> HTTPResponse:
        """The answer of one call, to be read by the caller; raises Failed."""
        given = {name: value for name, value in (query or {}).items() if value is not None}
        target = f"{self._parts.path.rstrip('/')}/api/v1/{quote(path)}"
        target += f"?{urlencode(given)}" if given else ""
        sent = {"Authorization": f"Bearer {self._token}", "Accept": "*/*", "Connection": "close"}
        sent |= headers or {}
        connection = self._connection()
        try:
            connection.request(method, target, body=data, headers=sent)
            answer = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise Unavailable(f"{self._parts.netloc} was not reached: {error}") from error
        if answer.status >= 300:
            with answer:
                raise (Unavailable if answer.status in _LATER else Failed)(_why(answer))
        return answer

    def _connection(self) -> HTTPConnection:
        host, port = self._parts.hostname or "", self._parts.port
        if self._parts.scheme == "https":
            secure = ssl.create_default_context()
            return HTTPSConnection(host, port, timeout=SILENCE_SECONDS, context=secure)
        return HTTPConnection(host, port, timeout=SILENCE_SECONDS)


def _why(answer: HTTPResponse) -> str:
    try:
        body = json.loads(answer.read(PIECE_BYTES))
        lines = [f"{one['field']}: {one['message']}" for one in body.get("errors", ())]
        if len(lines) != 1 or not lines[0].endswith(str(body["detail"])):  # it would be said twice
            lines.insert(0, str(body["detail"]))
        if body.get("way_out"):
            lines.append(str(body["way_out"]))
        return "\n".join(dict.fromkeys(map(plain, lines)))
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"The portal answered {answer.status} {answer.reason}."


def plain(text: object) -> str:
    """Text for a terminal: what would control it, and bytes of names that are no UTF-8, are written as \\xNN."""
    return "".join(one if one.isprintable() else _written(ord(one)) for one in str(text))


def _written(number: int) -> str:
    if 0xDC80 <= number <= 0xDCFF:  # how Python holds a byte that is no UTF-8
        number -= 0xDC00
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}"


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
