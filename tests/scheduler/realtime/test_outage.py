"""Without Redis: pages are told, and are right again within ten seconds all the same."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from config.up.servers.valkey import Valkey
from config.up.state import StateFolder
from infra import notifications
from scheduler.core.lifecycle import JobState
from scheduler.state.lifecycle.transitions import move_job
from tests.scheduler.realtime.conftest import Connect, LiveClient, rows
from tests.support.factories import JobFactory, the_cast
from tests.support.patience import patience

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def valkey(tmp_path: Path, settings: Any) -> Iterator[Valkey]:
    """A server of this test's own, which it may kill."""
    for part in ("run", "log"):
        (tmp_path / part).mkdir()
    server = Valkey(StateFolder(tmp_path))
    server.process.start()
    deadline = time.monotonic() + patience(20)
    while not server.answers():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    settings.REDIS_URL = server.url
    notifications.client.cache_clear()
    yield server
    notifications.client.cache_clear()
    server.process.ask_to_stop()
    server.process.wait_stopped(time.monotonic() + patience(10))


async def until_changed(client: LiveClient, key: str, state: str) -> list[str]:
    """What is said until the page shows that state of that job."""
    said = []
    while True:
        message = await client.hear(within=10)
        said.append(message["op"])
        if message["op"] == "patch" and message["patch"]["changed"].get(key, {}).get("state") == state:
            return said


async def test_t07_a_killed_redis_costs_no_change_and_is_said(connect: Connect, valkey: Valkey) -> None:
    cast = await rows(the_cast)()
    job = await rows(JobFactory)(project=cast.project, user=cast.owner)
    client = await connect(cast.owner)
    await client.follow("jobs")

    os.kill(valkey.process.pid, signal.SIGKILL)
    started = time.monotonic()
    await rows(move_job)(job, JobState.SCHEDULED, because="test")
    said = await until_changed(client, f"job:{job.number}", "scheduled")

    assert time.monotonic() - started < patience(10)
    await rows(move_job)(job, JobState.RUNNING, because="test")
    said += await until_changed(client, f"job:{job.number}", "running")
    assert "degraded" in said


async def test_t07_a_redis_that_hangs_is_noticed_too(connect: Connect, valkey: Valkey) -> None:
    cast = await rows(the_cast)()
    job = await rows(JobFactory)(project=cast.project, user=cast.owner)
    client = await connect(cast.owner)
    await client.follow("jobs")

    os.kill(valkey.process.pid, signal.SIGSTOP)
    try:
        started = time.monotonic()
        await rows(move_job)(job, JobState.SCHEDULED, because="test")
        said = await until_changed(client, f"job:{job.number}", "scheduled")
        assert time.monotonic() - started < patience(10)
        while "degraded" not in said:
            said.append((await client.hear(within=10))["op"])
    finally:
        os.kill(valkey.process.pid, signal.SIGCONT)
    while (await client.hear(within=15))["op"] != "restored":
        pass


async def test_t07_a_flushed_redis_loses_nothing(connect: Connect, valkey: Valkey) -> None:
    cast = await rows(the_cast)()
    job = await rows(JobFactory)(project=cast.project, user=cast.owner)
    client = await connect(cast.owner)
    await client.follow("jobs")

    with redis.Redis.from_url(valkey.url) as server:
        server.flushall()
    await rows(move_job)(job, JobState.SCHEDULED, because="test")

    assert await until_changed(client, f"job:{job.number}", "scheduled") == ["patch"]
