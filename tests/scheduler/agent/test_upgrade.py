"""A rolling upgrade: the server first, then agents one by one; jobs go on, and what is too old is refused (T31)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from scheduler.agent import OLDEST_PROTOCOL, PROTOCOL, VERSION
from scheduler.models import Node
from tests.scheduler.agent.conftest import StartAgent
from tests.scheduler.agent.test_door import MACHINE, SYNC, Caller
from tests.support import previous_release
from tests.support.agents import ROOT, AgentProcess, Server, World, wait_for
from tests.support.factories import OperatorFactory, bearer

pytestmark = pytest.mark.django_db(transaction=True)

WHY_NOT = previous_release.missing()
needs_history = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
#: Begins, waits until a file is there, and says so: how long a test takes for an upgrade does not matter.
UNTIL = "echo begun; while [ ! -e {file} ]; do sleep 0.05; done; echo ended; exit 7"


@pytest.fixture
def isolation() -> str:
    """The jobs wait for a file outside their own folders."""
    return "off"


@pytest.fixture
def old_agent(world: World, server: Server, tmp_path: Path) -> Iterator[AgentProcess]:
    """A node whose agent is of the release before, and serves."""
    source = previous_release.agent_source(tmp_path / "previous")
    agent = AgentProcess(server, "n1", tmp_path / "n1", world.join_token(), source=source)
    agent.start()
    wait_for(lambda: Node.objects.filter(name="n1", state="up").exists())
    yield agent
    agent.clean_up()


@needs_history
def test_t31_an_agent_of_the_release_before_runs_jobs_of_this_server(
    world: World, old_agent: AgentProcess
) -> None:
    job = world.submit("echo hello; echo $MUSTER_JOB_ID >&2; exit 3")
    world.run_until(job, "failed")
    array = world.submit("true", array="0-2")
    stopped = world.submit("sleep 600", time_limit="1")

    assert job.exit_code == 3
    assert b"hello\n" in world.output(job)
    world.run_until(array, "completed")
    world.run_until(stopped, "failed", "timeout", "cancelled")
    world.assert_nothing_is_held()
    assert Node.objects.get().agent_protocol in range(OLDEST_PROTOCOL, PROTOCOL + 1)


@needs_history
def test_t31_a_job_that_an_old_agent_does_not_know_waits_for_its_upgrade(
    world: World, old_agent: AgentProcess, settings: Any, tmp_path: Path
) -> None:
    settings.MUSTER_STORAGE = tmp_path.as_uri()
    job = world.submit("echo made > a", artifacts=["a"])
    world.plan()
    job.refresh_from_db()
    assert (job.state, job.reason_code) == ("queued", "NodesUnavailable")
    assert job.reason_text == (
        "The only node that could hold the job (n1) runs an agent older than needed for artifacts. Upgrade the agent."
    )
    assert not job.attempts.exists()

    old_agent.kill()
    old_agent.source, old_agent.arguments = ROOT, ("--isolation", "off")
    old_agent.start()
    wait_for(lambda: Node.objects.get().agent_protocol == PROTOCOL)
    world.run_until(job, "completed")


@needs_history
@pytest.mark.parametrize("way", ["upgrade", "rollback"])
def test_t31_a_job_goes_on_while_its_agent_is_replaced_by_one_of_the_other_release(
    world: World, old_agent: AgentProcess, tmp_path: Path, way: str
) -> None:
    """The shim and the guards of the release that started the job keep it, and obey the agent of the other."""
    before, after = (old_agent.source, ROOT) if way == "upgrade" else (ROOT, old_agent.source)
    if way == "rollback":
        old_agent.clean_up()
        old_agent.source, old_agent.arguments = before, ("--isolation", "off")
        old_agent.start()
        wait_for(lambda: old_agent.state.joinpath("keeper.sock").exists())
    job = world.submit(UNTIL.format(file=tmp_path / "go"))
    world.run_until(job, "running")
    pid = wait_for(lambda: world.task(job).pid)

    old_agent.kill()
    old_agent.source = after
    old_agent.arguments = ("--isolation", "off") if after == ROOT else ()
    old_agent.start()
    wait_for(lambda: "adopted 1 tasks" in old_agent.log())
    (tmp_path / "go").touch()
    world.run_until(job, "failed")

    assert (job.exit_code, job.epoch, job.attempts.count()) == (7, 1, 1)
    assert world.task(job).pid == pid
    assert world.output(job) == b"begun\nended\n"
    later = world.submit("echo later")
    world.run_until(later, "completed")
    world.assert_nothing_is_held()


# ---------------------------------------------------------------- what is too old, or too new


@pytest.fixture
def call(server: Server) -> Caller:
    return Caller(server)


@pytest.fixture
def node_key(world: World, call: Caller) -> str:
    message = {"protocol": PROTOCOL, "join_token": world.join_token(), "name": "n1", "inventory": MACHINE}
    return str(call("agent/register", message)[1]["agent_key"])


@pytest.mark.parametrize(
    ("protocol", "code", "words"),
    [
        (OLDEST_PROTOCOL - 1, "agent-too-old", "Upgrade the agent of this node"),
        (PROTOCOL + 1, "agent-too-new", "Upgrade the server first"),
        (None, "agent-too-old", "no protocol that can be read"),
        ("1", "agent-too-old", "no protocol that can be read"),
        (True, "agent-too-old", "no protocol that can be read"),
        (10**9, "agent-too-new", "Upgrade the server first"),
    ],
)
def test_an_agent_of_another_protocol_is_refused_and_its_node_says_why_and_what_to_do(
    call: Caller, node_key: str, protocol: Any, code: str, words: str
) -> None:
    status, answer = call("agent/sync", SYNC | {"protocol": protocol, "agent_version": "0.0.9"}, node_key)

    assert (status, answer["code"]) == (422, code)
    assert words in answer["detail"]
    node = Node.objects.get(name="n1")
    assert words in node.trouble
    assert node.agent_version == "0.0.9"
    seen = node.last_seen_at
    call("agent/sync", SYNC | {"protocol": protocol}, node_key)
    assert Node.objects.get(name="n1").last_seen_at == seen, "a call that is refused is no heartbeat"


def test_the_trouble_is_over_with_the_first_message_of_an_agent_that_is_served(
    call: Caller, node_key: str
) -> None:
    call("agent/sync", SYNC | {"protocol": 0}, node_key)
    assert Node.objects.get(name="n1").trouble

    status, _ = call("agent/sync", SYNC | {"agent_version": VERSION, "inventory": MACHINE}, node_key)

    node = Node.objects.get(name="n1")
    assert (status, node.trouble, node.agent_version, node.agent_protocol) == (200, "", VERSION, PROTOCOL)


def test_a_machine_with_an_agent_that_is_too_old_cannot_join(world: World, call: Caller) -> None:
    message = {"protocol": 0, "join_token": world.join_token(), "name": "n2", "inventory": MACHINE}

    status, answer = call("agent/register", message)

    assert (status, answer["code"]) == (422, "agent-too-old")
    assert not Node.objects.exists()


def test_a_stranger_without_a_key_marks_no_node(call: Caller, node_key: str) -> None:
    status, _ = call("agent/sync", SYNC | {"protocol": 0}, node_key[:-1] + "_")

    assert status == 401
    assert Node.objects.get(name="n1").trouble == ""


def test_the_page_of_a_node_and_the_api_show_versions_and_when_to_upgrade(
    call: Caller, node_key: str
) -> None:
    call("agent/sync", SYNC | {"agent_version": "0.0.9"}, node_key)
    node, operator, client = Node.objects.get(name="n1"), OperatorFactory(), Client()
    client.force_login(operator)

    page = client.get(f"/nodes/{node.pk}/").content.decode()
    answer = client.get(f"/api/v1/nodes/{node.pk}", headers=bearer(operator, "nodes:read")).json()

    assert f"0.0.9, protocol {PROTOCOL}" in page
    assert f"The server has {VERSION}" in page
    assert (answer["agent_version"], answer["agent_protocol"]) == ("0.0.9", PROTOCOL)

    call("agent/sync", SYNC | {"agent_version": VERSION}, node_key)
    assert "The server has" not in client.get(f"/nodes/{node.pk}/").content.decode()


def test_an_agent_that_is_refused_goes_on_trying_and_keeps_its_jobs(
    world: World, start_agent: StartAgent, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, settings: Any
) -> None:
    """Its jobs run until the server is upgraded, or the fence: nothing is killed for a version."""
    settings.MUSTER_SYNC_HOLD_SECONDS = 0.5
    agent = start_agent()
    job = world.submit(UNTIL.format(file=tmp_path / "go"))
    world.run_until(job, "running")
    pid = wait_for(lambda: world.task(job).pid)

    with monkeypatch.context() as patch:
        patch.setattr("scheduler.api.agent.reading.OLDEST_PROTOCOL", PROTOCOL + 1)
        patch.setattr("scheduler.api.agent.reading.PROTOCOL", PROTOCOL + 1)
        wait_for(lambda: "refused: " in agent.log(), seconds=40)
        wait_for(lambda: "too old" in Node.objects.get().trouble)
        os.kill(pid, 0)

    (tmp_path / "go").touch()
    world.run_until(job, "failed", seconds=40)
    assert (job.exit_code, job.epoch) == (7, 1)
