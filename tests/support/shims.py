"""A shim by itself, without agent or server."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import Any

from scheduler.agent import processes
from scheduler.agent.isolation.means import Means
from scheduler.agent.protocol import TaskOrder, TaskRecord
from scheduler.agent.shim.guard_status import read_status
from scheduler.agent.shim_link import ShimLink
from tests.support.agents import wait_for

#: Shell: start a process that leaves its session, its group, its environment and its parent; its pid is in the file.
ESCAPE = (
    "env -i setsid sh -c 'echo $$ > {file}; exec sleep 1000' & while [ ! -s {file} ]; do sleep 0.02; done; "
)


class LoneShim:
    """A shim in a folder, and the records that it has published."""

    def __init__(self, state: Path, means: Means | None = None) -> None:
        self.state, self.means = state, means
        (state / "tasks").mkdir(exist_ok=True)
        self.records: dict[str, TaskRecord] = {}
        self.link = self._new_link()

    def _new_link(self) -> ShimLink:
        return ShimLink(self.state, watch_pid=0, on_records=self._update, means=self.means)

    def _update(self, records: list[TaskRecord], complete: bool) -> None:
        self.records.update({record["key"]: record for record in records})

    @property
    def pid(self) -> int:
        return self.link.shim_pid

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

    def guard_pid(self, key: str) -> int:
        line = read_status(f"{self.state}/guards/{key}", key).line("guard")
        assert line is not None
        return int(line["guard"])

    def kill(self) -> None:
        """Kill the shim, and return once the next one has published its records."""
        before = self.pid
        self.records.clear()
        os.kill(before, signal.SIGKILL)
        wait_for(lambda: self.pid != before and self.records)

    def kill_for_good(self) -> None:
        """Kill the shim and start none in its place."""
        self.link.close()
        os.kill(self.pid, signal.SIGKILL)
        assert self.link.join(10)
        for shim in self.link.started:
            shim.wait()

    def restart(self) -> None:
        """Start a shim after `kill_for_good`, and return once it has published its records."""
        self.records.clear()
        self.link = self._new_link()
        self.link.start()

    def clean_up(self) -> None:
        """End the shim, its guards and all tasks."""
        self.link.close()
        while not self.link.join(0.05):  # until then it may start another shim
            for shim in list(self.link.started):
                shim.kill()
        for shim in self.link.started:
            shim.kill()
            shim.wait()
        kill_guards(self.state)


def kill_guards(state: Path, *, guards_only: bool = False) -> None:
    """Kill all running tasks of a state folder and their guards; or only the guards."""
    for file in (state / "guards").glob("*"):
        status = read_status(str(file), file.name)
        if status.alive and (line := status.line("guard")) is not None:
            tasks = [] if guards_only else list(processes.descendants_of(line["guard"]))
            for pid in (*tasks, line["guard"]):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
