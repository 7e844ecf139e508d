"""A world with a server on a thread and as many agents as a test wants."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from scheduler.models import Node
from tests.support.agents import AgentProcess, Server, World, wait_for
from tests.support.keepers import Kept, kill_guards

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
def start_agent(world: World, server: Server, tmp_path: Path) -> Iterator[StartAgent]:
    """`start_agent("n1", "--fake-gpus", "2xA100-80GB")` returns once the node is up."""
    agents: list[AgentProcess] = []

    def start(
        name: str = "n1", *arguments: str, python_path: str = "", server_file: Path | None = None
    ) -> AgentProcess:
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
def kept(tmp_path: Path) -> Any:
    kept = Kept(tmp_path)
    kept.link.start()
    yield kept
    kept.link.close()
    while kept.link._thread.is_alive():  # until it has seen the end of them it may start another
        for keeper_process in list(kept.link._started):
            keeper_process.kill()
        kept.link._thread.join(0.05)
    for keeper_process in kept.link._started:
        keeper_process.kill()
        keeper_process.wait()
    kill_guards(tmp_path)
