"""Starts take turns: no more tasks are at their start at a time than the machine's CPUs can use."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from scheduler.agent.protocol import TaskOrder
from scheduler.agent.shim import control
from scheduler.agent.shim.shim import Shim
from scheduler.agent.shim.task import ShimTask

pytestmark = pytest.mark.either


class Starts:
    """A shim whose guards are not forked: the keys of the tasks that it would have given one."""

    def __init__(self, state: Path, monkeypatch: pytest.MonkeyPatch, *, at_a_time: int) -> None:
        self.state = state
        self.shim = Shim(state)
        self.begun: list[str] = []
        self.shim.guards.most_starting = at_a_time
        (state / "tasks").mkdir()
        monkeypatch.setattr(self.shim.guards._processes, "assign", self._assign)

    def _assign(self, task: ShimTask, *_: object, **__: object) -> None:
        self.begun.append(task.key)

    def order(self, *keys: str) -> None:
        self.shim.start([self._order(key) for key in keys])

    def _order(self, key: str) -> TaskOrder:
        folder = f"{self.state}/tasks/{key}"
        return TaskOrder(
            key=key, folder=folder, cwd=f"{folder}/work", script="", argv=["/bin/true"], env={},
            limit_seconds=None, grace_seconds=1, meta={},
        )  # fmt: skip

    def task(self, key: str) -> ShimTask:
        return self.shim.store.tasks[key]


@pytest.fixture
def two_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Starts:
    return Starts(tmp_path, monkeypatch, at_a_time=2)


def test_the_next_starts_when_one_runs_or_has_ended(two_at_a_time: Starts) -> None:
    starts = two_at_a_time
    starts.order("1-1", "2-1", "3-1", "4-1")
    assert starts.begun == ["1-1", "2-1"]

    starts.task("2-1").record["state"] = "running"
    starts.shim.guards.start_waiting()
    assert starts.begun == ["1-1", "2-1", "3-1"]

    starts.shim.store.end(starts.task("1-1"))
    starts.shim.guards.start_waiting()
    assert starts.begun == ["1-1", "2-1", "3-1", "4-1"]


def test_a_start_that_hangs_keeps_no_other_task_waiting(
    two_at_a_time: Starts, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts = two_at_a_time
    starts.order("1-1", "2-1", "3-1")

    (due,) = [at for at in starts.shim.guards.due_at() if at != starts.shim.guards._poll_at]
    monkeypatch.setattr(time, "monotonic", lambda: due)
    starts.shim.guards.start_waiting()

    assert starts.begun == ["1-1", "2-1", "3-1"]


def test_a_task_that_is_stopped_before_its_turn_never_starts(two_at_a_time: Starts) -> None:
    """A fence stops all tasks: what waits must not begin on devices that the server gives to others."""
    starts = two_at_a_time
    starts.order("1-1", "2-1", "3-1", "4-1")

    control.stop_all(starts.shim.store, "fenced")
    for key in ("1-1", "2-1"):
        starts.shim.store.end(starts.task(key))
    starts.shim.guards.start_waiting()

    assert starts.begun == ["1-1", "2-1"]
    ended = [starts.task(key).record for key in ("3-1", "4-1")]
    assert [(one["state"], one["stop_reason"], one["pid"]) for one in ended] == [("ended", "fenced", 0)] * 2
    assert not starts.shim.store.live
