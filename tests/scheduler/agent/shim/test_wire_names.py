"""What an agent and a shim of different versions rely on: commands, events, files and lines keep their names."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from scheduler.agent import processes
from tests.support.agent_messages import a_record
from tests.support.agents import is_stopped, wait_for
from tests.support.shims import LoneShim

pytestmark = pytest.mark.either


class EarlierAgent:
    """Speaks to the socket in the words of an earlier version."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lines = connection.makefile("rb")

    def send(self, **command: Any) -> None:
        self._connection.sendall(json.dumps(command).encode() + b"\n")

    def read(self) -> dict[str, Any]:
        event: dict[str, Any] = json.loads(self._lines.readline())
        return event

    def read_until(self, **fields: Any) -> dict[str, Any]:
        """The next record that has these values."""
        while True:
            for record in self.read()["tasks"]:
                if all(record.get(name) == value for name, value in fields.items()):
                    return dict(record)


@contextmanager
def an_earlier_agent(shim: LoneShim) -> Iterator[EarlierAgent]:
    """Takes the place of the agent that is connected."""
    shim.link.close()
    folder = os.open(shim.state, os.O_RDONLY | os.O_DIRECTORY)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(30)
        connection.connect(f"/proc/self/fd/{folder}/keeper.sock")
        os.close(folder)
        yield EarlierAgent(connection)


def an_order(state: Path, key: str, command: str) -> dict[str, Any]:
    folder = f"{state}/tasks/{key}"
    return {
        "key": key, "folder": folder, "cwd": folder + "/work", "script": "", "argv": ["/bin/sh", "-c", command],
        "env": {"PATH": os.defpath}, "limit_seconds": None, "grace_seconds": 1, "meta": {"task": 1, "epoch": 1},
    }  # fmt: skip


def test_commands_and_events(shim: LoneShim) -> None:
    with an_earlier_agent(shim) as agent:
        hello = agent.read()
        assert (hello["event"], hello["pid"], hello["tasks"]) == ("all", shim.pid, [])

        agent.send(op="watch", pid=0, start_ticks=0)
        agent.send(op="lease", fence_seconds=600)
        agent.send(op="start", tasks=[an_order(shim.state, "1-1", "sleep 1000")])
        pid = agent.read_until(key="1-1", state="running")["pid"]
        agent.send(op="pause", key="1-1", still=True)
        wait_for(lambda: is_stopped(pid))
        agent.send(op="pause", key="1-1", still=False)
        wait_for(lambda: not is_stopped(pid))
        agent.send(op="stop", key="1-1", reason="cancelled", grace_seconds=5)
        ended = agent.read_until(key="1-1", state="ended")
        agent.send(op="forget", keys=["1-1"])
        wait_for(lambda: not (shim.state / "tasks/1-1").exists())
        agent.send(op="shutdown")
        wait_for(lambda: not processes.start_ticks(shim.pid))

    assert (ended["stop_reason"], ended["exit_signal"], ended["meta"]) == (
        "cancelled",
        15,
        {"task": 1, "epoch": 1},
    )
    assert set(ended) == {*a_record(), "suspended_boot_ms", "suspended_ms"}


def test_files_and_their_lines(shim: LoneShim) -> None:
    shim.start("1-1", "exit 3")
    shim.wait("1-1")

    entries = [json.loads(line) for line in (shim.state / "journal.jsonl").read_text().splitlines()]
    lines = (shim.state / "guards/1-1").read_bytes().rstrip(b"\0").splitlines()

    assert set(entries[-1]) == {*a_record(), "limit_seconds", "grace_seconds"}
    assert [set(json.loads(line)) for line in lines] == [
        {"guard", "key"}, {"pid", "ticks", "at"}, {"ended", "code", "memory_mib", "cpu_ms"},
    ]  # fmt: skip
    assert {"keeper.lock", "keeper.sock", "keeper.log"} <= {path.name for path in shim.state.iterdir()}


def test_variables_of_a_task(shim: LoneShim) -> None:
    shim.start("1-1", "env")
    shim.wait("1-1")

    said = (shim.state / "tasks/1-1/stdout").read_text().splitlines()

    assert {"MUSTER_TASK_KEY=1-1", f"MUSTER_TASK_SLIP={shim.state}/guards/1-1"} <= set(said)
