"""What another person's job makes of the portal's servers on its own node: nothing, with all that it can find there.

The job finds PostgreSQL and Valkey by their ports and sockets, reads all that it may read (its environment, files,
other processes), and tries that on them and on the door for agents.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.db import connection

from config.up.servers import roles
from scheduler.models import Node
from tests.isolation.conftest import AS_ROOT, open_up
from tests.support.agents import AgentProcess, Server, World, wait_for
from tests.support.factories import MembershipFactory, UserFactory
from tests.support.roles import as_role

pytestmark = [pytest.mark.either, pytest.mark.django_db(transaction=True)]

ATTACK = Path(__file__).with_name("attack_servers.py").read_text()
#: By what the agent isolates; Landlock alone is what an ordinary account has where namespaces are forbidden.
KINDS = ["auto"] if AS_ROOT else ["auto", "files"]
REFUSED = {
    "PostgreSQL by TCP", "PostgreSQL by a Unix socket", "Valkey", "the agent's door: sync",
    "the agent's door: register", "the agent's door: logs", "the agent's door: results", "the agent's door: files",
}  # fmt: skip


@pytest.fixture
def server(transactional_db: None) -> Iterator[Server]:
    server = Server().start()
    yield server
    server.stop()


@pytest.fixture(params=KINDS)
def agent(
    request: pytest.FixtureRequest, server: Server, tmp_path: Path
) -> Iterator[tuple[World, AgentProcess]]:
    world = World.make()
    open_up(tmp_path)
    portal = os.environ["MUSTER_STATE"]
    arguments = ("--isolation", request.param, "--hide", portal)
    agent = AgentProcess(server, "n1", tmp_path / "n1", world.join_token(), arguments).start()
    try:
        wait_for(lambda: Node.objects.filter(name="n1", state="up").exists())
        node = Node.objects.get(name="n1")
        if not node.isolation["files"]:
            pytest.skip(f"this machine isolates no files: {node.isolation['missing']}")
        yield world, agent
    finally:
        agent.clean_up()


def _secrets(world: World, agent: AgentProcess) -> dict[str, str]:
    database, broker = urlsplit(os.environ["DATABASE_URL"]), urlsplit(os.environ["REDIS_URL"])
    found = {
        "the database's password": database.password,
        "the broker's password": broker.password,
        "the key of the agent": json.loads((agent.state / "identity.json").read_text())["key"],
        "the token to join": agent.token,
        "another's variable": "another-persons-secret-value",
        "another's file": "another-persons-file-content",
    }
    return {name: hashlib.sha256(value.encode()).hexdigest() for name, value in found.items() if value}


def _attack(world: World, agent: AgentProcess, server: Server) -> dict[str, Any]:
    """Bob runs something with a secret; Mallory's job, on the same node, attacks."""
    bob, mallory = UserFactory(username="bob"), UserFactory(username="mallory")
    for person in (bob, mallory):
        MembershipFactory(project=world.project, user=person)
    world.user = bob
    victim = world.submit(
        "echo another-persons-file-content > mine; echo up; exec sleep 1000",
        env={"SECRET": "another-persons-secret-value"},
    )
    world.run_until(victim, "running")
    database, broker = urlsplit(os.environ["DATABASE_URL"]), urlsplit(os.environ["REDIS_URL"])
    about = {
        "postgres": database.port, "valkey": broker.port, "door": server.url,
        "database": str(connection.settings_dict["NAME"]), "secrets": _secrets(world, agent),
        "users": ["postgres", "muster", "muster_app", "muster_owner", "muster_test", "root", "nobody"],
        "folders": [os.environ["MUSTER_STATE"], str(agent.state)],
    }  # fmt: skip
    world.user = mallory
    python = sys.executable if AS_ROOT else os.path.realpath(sys.executable)
    job = world.submit(shlex.join([python, "-S", "-I", "-c", ATTACK, json.dumps(about)]))
    job = world.run_until(job, "completed", "failed", seconds=60)
    output = world.output(job, "stdout")
    assert job.state == "completed", (job.end_text, world.output(job))
    found: dict[str, Any] = json.loads(output)
    return found


def test_nothing_lets_another_persons_job_in(agent: tuple[World, AgentProcess], server: Server) -> None:
    world, process = agent
    said = _attack(world, process, server)

    assert said.pop("secrets") == []
    assert said.pop("words") > 20  # it has looked
    assert set(said) == REFUSED
    assert {name: text for name, text in said.items() if not text.startswith("refused: ")} == {}
    assert (
        "password authentication failed" in said["PostgreSQL by TCP"] or "SFATAL" in said["PostgreSQL by TCP"]
    )
    assert "401" in said["the agent's door: sync"]


def test_the_attack_would_succeed_with_what_it_must_not_find(tmp_path: Path) -> None:
    """The same program, not as a job and given the secrets by its environment, gets in: it knows how to."""
    import subprocess

    database, broker = urlsplit(os.environ["DATABASE_URL"]), urlsplit(os.environ["REDIS_URL"])
    secrets = {"DB": database.password or "", "BROKER": broker.password or ""}
    about = {
        "postgres": database.port, "valkey": broker.port, "door": "http://127.0.0.1:1",
        "database": str(connection.settings_dict["NAME"]), "users": [database.username], "folders": [],
        "secrets": {name: hashlib.sha256(value.encode()).hexdigest() for name, value in secrets.items()},
    }  # fmt: skip

    done = subprocess.run(
        [sys.executable, "-S", "-I", "-c", ATTACK, json.dumps(about)],
        env=secrets, cwd=tmp_path, capture_output=True, check=True,
    )  # fmt: skip

    said = json.loads(done.stdout)
    assert said["PostgreSQL by TCP"] == f"GOT in as {database.username}"
    assert said["Valkey"].startswith("GOT ")
    assert said["secrets"] == sorted(name for name, value in secrets.items() if value)


def test_postgresql_listens_on_no_unix_socket() -> None:
    """The embedded one: where there is no socket, no account is trusted for its name."""
    with as_role(roles.SUPERUSER), connection.cursor() as cursor:
        cursor.execute("SHOW unix_socket_directories")
        assert cursor.fetchone() == ("",)
        cursor.execute("SHOW listen_addresses")
        assert cursor.fetchone() == ("127.0.0.1",)
