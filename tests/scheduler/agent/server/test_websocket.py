"""The agent's half of a websocket, against another implementation of the protocol."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from websockets.sync.server import ServerConnection, serve

from scheduler.agent.server.websocket import NotUpgraded, WebSocket

Handler = Callable[[ServerConnection], None]


@contextmanager
def a_server(handler: Handler, **options: Any) -> Iterator[int]:
    with serve(handler, "127.0.0.1", 0, **options) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.socket.getsockname()[1]
        finally:
            server.shutdown()
            thread.join(10)


@contextmanager
def opened(port: int) -> Iterator[WebSocket]:
    connection = socket.create_connection(("127.0.0.1", port), timeout=20)
    websocket = WebSocket(connection, silence_seconds=20.0)
    try:
        websocket.upgrade("127.0.0.1", "/here", {"Authorization": "Bearer k"})
        yield websocket
    finally:
        websocket.close()


def echo(connection: ServerConnection) -> None:
    for message in connection:
        connection.send(message)


@pytest.mark.parametrize("size", [0, 1, 125, 126, 127, 65_535, 65_536, 700_000])
def test_messages_of_every_length_come_back_as_they_were(size: int) -> None:
    message = ("ä0123456789" * (size // 11 + 1)).encode()[:size].decode(errors="ignore").encode()

    with a_server(echo) as port, opened(port) as websocket:
        websocket.send(message)
        assert websocket.receive() == message


def test_a_message_in_pieces_is_one_and_pings_are_answered_meanwhile() -> None:
    ponged = threading.Event()

    def handler(connection: ServerConnection) -> None:
        pong = connection.ping()
        connection.send(iter(["one, ", "two, ", "three"]))
        connection.recv()
        if pong.wait(20):
            ponged.set()

    with a_server(handler) as port, opened(port) as websocket:
        assert websocket.receive() == b"one, two, three"
        websocket.send(b"done")
        assert ponged.wait(20)


def test_the_key_goes_with_the_request_and_a_refusal_is_said() -> None:
    seen: list[str] = []

    def refuse(connection: ServerConnection, request: Any) -> Any:
        seen.append(request.headers["Authorization"])
        return connection.respond(403, "no")

    with a_server(echo, process_request=refuse) as port, pytest.raises(NotUpgraded) as refused:
        with opened(port):
            pass

    assert (seen, refused.value.status) == (["Bearer k"], 403)


def test_a_server_that_closes_or_is_silent_is_an_error() -> None:
    with a_server(lambda connection: connection.close(4401)) as port, opened(port) as websocket:
        with pytest.raises(OSError, match="4401"):
            websocket.receive()
    quiet = threading.Event()

    def wait(_: ServerConnection) -> None:
        quiet.wait(20)

    with a_server(wait, ping_interval=None) as port, opened(port) as websocket:
        websocket._silence_seconds = 0.05
        with pytest.raises(TimeoutError):
            websocket.receive()
        quiet.set()


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 101 Switching Protocols\r\nSec-WebSocket-Accept: bm9uc2Vuc2U=\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
        b"HTTP/1.1 101 " + b"x" * 70_000,
        b"",
    ],
)
def test_what_is_no_websocket_is_an_error(answer: bytes) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(answer)
        theirs.shutdown(socket.SHUT_WR)
        with pytest.raises(OSError):
            WebSocket(ours, silence_seconds=20).upgrade("h", "/", {})
