"""A backend in memory that fails on demand, for tests of its callers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from scheduler.agent.protocol import Assignment, Report, Stop
from scheduler.backends.base import Capabilities, Machine, Observation, Output, QuotaRefused


class BackendDown(ConnectionError):
    """The backend cannot be reached."""


@dataclass
class FakeTask:
    assignment: Assignment
    node: str
    state: str = "running"
    exit_code: int | None = None
    exit_signal: int | None = None
    stop_reason: str = ""
    text: str = ""
    reported: str = ""
    suspended: bool = False


@dataclass
class FakeBackend:
    """Tasks run until a test ends them.

    `down` makes every call fail; `ignores_stops` is a job that traps SIGTERM; `repeats` returns every report
    with each call; `forget` is a machine that was reinstalled.
    """

    name: str = "fake"
    down: bool = False
    ignores_stops: bool = False
    repeats: bool = False
    tasks: dict[tuple[int, int], FakeTask] = field(default_factory=dict)
    #: By a job's name: why a quota here does not let its tasks in.
    refuses: dict[str, str] = field(default_factory=dict)
    lost: list[tuple[str, int, int]] = field(default_factory=list)
    capabilities: Capabilities = field(
        default_factory=lambda: Capabilities(is_driven=True, runs_processes=False, suspends=True)
    )

    # ------------------------------------------------------------ what every backend does

    def submit(self, node: str, assignments: Sequence[Assignment]) -> None:
        self._require_up()
        refused = {a["task"]: self.refuses[a["name"]] for a in assignments if a["name"] in self.refuses}
        for assignment in assignments:
            if assignment["task"] in refused:
                continue
            self.tasks.setdefault((assignment["task"], assignment["epoch"]), FakeTask(assignment, node))
        if refused:
            raise QuotaRefused(refused)

    def stop(self, node: str, stops: Sequence[Stop]) -> None:
        self._require_up()
        for stop in stops:
            task = self.tasks.get((stop["task"], stop["epoch"]))
            if task is None:
                continue
            if stop["stale"]:
                del self.tasks[stop["task"], stop["epoch"]]
            elif task.state == "running" and not self.ignores_stops:
                task.state, task.exit_signal, task.stop_reason = "stopped", 15, stop["reason"]

    def pause(self, node: str, pauses: Sequence[Sequence[int]]) -> None:
        self._require_up()
        for task_id, epoch, suspended in pauses:
            task = self.tasks.get((task_id, epoch))
            if task is not None and task.state == "running" and task.suspended != bool(suspended):
                task.suspended, task.reported = bool(suspended), ""

    def verify(self, node: str, asked: Sequence[Sequence[int]]) -> None:
        self._require_up()
        self.lost += [(node, task, epoch) for task, epoch in asked if (task, epoch) not in self.tasks]

    def observe(self, node: str) -> Observation:
        self._require_up()
        here = [task for task in self.tasks.values() if task.node == node]
        reports = [_report(task) for task in here if self.repeats or task.reported != task.state]
        for task in here:
            task.reported = task.state
        for where, task_id, epoch in self.lost:
            if where == node:
                reports.append(
                    Report(task=task_id, epoch=epoch, state="lost", text="The machine was reinstalled.")
                )
        self.lost = [entry for entry in self.lost if entry[0] != node]
        return Observation({t.assignment["task"]: t.assignment["epoch"] for t in here}, reports)

    def machines(self) -> Sequence[Machine]:
        """None: tests make the nodes."""
        return ()

    def output(self, node: str) -> Sequence[Output]:
        return ()

    def keep_output(self, node: str, ends: Mapping[tuple[int, str], int]) -> None:
        pass

    def close(self) -> None:
        pass

    def _require_up(self) -> None:
        if self.down:
            raise BackendDown("the backend does not answer")

    # ------------------------------------------------------------ what a test does to it

    def end(self, task: int, epoch: int, *, exit_code: int = 0, exit_signal: int | None = None) -> None:
        """End this task."""
        ended = self.tasks[task, epoch]
        ended.state = "succeeded" if exit_code == 0 and exit_signal is None else "failed"
        ended.exit_code = exit_code if exit_signal is None else None
        ended.exit_signal = exit_signal

    def forget(self) -> None:
        self.tasks.clear()


def _report(task: FakeTask) -> Report:
    report = Report(
        task=task.assignment["task"],
        epoch=task.assignment["epoch"],
        state=task.state,
        pid=1000 + task.assignment["task"] % 2**22,
        started_ago_ms=0,
    )
    if task.state == "running":
        report["suspended"] = task.suspended
        return report
    report["ended_ago_ms"] = 0
    if task.exit_code is not None:
        report["exit_code"] = task.exit_code
    if task.exit_signal is not None:
        report["exit_signal"] = task.exit_signal
    if task.stop_reason:
        report["stop_reason"] = task.stop_reason
    return report
