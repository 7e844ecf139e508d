"""What a task may fill of its node's disk: counted at a bounded cost, and ended with a reason when it is too much."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from scheduler.agent.protocol import OUT_OF_STORAGE
from scheduler.agent.shim.folders import scratch_watch
from scheduler.agent.shim.folders.scratch_watch import ScratchWatch, _sizes
from scheduler.agent.shim.task import ShimTask
from scheduler.agent.shim.task_store import TaskStore
from scheduler.agent.shim.usage_watch import held_mib
from tests.support.shims import LoneShim

pytestmark = pytest.mark.either

MIB = 1024 * 1024


def _write(path: Path, mib: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(os.urandom(mib * MIB))


def _mib(*roots: Path) -> int:
    return sum(_sizes([str(root) for root in roots])) // MIB


class Watched:
    """A store with running tasks, whose signals are noted instead of sent."""

    def __init__(self, state: Path, *limits: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store = TaskStore(state)
        self.killed: list[str] = []
        monkeypatch.setattr(ShimTask, "signal", lambda task, number, **_: self.killed.append(task.key))
        orders = [
            {
                "key": f"{number}-1", "folder": f"{state}/{number}", "cwd": "/", "script": "", "argv": [], "env": {},
                "limit_seconds": None, "grace_seconds": 1, "meta": {}, "scratch_limit_mib": limit,
            }
            for number, limit in enumerate(limits)
        ]  # fmt: skip
        self.watch = ScratchWatch(self.store)
        for task, _ in self.store.add(orders):  # type: ignore[arg-type]
            task.record["state"] = "running"
            self.watch.task_started(task)

    def look(self) -> None:
        assert self.watch.due_at is not None
        self.watch.check_when_due(self.watch.due_at)


def test_holes_cost_nothing_two_names_count_once_and_no_link_is_followed(tmp_path: Path) -> None:
    _write(tmp_path / "elsewhere/large", 4)
    _write(tmp_path / "work/deep/er/file", 2)
    os.link(tmp_path / "work/deep/er/file", tmp_path / "work/again")
    os.symlink(tmp_path / "elsewhere", tmp_path / "work/folder")
    os.symlink(tmp_path / "elsewhere/large", tmp_path / "work/file")
    os.truncate(tmp_path / "work/again", 2 * MIB)
    with (tmp_path / "work/sparse").open("wb") as sparse:
        sparse.truncate(1000 * MIB)
    os.mkfifo(tmp_path / "work/pipe")

    assert _mib(tmp_path / "work") == 2
    assert _mib(tmp_path / "work", tmp_path / "elsewhere") == 6
    assert _mib(tmp_path / "work/folder") == 0
    assert _mib(tmp_path / "gone") == 0


def test_the_task_that_fills_too_much_is_ended_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(tmp_path, 2, 8, monkeypatch=monkeypatch)
    _write(tmp_path / "0/work/file", 3)
    _write(tmp_path / "1/work/file", 3)

    watched.look()

    record = watched.store.tasks["0-1"].record
    assert watched.killed == ["0-1"]
    assert record["failure"] == OUT_OF_STORAGE
    assert record["text"].startswith("The task used 3 MiB or more of disk")
    assert record["text"].endswith("its limit is 2 MiB.")


def test_the_private_temporary_folder_and_the_output_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(tmp_path, 4, monkeypatch=monkeypatch)
    watched.store.tasks["0-1"].private_tmp = str(tmp_path / "private")
    _write(tmp_path / "0/stdout", 3)
    watched.look()
    assert watched.killed == []

    _write(tmp_path / "private/file", 2)
    watched.look()

    assert watched.killed == ["0-1"]


def test_a_look_takes_in_so_many_names_and_the_next_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scratch_watch, "MOST_NAMES", 50)
    (tmp_path / "0/work").mkdir(parents=True)
    for number in range(180):
        (tmp_path / f"0/work/{number}").write_bytes(bytes(8192))
    watched = Watched(tmp_path, 1, monkeypatch=monkeypatch)
    looks = 0
    while not watched.killed:
        watched.look()
        looks += 1

    assert looks == 3  # 128 files are 1 MiB


def test_limits_are_known_to_the_shim_after_this_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(tmp_path, 2, monkeypatch=monkeypatch)
    task = watched.store.tasks["0-1"]
    task.private_tmp = "/private/1"

    again = ShimTask.of_entry(task.journal_entry())

    assert (again.scratch_limit_mib, again.private_tmp) == (2, "/private/1")


def test_nothing_is_due_without_a_limit(tmp_path: Path) -> None:
    watch = ScratchWatch(TaskStore(tmp_path))
    task = ShimTask.of_order(
        {"key": "1-1", "folder": "", "cwd": "", "script": "", "argv": [], "env": {}, "limit_seconds": None,
         "grace_seconds": 1, "meta": {}}, boot_id="",
    )  # fmt: skip

    watch.task_started(task)

    assert watch.due_at is None


def test_a_real_task_is_ended(shim: LoneShim) -> None:
    shim.start("1-1", "head -c 6000000 /dev/zero > big; sleep 60", scratch_limit_mib=4)

    record = shim.wait("1-1")

    assert (record["exit_signal"], record["failure"]) == (signal.SIGKILL, OUT_OF_STORAGE)


def test_what_is_in_a_private_shared_memory_counts_as_memory() -> None:
    own = held_mib([os.getpid()], 2**30)

    assert held_mib([os.getpid()], 2**30, shared_bytes=500 * MIB) == own + 500
    assert held_mib([os.getpid()], 1, shared_bytes=500 * MIB) >= 500
