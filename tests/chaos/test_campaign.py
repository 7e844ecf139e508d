"""The judge of a campaign finds each kind of broken promise; the proxy does to messages what it says."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from tests.chaos.proxy import Proxy, Weather, frame_size
from tests.chaos.verdict import judge_jobs, overfull
from tests.chaos.work import Piece, Trace
from tests.support.stack import wait_until

ONCE = Piece("w0", 1, 0.0, 3, "never")
AGAIN = Piece("w1", 1, 0.0, 0, "on_failure")


def row(name: str, state: str, exit_code: int | None, attempts: int = 1, failure: str = "") -> dict[str, Any]:
    return {
        "name": name,
        "state": state,
        "exit_code": exit_code,
        "attempts": attempts,
        "failure": failure,
        "text": "",
    }


def did(*attempts: int, done: tuple[int, ...] = (), together: int = 0) -> Trace:
    return Trace([(attempt, 7) for attempt in attempts], list(done), together)


FAILED = row("w0", "failed", 3, failure="user-error")
COMPLETED = row("w1", "completed", 0)


def broken(rows: list[dict[str, Any]], once: Trace | None = None, again: Trace | None = None) -> set[str]:
    traces = {"w0": once or did(1, done=(1,)), "w1": again or did(1, done=(1,))}
    return {promise for promise, cases in judge_jobs([ONCE, AGAIN], rows, traces).items() if cases}


def test_what_was_kept_is_not_called_broken() -> None:
    assert broken([FAILED, COMPLETED]) == set()
    # Its node was lost after it had been done, and nobody could know.
    assert broken([FAILED, row("w1", "completed", 0, 2)], again=did(1, 2, done=(1, 2))) == set()
    assert broken([row("w0", "failed", None, failure="node-lost"), COMPLETED], once=did(1)) == set()


@pytest.mark.parametrize(
    ("promise", "rows", "once", "again"),
    [
        ("lost (I4)", [FAILED], None, None),
        ("lost (I4)", [FAILED, COMPLETED], None, did(1)),
        ("made up (I4)", [FAILED, COMPLETED, COMPLETED], None, None),
        ("made up (I4)", [FAILED, COMPLETED, row("w2", "completed", 0)], None, None),
        ("not ended", [FAILED, row("w1", "running", None)], None, None),
        ("wrong exit code", [row("w0", "failed", None, failure="user-error"), COMPLETED], None, None),
        ("wrong exit code", [FAILED, row("w1", "failed", None, failure="node-lost")], None, None),
        ("done twice", [FAILED, row("w1", "completed", 0, 2)], None, did(1, 1, done=(1,))),
        ("done again without need", [FAILED, COMPLETED], None, did(1, 2, done=(1, 2))),
        ("live twice at once (I5)", [FAILED, COMPLETED], None, did(1, done=(1,), together=1)),
    ],
)  # fmt: skip
def test_t40_each_broken_promise_is_found(
    promise: str, rows: list[dict[str, Any]], once: Trace | None, again: Trace | None
) -> None:
    assert broken(rows, once, again) == {promise}


def test_a_job_that_may_not_start_again_begins_once() -> None:
    rows = [row("w0", "failed", 3, 2, "user-error"), COMPLETED]

    assert broken(rows, did(1, 2, done=(2,))) == {"done twice"}


def test_more_than_a_node_has_is_found_and_what_is_released_is_free() -> None:
    nodes = {1: [1000, 100]}

    assert overfull([(1, 1000, 10, 0.0, 5.0), (1, 1000, 10, 5.0, None)], nodes) == []
    assert overfull([(1, 1000, 10, 0.0, 5.1), (1, 1000, 10, 5.0, None)], nodes) != []
    assert overfull([(1, 10, 60, 0.0, None), (1, 10, 60, 1.0, None)], nodes) != []


# ---------------------------------------------------------------- the proxy


@pytest.fixture
def line() -> Iterator[tuple[Proxy, socket.socket, bytearray]]:
    """A proxy, the agent's end of a connection through it, and what has arrived at the portal."""
    listener = socket.create_server(("127.0.0.1", 0))
    arrived = bytearray()

    def serve() -> None:
        portal, _ = listener.accept()
        with portal, suppress(OSError):
            portal.recv(100)
            portal.sendall(b"HTTP/1.1 101 Switching Protocols\r\n\r\n")
            while data := portal.recv(1000):
                arrived.extend(data)

    serving = threading.Thread(target=serve, daemon=True)
    serving.start()
    proxy = Proxy(listener.getsockname()[1], seed=1).start()
    agent = socket.create_connection(("127.0.0.1", proxy.port))
    agent.settimeout(10)
    agent.sendall(b"GET /stream\r\n\r\n")
    assert agent.recv(100).startswith(b"HTTP/1.1 101")
    yield proxy, agent, arrived
    agent.close()
    proxy.stop()
    listener.close()
    serving.join(10)


def message(number: int) -> bytes:
    return bytes([0x81, 0x80 | 1, 0, 0, 0, 0, number])


def test_messages_are_held_doubled_and_reordered(line: tuple[Proxy, socket.socket, bytearray]) -> None:
    proxy, agent, arrived = line
    agent.sendall(message(1)[:3])
    agent.sendall(message(1)[3:])
    wait_until(lambda: bytes(arrived) == message(1))

    proxy.set(Weather(to_portal=False))
    agent.sendall(message(2))
    time.sleep(0.1)
    assert bytes(arrived) == message(1)
    proxy.set(Weather(doubles=True))
    agent.sendall(b"".join(map(message, range(3, 20))))
    wait_until(lambda: message(19) in arrived)
    wait_until(lambda: len(arrived) == 7 * (19 + proxy.doubled))
    assert proxy.doubled

    proxy.set(Weather(reorders=True))
    del arrived[:]
    agent.sendall(b"".join(map(message, range(20, 40))))
    wait_until(lambda: len(arrived) == 7 * 20)
    assert list(arrived[6::7]) != sorted(arrived[6::7])


def test_refused_connections_are_cut(line: tuple[Proxy, socket.socket, bytearray]) -> None:
    proxy, agent, _ = line
    proxy.set(Weather(refuses=True))

    def is_cut() -> bool:
        try:
            return agent.recv(1) == b""
        except OSError:
            return True

    wait_until(is_cut)


def test_the_size_of_a_frame_is_that_of_rfc_6455() -> None:
    assert frame_size(b"\x81") == 0
    assert frame_size(b"\x81\x05hello") == 7
    assert frame_size(b"\x81\x85mask") == 11
    assert frame_size(b"\x81\x7e\x01\x00") == 4 + 256
    assert frame_size(b"\x81\xff" + (70000).to_bytes(8, "big")) == 10 + 4 + 70000
