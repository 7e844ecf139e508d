"""A worker whose broker was killed during a task takes the next task, once the broker is back."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kombu import Connection
from kombu.transport.redis import Transport as KombuTransport

from config import broker
from config.celery import app
from config.up.servers.valkey import Valkey
from config.up.state import StateFolder
from tests.support.patience import patience


@pytest.fixture
def valkey(tmp_path: Path) -> Iterator[Valkey]:
    for part in ("run", "log"):
        (tmp_path / part).mkdir()
    server = Valkey(StateFolder(tmp_path))
    start(server)
    yield server
    server.process.ask_to_stop()
    server.process.wait_stopped(time.monotonic() + 10)


def start(server: Valkey) -> None:
    server.process.start()
    deadline = time.monotonic() + patience(20)
    while not server.answers():
        assert time.monotonic() < deadline, server.process.log_tail()
        time.sleep(0.05)


def kill(server: Valkey) -> None:
    assert server.process.popen is not None
    server.process.popen.kill()
    server.process.popen.wait()
    server.process.look()


def takes_another_after_a_kill(server: Valkey, transport: Any) -> bool:
    """Whether a consumer of one message at a time gets a second one when the broker dies before the first is done."""
    with Connection(server.url, transport=transport) as connection:
        channel = connection.channel()
        channel.basic_qos(0, 1, False)
        queue = connection.SimpleQueue("jobs", channel=channel)
        queue.put("first")
        first = queue.get(timeout=patience(5))
        kill(server)

        with pytest.raises(connection.connection_errors):
            first.ack()

        start(server)
        return bool(channel.qos.can_consume())


def test_a_worker_takes_the_next_task_when_its_broker_was_killed_during_one(valkey: Valkey) -> None:
    assert takes_another_after_a_kill(valkey, broker.Transport)


def test_without_the_repair_it_would_take_none(valkey: Valkey) -> None:
    assert not takes_another_after_a_kill(valkey, KombuTransport)


def test_celery_uses_this_transport() -> None:
    with app.connection_for_read("redis://127.0.0.1:1/0") as connection:
        assert isinstance(connection.transport, broker.Transport)
