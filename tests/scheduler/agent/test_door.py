"""Who may speak to the door for agents, and what it makes of nonsense."""

from __future__ import annotations

import base64
import gzip
import http.client
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connection, connections
from django.utils import timezone
from pytest_django.fixtures import Settings

from accounts.models import AuditEvent
from infra.db.prepared import ask
from scheduler.agent import PROTOCOL
from scheduler.api.agent import door
from scheduler.core.lifecycle import JobState
from scheduler.models import JoinToken, LogChunk, Node, NodeHeartbeat, Task
from scheduler.services.cluster import heartbeats
from scheduler.services.cluster.nodes import register_node
from tests.support.agents import Server, World
from tests.support.factories import AttemptFactory, JobFactory, QueueFactory, TaskFactory, a_token
from tests.support.patience import patience
from tests.support.roles import all_rights

pytestmark = pytest.mark.django_db(transaction=True)

MACHINE: dict[str, Any] = {
    "cpu_millis": 8000, "memory_mib": 16384, "storage_mib": 1000, "numa_domains": 1, "boot_id": "b",
    "agent_version": "0", "labels": {}, "partitions": [], "devices": [],
}  # fmt: skip
SYNC: dict[str, Any] = {
    "protocol": PROTOCOL, "session": "s", "wait_seconds": 0, "known": [], "reports": [], "boot_id": "b",
    "agent_version": "0", "clock_ms": 0,
}  # fmt: skip


class Caller:
    def __init__(self, server: Server) -> None:
        self.server = server

    def __call__(
        self,
        verb: str,
        body: Any,
        key: str = "",
        *,
        raw: bytes | None = None,
        method: str = "POST",
        **headers: str,
    ) -> tuple[int, dict[str, Any]]:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=30)
        data = raw if raw is not None else json.dumps(body).encode()
        if key:
            headers["Authorization"] = f"Bearer {key}"
        try:
            connection.request(method, f"/api/v1/{verb}", body=data, headers=headers)
            answer = connection.getresponse()
            text = answer.read()
            if answer.status >= 400:
                assert answer.getheader("Content-Type", "").startswith("application/problem+json")
            return answer.status, json.loads(text)
        finally:
            connection.close()


@pytest.fixture
def world(transactional_db: None) -> World:
    return World.make()


@pytest.fixture
def call(transactional_db: None) -> Iterator[Caller]:
    server = Server().start()
    yield Caller(server)
    server.stop()


def a_node(world: World, name: str = "n1", **machine: Any) -> tuple[Node, str]:
    done = register_node(join_token=world.join_token(), name=name, inventory=MACHINE | machine)
    return done.node, done.agent_key


def a_running_task(world: World, node: Node, **fields: Any) -> Task:
    job = JobFactory(project=world.project, user=world.user, queue=QueueFactory(cluster=world.cluster), epoch=1,
                     state=JobState.RUNNING, started_at=timezone.now())  # fmt: skip
    return TaskFactory(attempt=AttemptFactory(job=job, epoch=1), node=node, **fields)


def test_a_join_token_gives_a_key_that_works(world: World, call: Caller) -> None:
    status, answer = call(
        "agent/register", {"join_token": world.join_token(), "name": "n1", "inventory": MACHINE}
    )

    assert status == 200
    assert answer["agent_key"].startswith("muster_agent_")
    status, synced = call("agent/sync", SYNC, answer["agent_key"])
    assert (status, synced["node_id"], synced["assignments"]) == (200, answer["node_id"], [])
    node = Node.objects.get(name="n1")
    assert (node.state, node.cpu_millis, node.address) == ("up", 8000, "127.0.0.1")
    assert answer["agent_key"].split("_")[-1] not in node.agent_key_digest
    assert AuditEvent.objects.filter(action="node.register", object_label="n1").count() == 1


def test_other_tokens_do_not(world: World, call: Caller) -> None:
    expired, revoked, good = (world.join_token() for _ in range(3))
    JoinToken.objects.filter(prefix=expired.split("_")[2]).update(expires_at=timezone.now())
    JoinToken.objects.filter(prefix=revoked.split("_")[2]).update(revoked_at=timezone.now())

    for token in ("", "nonsense", good[:-4] + "AAAA", a_node(world)[1], expired, revoked):
        status, answer = call("agent/register", {"join_token": token, "name": "n2", "inventory": MACHINE})
        assert (status, answer["code"]) == (401, "bad-join-token"), token

    assert not Node.objects.filter(name="n2").exists()


def test_a_live_node_keeps_its_name_and_key(world: World, call: Caller) -> None:
    _, key = a_node(world)
    again = {"join_token": world.join_token(), "name": "n1", "inventory": MACHINE}

    status, answer = call("agent/register", again)
    assert (status, answer["code"]) == (409, "node-is-alive")
    assert call("agent/sync", SYNC, key)[0] == 200

    heartbeats.keep_door_open()  # else the door itself may open only now, and start every lease anew
    NodeHeartbeat.objects.update(lease_expires_at=timezone.now())
    status, answer = call("agent/register", again)
    assert status == 200
    assert call("agent/sync", SYNC, key)[0] == 401
    assert call("agent/sync", SYNC, answer["agent_key"])[0] == 200
    assert Node.objects.count() == 1


def test_agents_and_people_use_different_doors(world: World, call: Caller) -> None:
    """ASVS 9.2: a token is for what it was issued for."""
    _, key = a_node(world)
    person = a_token(world.user, "jobs:read")

    for token in (person, world.join_token(), "", "x" * 5000):
        assert call("agent/sync", SYNC, token)[0] == 401
        assert call("agent/logs", {"chunks": [], "ask": []}, token)[0] == 401
    assert call("jobs", {}, key, method="GET")[0] == 401
    assert call("jobs", {}, person, method="GET")[0] == 200


def test_a_node_can_neither_report_nor_print_for_another(world: World, call: Caller) -> None:
    """ASVS 8.3.3: an agent reaches its own tasks only."""
    ours, key = a_node(world, "n1")
    theirs, _ = a_node(world, "n2")
    task = a_running_task(world, theirs)
    chunk = {
        "task": task.pk,
        "epoch": 1,
        "stream": "stdout",
        "offset": 0,
        "data": base64.b64encode(b"x").decode(),
    }

    report = {"task": task.pk, "epoch": 1, "state": "failed", "exit_code": 1}
    status, answer = call("agent/sync", {**SYNC, "reports": [report], "known": [[task.pk, 1]]}, key)
    assert status == 200
    assert {(stop["task"], stop["reason"], stop["stale"]) for stop in answer["stops"]} == {
        (task.pk, "stale_epoch", True)
    }
    assert call("agent/logs", {"chunks": [chunk], "ask": []}, key)[1] == {"streams": [], "gone": [task.pk]}

    task.refresh_from_db()
    assert task.state == "running"
    assert not LogChunk.objects.exists()
    assert ours.tasks.count() == 0


NONSENSE: list[tuple[dict[str, Any], str]] = [
    ({"protocol": 99}, ""),
    ({"wait_seconds": -1}, "wait_seconds"),
    ({"wait_seconds": "soon"}, "wait_seconds"),
    ({"known": [[1]]}, "known"),
    ({"known": [[1, True]]}, "known"),
    ({"known": {"a": 1}}, "known"),
    ({"reports": ["x"]}, "reports"),
    ({"reports": [{"task": 1, "epoch": 1, "state": "exploded"}]}, "reports/0/state"),
    ({"reports": [{"task": -1, "epoch": 1, "state": "lost"}]}, "reports/0/task"),
    ({"reports": [{"task": 1, "epoch": 2**40, "state": "lost"}]}, "reports/0/epoch"),
    ({"reports": [{"task": 1, "epoch": 1, "state": "failed", "exit_code": 1.5}]}, "reports/0/exit_code"),
    ({"clock_ms": None}, "clock_ms"),
    ({"boot_id": "a\0b"}, "boot_id"),
    ({"inventory": []}, ""),
    ({"inventory": MACHINE | {"cpu_millis": 10**30}}, "cpu_millis"),
    ({"inventory": MACHINE | {"devices": [{"index": 0}]}}, "devices/0/memory_mib"),
    ({"inventory": MACHINE | {"labels": {"a": 1}}}, "labels"),
]


def test_nonsense_is_refused_by_name(world: World, call: Caller) -> None:
    _, key = a_node(world)

    for change, field in NONSENSE:
        status, answer = call("agent/sync", SYNC | change, key)
        assert status == 422, change
        assert not field or field in [problem["field"] for problem in answer["errors"]], change


def test_broken_bodies_are_refused(world: World, call: Caller) -> None:
    _, key = a_node(world)

    assert call("agent/sync", None, key, raw=b"{")[0] == 400
    assert call("agent/sync", None, key, raw=b"\xff\xfe\x00")[0] == 400
    assert call("agent/sync", [], key)[0] == 422
    assert call("agent/sync", None, key, raw=b"[" * 100_000)[0] == 400
    # Half a surrogate pair, and NUL: no call of a stranger, nor of a node, is an error of ours.
    for half in ({"join_token": "\ud800", "name": "n"}, {"join_token": "a\0", "name": "a\0b"}):
        assert call("agent/register", half)[0] in (400, 401, 403, 422), half
    assert call("agent/sync", SYNC | {"boot_id": "\ud800"}, key)[0] == 400
    odd = MACHINE | {"labels": {"a": "b\0"}, "agent_version": "\0"}
    assert call("agent/sync", SYNC | {"inventory": odd}, key)[0] == 422
    assert call("agent/sync", SYNC | {"inventory": odd}, key + "x")[0] == 401, (
        "first the key, then what it says"
    )
    assert call("agent/sync", SYNC, "\u00e9\u00ff")[0] == 401
    assert call("agent/sync", None, key, raw=b" " * (8 * 1024 * 1024 + 1))[0] == 413
    bomb = gzip.compress(b" " * (64 * 1024 * 1024))
    assert call("agent/sync", None, key, raw=bomb, **{"Content-Encoding": "gzip"})[0] == 413
    assert call("agent/sync", None, key, raw=bomb[:100], **{"Content-Encoding": "gzip"})[0] == 400
    packed = gzip.compress(json.dumps(SYNC).encode())
    assert call("agent/sync", None, key, raw=packed, **{"Content-Encoding": "gzip"})[0] == 200
    assert call("agent/sync", SYNC, key, method="GET")[0] == 405
    assert call("agent/nothing", SYNC, key)[0] == 404


BROKEN_CHUNKS: list[dict[str, Any]] = [
    {"stream": "stdlog"},
    {"data": "no base64!"},
    {"data": ""},
    {"data": base64.b64encode(b"x" * (256 * 1024 + 1)).decode()},
    {"offset": -1},
    {"epoch": None},
]


def test_broken_chunks_are_refused(world: World, call: Caller) -> None:
    node, key = a_node(world)
    task = a_running_task(world, node)
    good = {
        "task": task.pk,
        "epoch": 1,
        "stream": "stdout",
        "offset": 0,
        "data": base64.b64encode(b"ok").decode(),
    }

    for chunk in BROKEN_CHUNKS:
        assert call("agent/logs", {"chunks": [good | chunk], "ask": []}, key)[0] == 422, chunk
    assert not LogChunk.objects.exists()
    assert call("agent/logs", {"chunks": [good], "ask": []}, key)[0] == 200


def test_a_waiting_call_is_woken_by_work(world: World, call: Caller) -> None:
    _, key = a_node(world)
    job = world.submit("true")

    seconds, status, answer = planned_while_it_waits(world, call, key)

    assert (status, [a["job"] for a in answer["assignments"]]) == (200, [job.number])
    assert seconds < patience(4)


def planned_while_it_waits(world: World, call: Caller, key: str) -> tuple[float, int, Any]:
    """A sync call waits while the planner runs: the seconds from then until its answer, its status and the answer."""
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(call, "agent/sync", SYNC | {"wait_seconds": 15}, key)
        time.sleep(0.5)
        assert not waiting.done()
        started = time.monotonic()
        world.plan()
        status, answer = waiting.result(patience(20))
        return time.monotonic() - started, status, answer


def test_a_waiting_call_finds_work_without_any_hint(
    world: World, call: Caller, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis is a hint only."""
    from infra import notifications

    settings.REDIS_URL = "redis://127.0.0.1:1/0"
    monkeypatch.setattr(notifications, "publish", lambda topics: None)
    _, key = a_node(world)
    job = world.submit("true")

    seconds, _, answer = planned_while_it_waits(world, call, key)

    assert [a["job"] for a in answer["assignments"]] == [job.number]
    assert seconds < patience(6)


def test_the_use_of_gpus_arrives_while_it_grows(world: World, call: Caller) -> None:
    node, key = a_node(world)
    _, other_key = a_node(world, "n2")
    task = a_running_task(world, node, state="running")

    def told(key: str = key, **fields: Any) -> tuple[int | None, int | None]:
        plain = {"task": task.pk, "epoch": 1, "state": "running", "peak_gpu_memory_mib": 812}
        assert (
            call("agent/sync", SYNC | {"known": [[task.pk, 1]], "reports": [plain | fields]}, key)[0] == 200
        )
        task.refresh_from_db()
        return task.gpu_watched_ms, task.gpu_busy_ms

    assert told() == (None, None)
    assert told(gpu_watched_ms=10_000, gpu_busy_ms=5_000) == (10_000, 5_000)
    # Neither another node nor an earlier try has a say.
    assert told(other_key, gpu_watched_ms=1, gpu_busy_ms=1) == (10_000, 5_000)
    assert told(epoch=2, gpu_watched_ms=1, gpu_busy_ms=1) == (10_000, 5_000)
    assert told(state="succeeded", exit_code=0, gpu_watched_ms=20_000, gpu_busy_ms=15_000) == (20_000, 15_000)
    assert (task.gpu_percent, task.peak_gpu_memory_mib, task.state) == (75.0, 812, "succeeded")


def test_asked_again_the_answer_is_the_same(world: World, call: Caller) -> None:
    _, key = a_node(world)
    world.submit("true", gpu_count=0)
    world.plan()

    first = call("agent/sync", SYNC, key)[1]
    second = call("agent/sync", SYNC, key)[1]
    task = first["assignments"][0]["task"]
    known = call("agent/sync", SYNC | {"known": [[task, 1]]}, key)[1]

    assert first["assignments"] == second["assignments"]
    assert known["assignments"] == []


def test_a_running_task_that_the_agent_does_not_name_is_asked_for(world: World, call: Caller) -> None:
    node, key = a_node(world)
    task = a_running_task(world, node)

    answer = call("agent/sync", SYNC, key)[1]

    assert answer["verify"] == [[task.pk, 1]]
    task.refresh_from_db()
    assert task.state == "running"


def test_a_thread_keeps_its_connection_and_replaces_a_dead_one(transactional_db: None) -> None:
    with ThreadPoolExecutor(1) as thread:

        def server_process() -> int:
            work = (lambda: ask("SELECT pg_backend_pid()")[0][0], ())
            return int(thread.submit(door._with_database, *work).result(patience(20)))

        first = server_process()
        assert server_process() == first
        with all_rights(), connection.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(%s, 5000)", [first])
            assert cursor.fetchone() == (True,)

        assert server_process() != first
        thread.submit(connections.close_all).result(patience(20))
