"""One stream for all calls of an agent: answers find their calls, and what happens when it breaks."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from scheduler.agent.protocol import STREAM_BYTES
from scheduler.agent.server.client import Refused, ServerUnreachable
from scheduler.agent.server.stream import WITHOUT_SECONDS, Stream, StreamClient
from scheduler.agent.server.websocket import Closed, NotUpgraded


class Socket:
    """The other end is a function: what it gives for a message comes back; None hangs up."""

    def __init__(self, answer: Callable[[dict[str, Any]], dict[str, Any] | None]) -> None:
        self.answer = answer
        self._news = threading.Condition()
        self._messages: list[bytes] = []
        self._closed = False

    def send(self, data: bytes) -> None:
        if self._closed:
            raise OSError("closed")
        answer = self.answer(json.loads(data))
        with self._news:
            if answer is None:
                self._closed = True
            elif answer:
                self._messages.append(json.dumps(answer).encode())
            self._news.notify_all()

    def give(self, answer: dict[str, Any]) -> None:
        with self._news:
            self._messages.append(json.dumps(answer).encode())
            self._news.notify_all()

    def receive(self) -> bytes:
        with self._news:
            self._news.wait_for(lambda: self._messages or self._closed)
            if not self._messages:
                raise Closed("hung up")
            return self._messages.pop(0)

    def close(self) -> None:
        with self._news:
            self._closed = True
            self._news.notify_all()


def good(message: dict[str, Any]) -> dict[str, Any]:
    return {"id": message["id"], "status": 200, "body": {"call": message["call"], "of": message["body"]}}


class Opener:
    """Opens sockets in turn, or raises what is in its place."""

    def __init__(self, *sockets: Socket | Exception) -> None:
        self.sockets = list(sockets)
        self.keys: list[str] = []

    def __call__(self, key: str) -> Any:
        self.keys.append(key)
        found = self.sockets.pop(0)
        if isinstance(found, Exception):
            raise found
        return found


def client_of(opener: Opener, **options: Any) -> StreamClient:
    client = StreamClient(Stream(opener, **options), url="http://127.0.0.1:1")
    client.key = "k1"
    return client


def test_calls_of_all_threads_share_one_stream_and_each_gets_its_answer() -> None:
    """Also when the first call is answered last."""
    socket: Socket

    def answer(message: dict[str, Any]) -> dict[str, Any]:
        if message["body"]["n"] == 0:
            return {}
        if message["body"]["n"] == 3:
            socket.give(good({"id": 1, "call": "sync", "body": {"n": 0}}))
        return good(message)

    socket = Socket(answer)
    opener = Opener(socket)
    stream = Stream(opener)
    with ThreadPoolExecutor(4) as threads:

        def call(n: int) -> Any:
            answer = stream.call("k", "sync", b'{"n":%d}' % n, timeout_seconds=20)
            return answer["body"]["of"]["n"]

        held = threads.submit(call, 0)
        while not opener.keys or stream._link is None or not stream._link._waiting:
            pass
        others = [threads.submit(call, n).result(20) for n in (1, 2, 3)]
        assert (held.result(20), others, opener.keys) == (0, [1, 2, 3], ["k"])
    stream.close()


def test_a_call_whose_stream_broke_is_sent_again_on_a_new_one() -> None:
    seen: list[str] = []

    def first(message: dict[str, Any]) -> dict[str, Any] | None:
        seen.append(message["call"])
        return good(message) if len(seen) == 1 else None

    opener = Opener(Socket(first), Socket(good))
    client = client_of(opener)

    assert client.post("/api/v1/agent/sync", {})["call"] == "sync"
    assert client.post("/api/v1/agent/logs", {"a": 1}) == {"call": "logs", "of": {"a": 1}}
    assert (seen, opener.keys) == (["sync", "logs"], ["k1", "k1"])


def test_a_server_that_hangs_up_at_once_is_unreachable() -> None:
    client = client_of(Opener(Socket(lambda _: None)))

    with pytest.raises(ServerUnreachable):
        client.post("/api/v1/agent/sync", {})


def test_no_answer_in_time_is_no_answer() -> None:
    opener = Opener(Socket(lambda _: {}), Socket(good))
    client = client_of(opener)

    with pytest.raises(ServerUnreachable, match="no answer in time"):
        client.post("/api/v1/agent/sync", {}, timeout_seconds=0.05)

    assert client.post("/api/v1/agent/sync", {})["call"] == "sync"


@pytest.mark.parametrize(("status", "error"), [(401, Refused), (422, Refused), (503, ServerUnreachable)])
def test_an_answer_that_says_no_is_the_error_that_it_is_by_http(status: int, error: type[Exception]) -> None:
    body = {"code": "some-code", "detail": "Because."}
    client = client_of(Opener(Socket(lambda m: {"id": m["id"], "status": status, "body": body})))

    with pytest.raises(error) as raised:
        client.post("/api/v1/agent/sync", {})

    if isinstance(raised.value, Refused):
        assert (raised.value.status, raised.value.code, str(raised.value)) == (
            status,
            "some-code",
            "Because.",
        )


def test_without_a_websocket_calls_go_by_http_for_some_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    """An older server, or a proxy that passes none on; a new key is tried at once."""
    now = [0.0]
    opener = Opener(NotUpgraded(404), NotUpgraded(404), Socket(good))
    client = client_of(opener, clock=lambda: now[0])
    by_http: list[str] = []
    monkeypatch.setattr(client, "post_bytes", lambda path, data, **_: by_http.append(path) or "by HTTP")

    assert client.post("/api/v1/agent/sync", {}) == "by HTTP"
    assert client.post("/api/v1/agent/logs", {}) == "by HTTP"
    client.key = "k2"
    assert client.post("/api/v1/agent/sync", {}) == "by HTTP"
    assert opener.keys == ["k1", "k2"]
    now[0] += WITHOUT_SECONDS
    assert client.post("/api/v1/agent/sync", {})["call"] == "sync"
    assert by_http == ["/api/v1/agent/sync", "/api/v1/agent/logs", "/api/v1/agent/sync"]


def test_a_large_message_does_not_delay_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    client = client_of(Opener(Socket(good)))
    monkeypatch.setattr(client, "post_bytes", lambda path, data, **_: len(data))

    assert client.post("/api/v1/agent/logs", {"data": "x" * STREAM_BYTES}) > STREAM_BYTES
    assert client.post("/api/v1/agent/logs", {"data": "x"})["call"] == "logs"


def test_a_client_without_a_key_registers_by_http(monkeypatch: pytest.MonkeyPatch) -> None:
    client = client_of(Opener())
    client.key = ""
    monkeypatch.setattr(client, "post_bytes", lambda path, data, **_: path)

    assert client.post("/api/v1/agent/register", {}) == "/api/v1/agent/register"


def test_another_key_opens_another_stream() -> None:
    old, new = Socket(good), Socket(good)
    opener = Opener(old, new)
    client = client_of(opener)

    client.post("/api/v1/agent/sync", {})
    client.key = "k2"
    client.post("/api/v1/agent/sync", {})

    assert opener.keys == ["k1", "k2"]
    assert old._closed
    assert not new._closed
