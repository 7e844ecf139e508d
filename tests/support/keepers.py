"""A keeper by itself, without agent or server."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import Any

from scheduler.agent import guard, processes
from scheduler.agent.keeper_link import KeeperLink
from scheduler.agent.protocol import TaskOrder, TaskRecord
from tests.support.agents import wait_for


class Kept:
    """A keeper in a folder, and what it says."""

    def __init__(self, state: Path) -> None:
        self.state = state
        (state / "tasks").mkdir()
        self.records: dict[str, TaskRecord] = {}
        self.link = KeeperLink(state, watch_pid=0, on_records=self._take)

    def _take(self, records: list[TaskRecord], complete: bool) -> None:
        self.records.update({record["key"]: record for record in records})

    def start(self, key: str, command: str, **fields: Any) -> None:
        folder = f"{self.state}/tasks/{key}"
        order: dict[str, Any] = {
            "key": key, "folder": folder, "cwd": folder + "/work", "script": "", "env": {"PATH": os.defpath},
            "argv": ["/bin/sh", "-c", command], "limit_seconds": None, "grace_seconds": 1, "meta": {},
        }  # fmt: skip
        self.link.start_tasks([TaskOrder(**(order | fields))])  # type: ignore[typeddict-item]

    def wait(self, key: str, state: str = "ended") -> TaskRecord:
        record: TaskRecord = wait_for(lambda: (r := self.records.get(key)) and r["state"] == state and r)
        return record

    def clean_up(self) -> None:
        """End the keeper, its guards and all tasks."""
        self.link.close()
        while self.link._thread.is_alive():  # until it has seen the end of them it may start another
            for keeper_process in list(self.link._started):
                keeper_process.kill()
            self.link._thread.join(0.05)
        for keeper_process in self.link._started:
            keeper_process.kill()
            keeper_process.wait()
        kill_guards(self.state)


def kill_guards(state: Path, *, guards_only: bool = False) -> None:
    """Kill all tasks of a state folder that still run, and their guards; or only these."""
    for slip in (state / "guards").glob("*"):
        found = guard.read_slip(str(slip))
        if found.alive and (line := found.line("guard")) is not None:
            tasks = [] if guards_only else list(processes.descendants_of(line["guard"]))
            for pid in (*tasks, line["guard"]):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
