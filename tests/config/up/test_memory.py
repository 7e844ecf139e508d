"""A web process above its memory ceiling is replaced, and the other goes on serving."""

from __future__ import annotations

import http.client
import json
import shutil
import threading
import time
import urllib.error
from collections.abc import Iterator

import pytest

from config.up import memory
from config.up.state import StateError
from tests.support.embedded import give_migrated_data
from tests.support.patience import patience
from tests.support.stack import Stack, scratch_state, wait_until

#: Somewhat more than a process takes at rest, so that few rows are built before it is met.
CEILING_MIB = 280


@pytest.mark.parametrize("given", ["-1", "10", "2GB", "٤٠٠", "1" * 20])
def test_a_ceiling_that_means_nothing_is_refused(monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    monkeypatch.setenv("MUSTER_WEB_MEMORY_MIB", given)
    with pytest.raises(StateError, match="MUSTER_WEB_MEMORY_MIB"):
        memory.ceiling_mib()


def test_a_ceiling_can_be_taken_away(monkeypatch: pytest.MonkeyPatch) -> None:
    assert memory.ceiling_mib() == memory.DEFAULT_MIB
    monkeypatch.setenv("MUSTER_WEB_MEMORY_MIB", "0")
    assert memory.ceiling_mib() == 0


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    state = scratch_state("memory")
    give_migrated_data(state)
    # The process meets its ceiling while it builds these rows.
    env = {
        "MUSTER_WEB_PROCESSES": "2",
        "MUSTER_WEB_MEMORY_MIB": str(CEILING_MIB),
        "MUSTER_MAX_ROWS": "10000000",
    }
    stack = Stack(state, ["--nodes", "0"], env=env)
    try:
        yield stack.start()
    finally:
        stack.stop()
        shutil.rmtree(state, ignore_errors=True)


@pytest.mark.stack
def test_a_process_above_its_ceiling_is_replaced_while_the_other_serves(stack: Stack) -> None:
    token = stack.token
    wait_until(lambda: (stack.state / "run" / "web-2.ready").exists(), seconds=60, why=stack.said)
    before = {name: stack.pid(name) for name in ("web", "web-2")}
    assert all(0 < memory.resident_mib(pid) < CEILING_MIB for pid in before.values())
    polls: list[int] = []
    over = threading.Event()

    def poll() -> None:
        while not over.is_set():
            try:
                polls.append(stack.get("/livez", timeout=patience(20))[0])
            except OSError:  # the process that ended had taken this call
                polls.append(0)
            time.sleep(0.05)

    poller = threading.Thread(target=poll)
    poller.start()
    try:
        jobs: list[object] = [{"command": "true", "array": "0-9999"}] * 900
        with pytest.raises((OSError, http.client.HTTPException, urllib.error.URLError)):
            stack.post("/api/v1/jobs:bulk", {"jobs": jobs}, token=token)
        wait_until(lambda: "exit code 75" in stack.said(), seconds=30, why=stack.said)
        (replaced,) = [name for name in before if f"{name} ended (exit code 75" in stack.said()]
        stack.wait_restarted(replaced, before[replaced])
        wait_until(lambda: (stack.state / "run" / f"{replaced}.ready").exists(), seconds=60, why=stack.said)
    finally:
        over.set()
        poller.join()

    (other,) = set(before) - {replaced}
    assert stack.pid(other) == before[other]
    assert polls.count(200) >= 10
    assert polls.count(0) <= 2, polls
    assert "MUSTER_WEB_MEMORY_MIB" in (stack.state / "log" / f"{replaced}.log").read_text()
    assert json.loads(stack.get("/readyz")[1])["status"] == "ok"
    made = stack.post("/api/v1/jobs", {"command": "true"}, token=token)
    assert made["number"]
