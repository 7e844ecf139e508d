"""Clients of the live socket: in this process by the ASGI interface, and over TCP against a real uvicorn."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from asgiref.testing import ApplicationCommunicator
from channels.db import database_sync_to_async
from django.test import Client

from accounts.models import User
from config.asgi import application
from tests.support.live_mirror import Mirror, Outcome
from tests.support.patience import patience

ORIGIN = b"http://testserver"
ABOUT_TOPICS = ("snapshot", "patch", "dirty", "pong")

rows = database_sync_to_async


def scope_of(headers: list[tuple[bytes, bytes]]) -> dict[str, Any]:
    """What a server says of a socket that is being opened."""
    return {
        "type": "websocket",
        "path": "/ws/live/",
        "query_string": b"",
        "scheme": "ws",
        "headers": [(b"host", b"testserver"), *headers],
        "subprotocols": [],
        "client": ("127.0.0.1", 40_000),
    }


class LiveClient:
    """Speaks the protocol, and keeps a mirror of each topic as a page does."""

    def __init__(self, headers: list[tuple[bytes, bytes]]) -> None:
        self.socket = ApplicationCommunicator(application, scope_of(headers))
        self.cookie = dict(headers).get(b"cookie", b"").decode()
        self.mirrors: dict[str, Mirror] = {}

    async def open(self) -> dict[str, Any]:
        assert await self.knock() == {"type": "websocket.accept"}
        return await self.hear("hello")

    async def knock(self) -> dict[str, Any]:
        """Open the socket: what the server answers first."""
        await self.socket.send_input({"type": "websocket.connect"})
        return await self.socket.receive_output(timeout=patience(10))

    async def say(self, **request: Any) -> None:
        await self.send_text(json.dumps(request))

    async def send_text(self, text: str) -> None:
        await self.socket.send_input({"type": "websocket.receive", "text": text})

    async def hear(self, op: str | None = None, within: float = 6) -> dict[str, Any]:
        """The next message; when `op` is given, it must be that."""
        event = await self.socket.receive_output(timeout=patience(within))
        assert event["type"] == "websocket.send", event
        message = json.loads(event["text"])
        assert message["v"] == 1
        if op is not None:
            assert message["op"] == op, message
        return message

    async def hear_nothing(self, seconds: float = 1.5) -> None:
        assert await self.socket.receive_nothing(timeout=seconds)

    async def follow(self, topic: str, **more: Any) -> dict[str, Any]:
        """Subscribe, and the snapshot."""
        mirror = self.mirrors.setdefault(topic, Mirror(topic))
        await self.say(**(mirror.ask() | more))
        message = await self.hear()
        if message["op"] == "snapshot":
            mirror.take(message)
        return message

    async def until(self, topic: str, holds: Callable[[dict[str, Any]], bool], within: float = 12) -> None:
        """Merge what comes, asking again where the rule says so, until the page would show it."""
        mirror = self.mirrors[topic]
        while not holds(mirror.rows):
            message = await self.hear(within=within)
            if message["op"] in ABOUT_TOPICS and mirror.take(message) == Outcome.RESYNC:
                await self.say(**mirror.ask())

    async def closed(self, within: float = 5) -> int:
        """The code it is closed with, whatever else is said before."""
        while True:
            event = await self.socket.receive_output(timeout=patience(within))
            if event["type"] == "websocket.close":
                return event["code"]

    async def close(self) -> None:
        await self.socket.send_input({"type": "websocket.disconnect", "code": 1000})
        await self.socket.wait(timeout=patience(5))


@rows
def cookie_of(user: User) -> bytes:
    """The cookie of a new session of this person."""
    browser = Client()
    browser.force_login(user)
    return f"muster_session={browser.cookies['muster_session'].value}".encode()


Connect = Callable[..., Awaitable[LiveClient]]


@pytest.fixture
async def connect(transactional_db: None) -> AsyncIterator[Connect]:
    """`await connect(alice)` by session, `await connect(token=plain)` by token."""
    opened: list[LiveClient] = []

    async def _connect(
        user: User | None = None, *, token: str | None = None, cookie: bytes | None = None
    ) -> LiveClient:
        headers = []
        if user is not None or cookie is not None:
            headers = [(b"origin", ORIGIN), (b"cookie", cookie or await cookie_of(user))]
        if token is not None:
            headers.append((b"authorization", f"Bearer {token}".encode()))
        client = LiveClient(headers)
        opened.append(client)
        await client.open()
        return client

    yield _connect
    for client in opened:
        if not client.socket.future.done():
            await client.close()
