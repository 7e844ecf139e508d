"""What the shim does when: time limits, graces, the fence, and the process that tasks must not outlive."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scheduler.agent import processes
from scheduler.agent.shim import control
from scheduler.agent.shim.deadlines import Deadlines, Owner
from scheduler.agent.shim.task import ShimTask
from scheduler.agent.shim.task_store import TaskStore


@pytest.fixture
def store(tmp_path: Path) -> Iterator[TaskStore]:
    store = TaskStore(tmp_path)
    yield store
    store.close()


def a_task(
    store: TaskStore, key: str = "1-1", *, ran_ms: int = 0, limit_seconds: int | None = None
) -> ShimTask:
    """A task in the books that runs, though it has no process to signal."""
    order: Any = {
        "key": key, "folder": f"/nowhere/{key}", "meta": {}, "limit_seconds": limit_seconds, "grace_seconds": 30,
    }  # fmt: skip
    ((task, _),) = store.add([order])
    task.record |= {"state": "running", "started_boot_ms": processes.boot_ms() - ran_ms}
    return task


def test_a_time_limit_stops_a_task_once_and_gives_it_its_grace(store: TaskStore) -> None:
    over, within = a_task(store, "1-1", ran_ms=2000, limit_seconds=1), a_task(store, "2-1", limit_seconds=60)
    deadlines = Deadlines(store)
    now = time.monotonic()

    deadlines.enforce(now)

    assert (over.record["stop_reason"], within.record["stop_reason"]) == ("time_limit", "")
    assert over.kill_at is not None
    assert 29 < over.kill_at - now < 40
    assert not over.awaits_time_limit
    assert within.kill_at is None


def test_a_changed_time_limit_counts_from_the_start_and_is_journaled(store: TaskStore) -> None:
    raised, cut, freed = (a_task(store, f"{n}-1", ran_ms=2000, limit_seconds=n * 2) for n in (1, 2, 3))
    for task, seconds in ((raised, 20), (cut, 1), (freed, 0)):
        control.change_limit(store, task, seconds)

    Deadlines(store).enforce(time.monotonic())

    assert [task.record["stop_reason"] for task in (raised, cut, freed)] == ["", "time_limit", ""]
    again = [ShimTask.of_entry(task.journal_entry()) for task in (raised, cut, freed)]
    assert [(task.limit_seconds, task.record["changed_limit"]) for task in again] == [
        (20, 20),
        (1, 1),
        (None, 0),
    ]


def test_a_signal_is_due_before_each_limit_once(store: TaskStore) -> None:
    task, plain = a_task(store, limit_seconds=100), a_task(store, "2-1", limit_seconds=100)
    task.record["meta"]["limit_signal"] = {"signal": 10, "to": "all", "before_seconds": 30}
    began = task.record["started_boot_ms"]
    assert (task.signal_at_boot_ms, plain.signal_at_boot_ms) == (began + 70_000, None)

    task.record["signalled_limit"] = 100
    assert task.signal_at_boot_ms is None
    control.change_limit(store, task, 20)
    assert task.signal_at_boot_ms == began  # the limit is nearer than the signal
    control.change_limit(store, task, 0)
    assert task.signal_at_boot_ms is None


def test_a_suspended_task_has_no_time_limit_until_it_is_resumed(store: TaskStore) -> None:
    task = a_task(store, limit_seconds=10)
    control.suspend(store, task)
    assert task.limit_at_boot_ms is None
    task.record["suspended_boot_ms"] -= 3000

    control.resume(store, task)

    assert task.record["suspended_boot_ms"] == 0
    assert task.limit_at_boot_ms == task.record["started_boot_ms"] + 10_000 + task.record["suspended_ms"]
    assert task.record["suspended_ms"] >= 3000


def test_a_fence_stops_all_tasks_and_a_longer_lease_puts_it_off(store: TaskStore) -> None:
    task, deadlines = a_task(store), Deadlines(store)
    deadlines.extend_lease(100)
    now = time.monotonic()
    deadlines.enforce(now)
    assert task.record["stop_reason"] == ""

    deadlines.enforce(now + 101)

    assert (task.record["stop_reason"], deadlines.fence_at) == ("fenced", None)


def test_a_second_stop_can_only_shorten_the_grace(store: TaskStore) -> None:
    task = a_task(store)
    control.stop(store, task, "preempted", 10)
    first = task.kill_at
    assert first is not None

    control.stop(store, task, "cancelled", 60)
    assert (task.kill_at, task.record["stop_reason"]) == (first, "preempted")
    control.stop(store, task, "cancelled", 1)

    assert task.kill_at < first


def test_the_loop_sleeps_until_the_first_of_these(store: TaskStore) -> None:
    deadlines, now = Deadlines(store), time.monotonic()
    assert list(deadlines.due_at(now)) == []
    a_task(store, limit_seconds=50)
    deadlines.extend_lease(30)

    fence, limit = deadlines.due_at(now)

    assert 25 < fence - now < 31
    assert 45 < limit - now < 51


def test_an_owner_has_ended_when_its_number_means_another_process() -> None:
    pid = os.getpid()
    ticks = processes.start_ticks(pid)

    assert not Owner(0, 0).has_ended()
    assert not Owner(pid, ticks).has_ended()
    assert Owner(pid, ticks + 1).has_ended()
