"""An agent's stream to the server: the calls of HTTP over one connection, for as long as its key is valid."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from scheduler.agent.protocol import STREAM_PATH
from scheduler.agent.server.client import ServerClient
from scheduler.agent.server.websocket import NotUpgraded, WebSocket
from scheduler.api.agent.stream import KEY_REPLACED, MAX_CALLS
from scheduler.models import NodeHeartbeat
from scheduler.services.cluster import heartbeats
from scheduler.services.cluster.nodes import register_node
from tests.scheduler.agent.test_door import MACHINE, SYNC, a_node, a_running_task
from tests.support.agents import AgentProcess, Server, World, wait_for
from tests.support.patience import patience

pytestmark = pytest.mark.django_db(transaction=True)


class Wire:
    """A stream, call by call."""

    def __init__(self, websocket: WebSocket) -> None:
        self.websocket = websocket
        self.number = 0

    def send(self, call: Any, body: Any) -> int:
        self.number += 1
        self.websocket.send(json.dumps({"id": self.number, "call": call, "body": body}).encode())
        return self.number

    def answer(self) -> tuple[int, int, dict[str, Any]]:
        """The next answer: to which call, its status, its body."""
        message = json.loads(self.websocket.receive())
        return message["id"], message["status"], message["body"]

    def ask(self, call: Any, body: Any) -> tuple[int, dict[str, Any]]:
        number = self.send(call, body)
        found, status, answer = self.answer()
        assert found == number
        return status, answer


@contextmanager
def a_wire(server: Server, key: str) -> Iterator[Wire]:
    websocket = ServerClient(server.url).open_websocket(STREAM_PATH, key)
    try:
        yield Wire(websocket)
    finally:
        websocket.close()


def by_http(server: Server, call: str, body: Any, key: str) -> tuple[int, dict[str, Any]]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    try:
        headers = {"Authorization": f"Bearer {key}"}
        connection.request("POST", f"/api/v1/agent/{call}", json.dumps(body), headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def test_a_call_has_the_same_answer_as_by_http(world: World, server: Server) -> None:
    node, key = a_node(world)
    task = a_running_task(world, node)
    calls: list[tuple[str, Any]] = [
        ("sync", SYNC | {"known": [[task.pk, 1], [99, 1]]}),
        ("sync", SYNC | {"reports": [{"task": 99, "epoch": 1, "state": "lost"}]}),
        ("sync", SYNC | {"protocol": 99}),
        ("sync", SYNC | {"known": "x"}),
        ("logs", {"chunks": [], "ask": [[task.pk, 1]]}),
        ("nothing", {}),
    ]

    with a_wire(server, key) as wire:
        for call, body in calls:
            status, answer = wire.ask(call, body)
            other_status, other = by_http(server, call, body, key)
            assert status == other_status, call
            assert call == "nothing" or answer == other, call


def test_who_has_no_valid_key_is_not_let_in(world: World, server: Server) -> None:
    _, key = a_node(world)

    for wrong in ("", "nonsense", key[:-4] + "AAAA", world.join_token()):
        with pytest.raises(NotUpgraded), a_wire(server, wrong):
            pass


def test_nonsense_is_refused_and_the_stream_goes_on(world: World, server: Server) -> None:
    _, key = a_node(world)

    with a_wire(server, key) as wire:
        for data, status in (
            (b"{", 400),
            (b"[]", 422),
            (b'{"id":1,"call":"sync","body":3}', 422),
            (b"{}", 422),
        ):
            wire.websocket.send(data)
            assert wire.answer()[1] == status, data
        assert wire.ask({"a": 1}, {})[0] == 404
        assert wire.ask("register", {})[0] == 404
        assert wire.ask("sync", SYNC)[0] == 200


def test_a_waiting_call_delays_no_other_and_is_answered_when_there_is_work(
    world: World, server: Server
) -> None:
    _, key = a_node(world)

    with a_wire(server, key) as wire:
        waiting = wire.send("sync", SYNC | {"wait_seconds": 20})
        assert wire.ask("logs", {"chunks": [], "ask": []})[0] == 200
        world.submit("true")
        world.plan()
        number, status, answer = wire.answer()

    assert (number, status, len(answer["assignments"])) == (waiting, 200, 1)


def test_a_mistake_of_ours_ends_the_call_and_not_the_stream(
    world: World, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, key = a_node(world)

    def broken(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr("scheduler.services.jobs.logs.append_chunks", broken)
    with a_wire(server, key) as wire:
        assert wire.ask("logs", {"chunks": [], "ask": []})[0] == 500
        assert wire.ask("sync", SYNC)[0] == 200


def test_more_calls_than_an_agent_has_are_refused(world: World, server: Server) -> None:
    _, key = a_node(world)

    with a_wire(server, key) as wire:
        held = [wire.send("sync", SYNC | {"wait_seconds": 2}) for _ in range(MAX_CALLS)]
        refused = wire.send("sync", SYNC)
        assert wire.answer()[:2] == (refused, 429)
        assert sorted(wire.answer()[0] for _ in held) == held


def test_the_stream_of_a_replaced_key_ends_at_once(world: World, server: Server) -> None:
    _, key = a_node(world)
    heartbeats.keep_door_open()

    with a_wire(server, key) as wire:
        waiting = wire.send("sync", SYNC | {"wait_seconds": 20})
        time.sleep(0.2)
        NodeHeartbeat.objects.update(lease_expires_at=timezone.now())
        register_node(join_token=world.join_token(), name="n1", inventory=MACHINE)
        began = time.monotonic()
        number, status, answer = wire.answer()
        assert (number, status, answer["code"]) == (waiting, 401, "bad-agent-key")
        with pytest.raises(OSError, match=str(KEY_REPLACED)):
            wire.answer()
        assert time.monotonic() - began < patience(3)


def test_a_call_with_a_replaced_key_ends_the_stream(world: World, server: Server) -> None:
    node, key = a_node(world)

    with a_wire(server, key) as wire:
        assert wire.ask("sync", SYNC)[0] == 200
        node.agent_key_digest = "0" * 64
        node.save()
        assert wire.ask("sync", SYNC)[0] == 401
        with pytest.raises(OSError, match=str(KEY_REPLACED)):
            wire.answer()


def test_agents_that_are_gone_or_slow_delay_no_other(world: World, server: Server) -> None:
    keys = [a_node(world, f"n{number}")[1] for number in range(4)]

    with ThreadPoolExecutor(1) as other, a_wire(server, keys[3]) as wire:
        for key in keys[:3]:
            with a_wire(server, key) as gone:
                gone.send("sync", SYNC | {"wait_seconds": 20})
        answered = other.submit(wire.ask, "sync", SYNC).result(patience(10))

    assert answered[0] == 200


def without_websockets(application: Any) -> Any:
    """As a server of the previous version, or a proxy that passes no websockets on."""

    async def serve(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close"})
            return
        await application(scope, receive, send)

    return serve


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "http"])
def test_an_agent_runs_jobs_with_and_without_a_stream(
    world: World, transactional_db: None, tmp_path: Path, stream: bool
) -> None:
    opened: list[str] = []

    def watched(application: Any) -> Any:
        inner = application if stream else without_websockets(application)

        async def serve(scope: Any, receive: Any, send: Any) -> None:
            opened.append(scope["type"])
            await inner(scope, receive, send)

        return serve

    server = Server(watched).start()
    agent = AgentProcess(server, "n1", tmp_path / "n1", world.join_token()).start()
    try:
        wait_for(lambda: world.cluster.nodes.filter(name="n1", state="up").exists())
        job = world.run_until(world.submit("echo done"), "completed")
        assert world.output(job) == b"done\n"
        server.stop()
        server.start()
        job = world.run_until(world.submit("echo again"), "completed")
        assert world.output(job) == b"again\n"
    finally:
        agent.clean_up()
        server.stop()

    # With a stream only the registration goes by HTTP.
    assert opened.count("http") == 1 if stream else opened.count("http") > 4
    assert opened.count("websocket") >= (2 if stream else 1)
