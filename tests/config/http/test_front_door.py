"""What comes before every route: bodies, addresses and headers have limits, and work ends with its caller."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import uvicorn
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.test import override_settings

from config.http.api_server import ApiDoor
from config.http.front_door import FrontDoor, body_limit
from infra.request_cost import CallerGone, stop_if_caller_gone
from tests.support.patience import patience

MIB = 2**20


class Server:
    """The portal's own application, or another one, under uvicorn on a port of its own."""

    def __init__(self, application: Any) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        self._server = uvicorn.Server(uvicorn.Config(application, lifespan="off", log_config=None))
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self.socket]}, daemon=True
        )
        self._thread.start()
        until(lambda: self._server.started)

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(patience(20))

    def ask(self, head: str, *pieces: bytes, most: int = 10**9) -> tuple[int, dict[str, Any] | str, int]:
        """Status, body, and how many bytes were sent before the answer came or the connection broke."""
        sent = 0
        with socket.create_connection(("127.0.0.1", self.port), timeout=patience(20)) as sock:
            sock.sendall(head.replace("\n", "\r\n").encode() + b"\r\n\r\n")
            sock.setblocking(False)
            for piece in pieces:
                try:
                    sent += self._push(sock, piece)
                except (BrokenPipeError, ConnectionResetError):
                    break
                if self._answered(sock) or sent >= most:
                    break
            sock.settimeout(patience(20))
            answer = http.client.HTTPResponse(sock)
            answer.begin()
            text = answer.read().decode()
            kind = answer.getheader("content-type") or ""
            return answer.status, json.loads(text) if "json" in kind else text, sent

    def _push(self, sock: socket.socket, piece: bytes) -> int:
        left = memoryview(piece)
        deadline = time.monotonic() + patience(20)
        while left and time.monotonic() < deadline and not self._answered(sock):
            try:
                left = left[sock.send(left) :]
            except BlockingIOError:
                time.sleep(0.001)
        return len(piece) - len(left)

    def _answered(self, sock: socket.socket) -> bool:
        try:
            return bool(sock.recv(1, socket.MSG_PEEK))
        except BlockingIOError:
            return False


def until(true: Callable[[], object], seconds: float = 20) -> None:
    deadline = time.monotonic() + patience(seconds)
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    from config.asgi import application
    from scheduler.api.agent.door import AgentDoor

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(
            AgentDoor, "keep_calls_open", lambda _: None
        )  # it writes to the database by the clock
        server = Server(application)
        yield server
        server.stop()


ROUTES = [
    "/api/v1/jobs", "/api/v1/jobs:bulk", "/api/v1/slurm/sbatch", "/api/v1/agent/sync", "/api/v1/agent/logs",
    "/api/v1/agent/register", "/submit/", "/signin/", "/admin/", "/admin/login/", "/nowhere", "/api/v1/nowhere",
]  # fmt: skip


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("kind", ["application/json", "multipart/form-data; boundary=b"])
def test_a_declared_body_that_is_too_large_is_refused_unread(server: Server, path: str, kind: str) -> None:
    status, body, sent = server.ask(
        f"POST {path} HTTP/1.1\nHost: localhost\nContent-Type: {kind}\nContent-Length: 300000000"
    )
    assert (status, sent) == (413, 0)
    most = body_limit("POST", path)
    named = f"{most // MIB} MiB" if most >= MIB else f"{most // 1024} KiB"
    assert f"larger than {named}" in str(body)
    if path.startswith("/api/"):
        assert isinstance(body, dict)
        assert (body["code"], body["status"]) == ("body-too-large", 413)
        assert body["way_out"]
        assert body["request_id"]


@pytest.mark.parametrize("path", ROUTES)
def test_a_chunked_body_is_refused_as_soon_as_it_passes_the_limit(server: Server, path: str) -> None:
    piece = b"10000\r\n" + b"x" * 65536 + b"\r\n"
    status, body, sent = server.ask(
        f"POST {path} HTTP/1.1\nHost: localhost\nContent-Type: application/json\nTransfer-Encoding: chunked",
        *[piece] * 640,  # 40 MiB
    )
    assert status == 413, body
    # What the kernel's buffers hold on the way was sent too, but not the whole.
    assert sent < body_limit("POST", path) + 16 * MIB


def test_a_method_that_takes_no_body_takes_little(server: Server) -> None:
    for method in ("GET", "DELETE"):
        head = f"{method} /api/v1/jobs/7 HTTP/1.1\nHost: localhost\nContent-Length: {MIB}"
        assert server.ask(head)[0] == 413


def test_an_address_and_headers_have_a_limit(server: Server) -> None:
    long = "x" * 50_000
    assert server.ask(f"GET /api/v1/jobs?name={long} HTTP/1.1\nHost: localhost")[0] == 414
    many = "\n".join(f"X-Forwarded-For: {'1.1.1.1, ' * 1000}" for _ in range(8))
    assert server.ask(f"GET /api/v1/jobs HTTP/1.1\nHost: localhost\n{many}")[0] == 431


def test_all_bodies_together_have_a_limit(server: Server) -> None:
    head = "POST /api/v1/jobs HTTP/1.1\nHost: localhost\nContent-Type: application/json\nContent-Length: 5000"
    with override_settings(MUSTER_MAX_HELD_BYTES=4000):
        status, body, _ = server.ask(head)
    assert (status, body["code"]) == (503, "unavailable")  # type: ignore[index]


def test_work_stops_when_its_caller_hangs_up(monkeypatch: pytest.MonkeyPatch) -> None:
    door = ApiDoor(None, threads=1)  # type: ignore[arg-type]
    began, ended = threading.Event(), threading.Event()
    seen: list[object] = []

    def work(request: HttpRequest) -> HttpResponse:
        began.set()
        try:
            deadline = time.monotonic() + patience(20)
            while time.monotonic() < deadline:
                stop_if_caller_gone()
                time.sleep(0.01)
            seen.append("to its end")
        except CallerGone as gone:
            seen.append(gone)
            raise
        finally:
            ended.set()
        return HttpResponse("late")

    monkeypatch.setattr(door.handler, "get_response", work)
    server = Server(FrontDoor(door))
    try:
        with socket.create_connection(("127.0.0.1", server.port)) as sock:
            sock.sendall(b"GET /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert began.wait(patience(20))
        assert ended.wait(patience(30))
    finally:
        server.stop()
    assert [type(one) for one in seen] == [CallerGone]


def test_a_file_is_no_longer_made_once_nobody_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    door = ApiDoor(None, threads=1)  # type: ignore[arg-type]
    made: list[int] = []
    closed = threading.Event()

    def lines() -> Iterator[bytes]:
        try:
            for number in range(3000):
                made.append(number)
                time.sleep(0.005)
                yield b"a line\n"
        finally:
            closed.set()

    monkeypatch.setattr(door.handler, "get_response", lambda _: StreamingHttpResponse(lines()))
    server = Server(FrontDoor(door))
    try:
        with socket.create_connection(("127.0.0.1", server.port)) as sock:
            sock.sendall(b"GET /api/v1/quotas/ledger?export=csv HTTP/1.1\r\nHost: localhost\r\n\r\n")
            until(lambda: made)
        assert closed.wait(patience(30))
    finally:
        server.stop()
    assert len(made) < 3000


def test_a_request_whose_caller_left_in_the_queue_is_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    door = ApiDoor(None, threads=1)  # type: ignore[arg-type]
    free, begun = threading.Event(), []

    def work(request: HttpRequest) -> HttpResponse:
        begun.append(request.path)
        free.wait(patience(20))
        return HttpResponse("done")

    monkeypatch.setattr(door.handler, "get_response", work)
    server = Server(FrontDoor(door))
    try:
        first = socket.create_connection(("127.0.0.1", server.port))
        first.sendall(b"GET /api/first HTTP/1.1\r\nHost: localhost\r\n\r\n")
        until(lambda: begun)
        with socket.create_connection(("127.0.0.1", server.port)) as second:
            second.sendall(b"GET /api/second HTTP/1.1\r\nHost: localhost\r\n\r\n")
            until(lambda: door._threads._work_queue.qsize() == 1)
        time.sleep(0.5)
        free.set()
        assert first.recv(100).startswith(b"HTTP/1.1 200")
        until(lambda: door._threads._work_queue.qsize() == 0)
        first.close()
    finally:
        free.set()
        server.stop()
        door._threads.shutdown(wait=True)
    assert begun == ["/api/first"]


def test_other_requests_on_the_connection_go_on(server: Server) -> None:
    """A refusal ends its own connection only, and an ordinary request is passed on as it came."""
    head = "POST /api/v1/nowhere HTTP/1.1\nHost: localhost\nContent-Type: application/json\nContent-Length: 2"
    status, body, _ = server.ask(head, b"{}")
    assert (status, body["code"]) == (404, "not-found")  # type: ignore[index]


def test_what_is_held_is_given_back() -> None:
    async def inner(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        raise RuntimeError("in the middle")

    door = FrontDoor(inner)

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"x" * 1000}

    scope = {"type": "http", "method": "POST", "path": "/api/", "headers": []}
    with pytest.raises(RuntimeError):
        asyncio.run(door(scope, receive, None))  # type: ignore[arg-type]
    assert door.held == 0
