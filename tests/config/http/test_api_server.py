"""The API's own door: the same middleware and views as everywhere, in threads that keep their connection."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from asgiref.testing import ApplicationCommunicator
from django.db import connection, connections
from django.http import HttpResponse, StreamingHttpResponse
from django.test import Client, override_settings

from config.http import api_server
from config.http.api_server import ApiDoor, PageDoor
from infra.downloads import PulledResponse
from scheduler.models import Job
from tests.scheduler.portal import Portal, a_portal
from tests.support.factories import a_token
from tests.support.roles import all_rights

pytestmark = pytest.mark.django_db(transaction=True)
JOBS = "/api/v1/jobs"


async def elsewhere(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 418, "headers": []})
    await send({"type": "http.response.body", "body": b"elsewhere"})


class Caller:
    """Sends requests through one door."""

    def __init__(self, threads: int = 1) -> None:
        self.door = ApiDoor(elsewhere, threads=threads)

    def post(self, path: str, body: bytes, **headers: str) -> tuple[int, dict[str, str], bytes]:
        return asyncio.run(self._send("POST", path, body, headers))

    def ask(self, method: str, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
        return asyncio.run(self._send(method, path, b"", headers))

    def job(self, token: str, **payload: Any) -> tuple[int, dict[str, str], bytes]:
        body = json.dumps({"command": "true", **payload}).encode()
        return self.post(JOBS, body, authorization=f"Bearer {token}", content_type="application/json")

    async def _send(
        self, method: str, path: str, body: bytes, headers: dict[str, str]
    ) -> tuple[int, dict[str, str], bytes]:
        named = {"host": "localhost", "content-length": str(len(body))} | {
            name.replace("_", "-"): value for name, value in headers.items()
        }
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method,
            "scheme": "http", "path": path.partition("?")[0], "raw_path": path.partition("?")[0].encode(),
            "query_string": path.partition("?")[2].encode(), "root_path": "",
            "headers": [(name.encode(), value.encode()) for name, value in named.items()],
            "client": ("127.0.0.1", 4000), "server": ("localhost", 80),
        }  # fmt: skip
        call = ApplicationCommunicator(self.door, scope)
        half = len(body) // 2
        await call.send_input({"type": "http.request", "body": body[:half], "more_body": True})
        await call.send_input({"type": "http.request", "body": body[half:]})
        start = await call.receive_output(20)
        rest = await call.receive_output(20)
        await call.wait(20)
        return (
            start["status"],
            {name.decode().lower(): value.decode() for name, value in start["headers"]},
            rest["body"],
        )

    def in_its_thread(self, ask: Any) -> Any:
        return self.door._threads.submit(ask).result(20)


@pytest.fixture
def caller(transactional_db: None) -> Iterator[Caller]:
    caller = Caller()
    yield caller
    caller.in_its_thread(connections.close_all)


@pytest.fixture
def portal(transactional_db: None) -> Portal:
    return a_portal()


def server_process() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return int(cursor.fetchone()[0])


def test_a_job_comes_in_with_a_token(caller: Caller, portal: Portal) -> None:
    status, headers, body = caller.job(a_token(portal.cast.owner, "jobs:write"))

    assert status == 201, body
    assert headers["content-type"] == "application/json"
    assert headers["location"] == f"{JOBS}/{json.loads(body)['id']}"
    assert len(headers["x-request-id"]) == 32
    assert Job.objects.get().user == portal.cast.owner


READS = ["/api/v1/jobs", "/api/v1/jobs/0", "/api/v1/nothing", "/api/v1/projects?x=1", "/api/v1/openapi.yaml"]


@pytest.mark.parametrize("path", READS)
@pytest.mark.parametrize("token", ["good", "bad"])
def test_middleware_left_out_for_tokens_shows_in_no_answer(
    caller: Caller, portal: Portal, path: str, token: str
) -> None:
    """But for `Vary: Cookie`, since no session is looked at."""
    plain = a_token(portal.cast.owner, "admin") if token == "good" else "nonsense"
    asked = {
        "authorization": f"Bearer {plain}",
        "x_request_id": "the-same-id",
        "origin": "https://evil.example",
    }

    short = caller.ask("GET", path, **asked)
    caller.door.token_handler = caller.door.handler
    long = caller.ask("GET", path, **asked)

    for _, headers, _ in (short, long):
        headers["content-security-policy"] = re.sub(r"nonce-[\w-]+", "", headers["content-security-policy"])
    assert {name for name in long[1] if long[1][name] != short[1].get(name)} <= {"vary"}
    assert (short[0], short[2]) == (long[0], long[2])


def test_a_token_needs_no_csrf_token_whatever_cookie_comes_with_it(caller: Caller, portal: Portal) -> None:
    browser = Client()
    browser.force_login(portal.cast.lead)
    cookie = f"muster_session={browser.cookies['muster_session'].value}"

    status, _, body = caller.post(
        JOBS, b'{"command": "true"}', cookie=cookie, content_type="application/json",
        authorization=f"Bearer {a_token(portal.cast.owner, 'jobs:write')}",
    )  # fmt: skip

    assert status == 201, body
    assert Job.objects.get().user == portal.cast.owner


@pytest.mark.parametrize(
    ("headers", "token"),
    [
        ([(b"authorization", b"Bearer abc")], "abc"), ([(b"authorization", b"bearer  abc ")], "abc"),
        ([(b"authorization", b"Bearer")], ""), ([(b"authorization", b"Basic abc")], None), ([], None),
        ([(b"authorization", b"Bearer a"), (b"authorization", b"Bearer b")], None),
    ],
)  # fmt: skip
def test_which_requests_are_of_a_token(headers: Any, token: str | None) -> None:
    assert api_server.bearer_token({"headers": headers}) == token


def test_a_session_needs_its_csrf_token(caller: Caller, portal: Portal) -> None:
    browser = Client(enforce_csrf_checks=True)
    browser.force_login(portal.cast.owner)
    cookie = f"muster_session={browser.cookies['muster_session'].value}; muster_csrf={'a' * 32}"
    body = json.dumps({"command": "true"}).encode()

    without = caller.post(JOBS, body, cookie=cookie, content_type="application/json")
    given = caller.post(JOBS, body, cookie=cookie, content_type="application/json", x_csrftoken="a" * 32)

    assert (without[0], given[0]) == (403, 201), (without, given)
    assert Job.objects.count() == 1


def test_what_is_no_request_to_the_api_goes_on(caller: Caller) -> None:
    assert caller.post("/jobs/", b"")[0] == 418
    assert caller.post("/api/v1/nothing", b"")[0] == 404


@pytest.mark.parametrize("path", [JOBS, "/usage/ledger/", "/jobs/7/log/"])
def test_a_long_answer_is_sent_in_pieces_and_never_held_whole(
    caller: Caller, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """However slowly it is read, the thread and its connection are free as soon as the last row was read."""
    line = b"x" * 1000

    def answer(_: Any) -> StreamingHttpResponse:
        return StreamingHttpResponse(line for _ in range(5000))

    monkeypatch.setattr(caller.door.handler, "get_response", answer)

    async def ask() -> list[bytes]:
        scope = {
            "type": "http", "method": "GET", "path": path, "query_string": b"export=csv", "root_path": "",
            "headers": [(b"host", b"localhost")], "client": ("127.0.0.1", 4000), "server": ("localhost", 80),
        }  # fmt: skip
        call = ApplicationCommunicator(caller.door, scope)
        await call.send_input({"type": "http.request", "body": b""})
        assert (await call.receive_output(20))["status"] == 200
        pieces = [await call.receive_output(20)]
        while pieces[-1].get("more_body"):
            pieces.append(await call.receive_output(20))
        await call.wait(20)
        return [piece["body"] for piece in pieces]

    pieces = asyncio.run(ask())

    assert b"".join(pieces) == line * 5000
    assert max(map(len, pieces)) <= api_server.PIECE_BYTES < 5_000_000


def pulled(caller: Caller, monkeypatch: pytest.MonkeyPatch, pieces: Any) -> ApplicationCommunicator:
    """A download of results whose pieces are these, asked for by somebody who has not read anything yet."""
    monkeypatch.setattr(caller.door.handler, "get_response", lambda _: PulledResponse(pieces))
    scope = {
        "type": "http", "method": "GET", "path": "/jobs/7/results/archive/", "query_string": b"", "root_path": "",
        "headers": [(b"host", b"localhost")], "client": ("127.0.0.1", 4000), "server": ("localhost", 80),
    }  # fmt: skip
    return ApplicationCommunicator(caller.door, scope)


def test_a_download_of_results_takes_a_piece_when_the_last_one_was_sent(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    call = pulled(caller, monkeypatch, (made.append(n) or b"%d," % n for n in range(1000)))
    sent: list[bytes] = []

    async def ask() -> None:
        full, reads = asyncio.Event(), asyncio.Event()

        async def send(message: Any) -> None:
            sent.append(message.get("body", b""))
            if len(sent) == 4:
                full.set()
                await reads.wait()  # somebody who reads slowly

        async def receive() -> Any:
            return {"type": "http.request", "body": b""} if not sent else await asyncio.sleep(60)

        download = asyncio.ensure_future(caller.door(call.scope, receive, send))
        await full.wait()
        await asyncio.sleep(0.1)
        assert len(made) <= 4
        reads.set()
        await download

    asyncio.run(ask())

    assert b"".join(sent) == b"".join(b"%d," % n for n in range(1000))


def test_a_download_that_breaks_is_not_ended_as_if_it_were_whole(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pieces() -> Any:
        yield b"first"
        raise OSError("the node has gone")

    call = pulled(caller, monkeypatch, pieces())

    async def ask() -> list[Any]:
        await call.send_input({"type": "http.request", "body": b""})
        got = [await call.receive_output(20), await call.receive_output(20)]
        with pytest.raises(OSError, match="the node has gone"):
            await call.wait(20)
        return got

    start, piece = asyncio.run(ask())

    assert start["status"] == 200
    assert (piece["body"], piece["more_body"]) == (b"first", True)


def test_a_body_that_is_too_large_is_refused_and_not_kept(caller: Caller, portal: Portal) -> None:
    token = a_token(portal.cast.owner, "jobs:write")
    with override_settings(DATA_UPLOAD_MAX_MEMORY_SIZE=1000):
        status, _, body = caller.job(token, script="#!" + "x" * 5000)

    assert (status, json.loads(body)["code"]) == (413, "body-too-large")
    assert not Job.objects.exists()


def test_a_thread_keeps_its_connection_and_replaces_a_dead_one(caller: Caller, portal: Portal) -> None:
    token = a_token(portal.cast.owner, "jobs:write")
    assert caller.job(token)[0] == 201
    first = caller.in_its_thread(server_process)
    assert caller.job(token)[0] == 201
    assert caller.in_its_thread(server_process) == first

    with all_rights(), connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s, 5000)", [first])
        assert cursor.fetchone() == (True,)

    assert caller.job(token)[0] == 201
    assert caller.in_its_thread(server_process) != first


def test_what_fails_leaves_no_transaction_behind(
    caller: Caller, portal: Portal, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = a_token(portal.cast.owner, "jobs:write")

    def break_off(*_: Any, **__: Any) -> None:
        raise RuntimeError("in the middle of a transaction")

    with monkeypatch.context() as broken:
        broken.setattr("accounts.services.audit.record_all", break_off)
        status, headers, body = caller.job(token)
    assert (status, json.loads(body)["code"]) == (500, "internal-error")
    assert headers["content-type"] == "application/problem+json"
    assert not Job.objects.exists()

    assert caller.job(token)[0] == 201


def test_more_pages_than_anybody_would_wait_for_are_refused_at_once(
    portal: Portal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_server, "MOST_PAGES", 3)
    go_on = threading.Event()
    caller = Caller()
    caller.door = PageDoor(threads=1)  # type: ignore[assignment]

    def slow(*_: Any) -> HttpResponse:
        go_on.wait(20)
        return HttpResponse("page")

    monkeypatch.setattr(caller.door.handler, "get_response", slow)

    async def together() -> list[int]:
        waiting = [asyncio.create_task(caller._send("GET", "/", b"", {})) for _ in range(3)]
        await asyncio.sleep(0.2)
        refused = await caller._send("GET", "/", b"", {})
        go_on.set()
        served = [answer[0] for answer in await asyncio.gather(*waiting)]
        after = await caller._send("GET", "/", b"", {})
        assert refused[1]["retry-after"] == "5"
        return [refused[0], *served, after[0]]

    try:
        assert asyncio.run(together()) == [503, 200, 200, 200, 200]
    finally:
        caller.in_its_thread(connections.close_all)


def test_eight_at_once_are_answered(portal: Portal) -> None:
    caller = Caller(threads=api_server.THREADS)
    token = a_token(portal.cast.owner, "jobs:write")
    body = json.dumps({"command": "true"}).encode()
    headers = {"authorization": f"Bearer {token}", "content_type": "application/json"}

    async def together() -> list[int]:
        sent = [caller._send("POST", JOBS, body, headers) for _ in range(24)]
        return [answer[0] for answer in await asyncio.gather(*sent)]

    try:
        assert asyncio.run(together()) == [201] * 24
    finally:
        for _ in range(api_server.THREADS * 4):
            caller.in_its_thread(connections.close_all)
        caller.door._threads.shutdown()
    assert Job.objects.count() == 24
