"""A world with a server on a thread and as many agents as a test wants."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from scheduler.models import Node
from tests.support.agents import AgentProcess, Server, World, wait_for
from tests.support.shims import LoneShim

StartAgent = Callable[..., AgentProcess]


@pytest.fixture
def world(transactional_db: None) -> World:
    return World.make()


@pytest.fixture
def server(transactional_db: None) -> Iterator[Server]:
    server = Server().start()
    yield server
    server.stop()


@pytest.fixture
def isolation() -> str:
    """The isolation option of agents; a file whose tests watch a job by the files of a test says "off"."""
    return "auto"


@pytest.fixture
def start_agent(world: World, server: Server, tmp_path: Path, isolation: str) -> Iterator[StartAgent]:
    """`start_agent("n1", "--fake-gpus", "2xA100-80GB")` returns once the node is up."""
    agents: list[AgentProcess] = []

    def start(
        name: str = "n1", *arguments: str, python_path: str = "", server_file: Path | None = None
    ) -> AgentProcess:
        arguments = ("--isolation", isolation, *arguments)
        agent = AgentProcess(
            server, name, tmp_path / name, world.join_token(), arguments, python_path, server_file
        )
        agents.append(agent.start())
        wait_for(lambda: Node.objects.filter(name=name, state="up").exists())
        return agent

    yield start
    for agent in agents:
        agent.clean_up()


@pytest.fixture
def shim(tmp_path: Path) -> Iterator[LoneShim]:
    shim = LoneShim(tmp_path)
    shim.link.start()
    yield shim
    shim.clean_up()
