"""The first door of a web process: what is too large is refused unread, and the work ends with its caller.

It stands before every route: pages, the API, agents' calls and downloads. Django looks at a body's size only
when a view reads it, and writes files of any size to disk before it does.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Awaitable, Callable
from html import escape
from http import HTTPStatus
from typing import Any, Final

from django.conf import settings

from config.http.request_ids import ACCEPTABLE
from infra.api.problems import API_PREFIX, PROBLEM_TYPE, problem, too_big
from infra.errors import MusterError
from infra.request_cost import Caller, working_for

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

KIB: Final = 1024
#: Routes that take less than MUSTER_MAX_BODY_BYTES; the first that fits counts.
SMALLER: Final[tuple[tuple[str, int], ...]] = (
    ("/signin/", 64 * KIB),  # sent by people who are not signed in
    ("/admin/login/", 64 * KIB),
    ("/api/v1/agent/register", 1024 * KIB),
)
#: Methods that say what they want in the address.
WITHOUT_BODY: Final = frozenset({"GET", "HEAD", "OPTIONS", "DELETE", "TRACE"})
SMALL_BODY_BYTES: Final = 64 * KIB
#: A request's address and headers; every reader of a query or of a header gets at most this much.
MAX_ADDRESS_BYTES: Final = 48 * KIB
MAX_HEADERS_BYTES: Final = 64 * KIB


def body_limit(method: str, path: str) -> int:
    """The most bytes that a body may have on this route."""
    most = int(settings.MUSTER_MAX_BODY_BYTES)
    if method in WITHOUT_BODY:
        return min(most, SMALL_BODY_BYTES)
    return min(most, next((bytes_ for prefix, bytes_ in SMALLER if path.startswith(prefix)), most))


class FrontDoor:
    """Counts what comes in, and passes it on."""

    def __init__(self, inner: Application) -> None:
        self.inner = inner
        #: Bytes of bodies that this process has read and not yet answered.
        self.held = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.inner(scope, receive, send)
            return
        refusal = _too_long(scope) or self._declared(scope)
        if refusal is not None:
            await _refuse(scope, send, refusal)
            return
        call = _Call(self, receive, send, most=body_limit(scope["method"], scope["path"]))
        try:
            with working_for(call.caller):
                await self.inner(scope, call.receive, call.send)
            if call.refusal is not None and not call.started:
                await _refuse(scope, send, call.refusal)
        finally:
            self.held -= call.size

    def _declared(self, scope: Scope) -> MusterError | None:
        """What the headers alone say against the body."""
        said = [value for name, value in scope["headers"] if name == b"content-length"]
        if not said:
            return None
        if len(said) > 1 or not said[0].isdigit() or len(said[0]) > 18:
            return MusterError(
                message="Content-Length is not a valid length.", code="bad-request", status=400
            )
        most = body_limit(scope["method"], scope["path"])
        return too_big(most) if int(said[0]) > most else self.no_room(int(said[0]))

    def no_room(self, more: int) -> MusterError | None:
        """Bodies wait in memory for their turn, so that all together have a limit too."""
        if not more or self.held + more <= settings.MUSTER_MAX_HELD_BYTES:
            return None
        return MusterError(
            message="This web process has reached its limit of concurrent requests.",
            code="unavailable",
            status=503,
            way_out="Try again in a second, with the same Idempotency-Key.",
            extra={"retry_after_seconds": 1},
        )


class _Call:
    """One request on its way through: how much of its body came, and whether its caller is there."""

    def __init__(self, door: FrontDoor, receive: Receive, send: Send, *, most: int) -> None:
        self._door, self._receive, self._send, self._most = door, receive, send, most
        self.caller = Caller()
        self.size = 0
        self.started = False
        self.refusal: MusterError | None = None

    async def receive(self) -> dict[str, Any]:
        if self.refusal is not None:
            return {"type": "http.disconnect"}
        message = await self._receive()
        if message["type"] == "http.disconnect":
            self.caller.leave()
            return message
        more = len(message.get("body", b""))
        if self.size + more > self._most:
            self.refusal = too_big(self._most)
        else:
            self.refusal = self._door.no_room(more)
        if self.refusal is not None:
            # The reader of the body stops here as if the caller had gone, and this door answers.
            self.caller.leave()
            return {"type": "http.disconnect"}
        self.size += more
        self._door.held += more
        return message

    async def send(self, message: dict[str, Any]) -> None:
        if self.refusal is not None and not self.started:
            return
        self.started = True
        await self._send(message)


def _too_long(scope: Scope) -> MusterError | None:
    address = len(scope.get("raw_path") or b"") + len(scope.get("query_string") or b"")
    if address > MAX_ADDRESS_BYTES:
        return MusterError(
            message=f"The address has {address:,} bytes; at most {MAX_ADDRESS_BYTES:,} are accepted.",
            code="too-large",
            status=414,
            way_out="Send several smaller requests.",
        )
    size = sum(len(name) + len(value) for name, value in scope["headers"])
    if size > MAX_HEADERS_BYTES:
        return MusterError(
            message=f"The headers have {size:,} bytes; at most {MAX_HEADERS_BYTES:,} are accepted.",
            code="too-large",
            status=431,
            way_out="Send fewer headers and cookies.",
        )
    return None


async def _refuse(scope: Scope, send: Send, error: MusterError) -> None:
    """Answer at once and end the connection: what the caller still sends is not read."""
    given = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"").decode(
        "latin-1"
    )
    request_id = given if ACCEPTABLE.fullmatch(given) else uuid.uuid4().hex
    if scope["path"].startswith(API_PREFIX):
        whole = problem(
            None, status=error.status, code=error.code, detail=error.message, way_out=error.way_out
        )
        body, kind = json.dumps({**whole, "request_id": request_id}).encode(), PROBLEM_TYPE
    else:
        title = HTTPStatus(error.status).phrase
        body = (
            f"<!doctype html><title>{title}</title><h1>{title}</h1>"
            f"<p>{escape(error.message)} {escape(error.way_out)}</p>"
        ).encode()
        kind = "text/html; charset=utf-8"
    headers = [
        (b"content-type", kind.encode()),
        (b"content-length", str(len(body)).encode()),
        (b"x-request-id", request_id.encode()),
        (b"x-content-type-options", b"nosniff"),
        (b"connection", b"close"),
    ]
    if (wait := error.extra.get("retry_after_seconds")) is not None:
        headers.append((b"retry-after", str(wait).encode()))
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def watch(receive: Receive, caller: Caller) -> None:
    """Returns when the caller has hung up, and says so; for a door that has read the whole body."""
    while (await receive())["type"] != "http.disconnect":  # noqa: ASYNC110
        await asyncio.sleep(0)  # `receive` is what waits; this lets others run if it does not
    caller.leave()
