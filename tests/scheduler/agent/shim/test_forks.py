"""How guards are forked: what each holds, and what the end of the process that forks them costs."""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path
from typing import Any, NoReturn

import pytest

from scheduler.agent import processes
from scheduler.agent.isolation import kernel, namespaces
from scheduler.agent.isolation.cell import Cell, Hold
from scheduler.agent.isolation.means import OWN_NAMESPACES, Means
from scheduler.agent.isolation.namespaces import View
from scheduler.agent.protocol import NEVER_BEGAN, TaskOrder
from scheduler.agent.shim import guard
from scheduler.agent.shim.forks import first_task
from scheduler.agent.shim.forks.server import ForkServer, ForkServerLost
from scheduler.agent.shim.guard_status import StatusFiles, StatusWriter
from scheduler.agent.shim.shim import Shim
from scheduler.agent.shim.task import ShimTask
from tests.support.agents import wait_for
from tests.support.shims import LoneShim

pytestmark = pytest.mark.either

#: What a guard may hold for itself while its first task runs; 1.8 to 2.3 MiB where it isolates and starts it itself.
MOST_KIB = 1024


def fork_server_of(shim: LoneShim) -> int:
    (server,) = (
        pid
        for pid in processes.children_of(shim.pid)
        if b"guards are forked here" in Path(f"/proc/{pid}/cmdline").read_bytes()
    )
    return server


def own_kib(pid: int) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Private_Dirty:"))


def order_of(tmp_path: Path, key: str) -> TaskOrder:
    (tmp_path / "tasks").mkdir(exist_ok=True)
    folder = f"{tmp_path}/tasks/{key}"
    return TaskOrder(
        key=key, folder=folder, cwd=f"{folder}/work", script="", argv=["/bin/sh", "-c", "exit 3"], env={},
        limit_seconds=None, grace_seconds=1, meta={},
    )  # fmt: skip


def test_a_guard_holds_less_than_1_mib_while_its_first_task_runs(shim: LoneShim) -> None:
    for number in range(1, 5):
        shim.start(f"{number}-1", "exec sleep 60")
        shim.wait(f"{number}-1", "running")

    # The last one shares with no later fork what the server has changed since.
    assert [number for number in range(1, 5) if own_kib(shim.guard_pid(f"{number}-1")) > MOST_KIB] == []


def test_a_killed_fork_server_costs_no_task(shim: LoneShim) -> None:
    shim.start("1-1", "exec sleep 60")
    pid = shim.wait("1-1", "running")["pid"]
    server = fork_server_of(shim)

    os.kill(server, signal.SIGKILL)
    shim.start("2-1", "exit 3")

    assert shim.wait("2-1")["exit_code"] == 3
    assert (shim.records["1-1"]["state"], bool(processes.start_ticks(pid))) == ("running", True)
    assert fork_server_of(shim) != server


@pytest.mark.parametrize("forked", [False, True])
def test_a_guard_is_forked_again_only_where_none_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forked: bool
) -> None:
    held: list[int] = []

    def lose(data: bytes, namespaces: int, status_file: int, orders: int) -> int:
        if held:
            return 1234
        # A guard that was forked has the other end of its socket.
        held.append(os.dup(orders if forked else status_file))
        raise ForkServerLost(0, "the fork server of guards has ended")

    guards = Shim(tmp_path).guards._processes
    monkeypatch.setattr(guards, "fork_guard", lose)
    task = ShimTask.of_order(order_of(tmp_path, "1-1"), boot_id="b")
    with open(os.devnull, "rb") as file:
        try:
            guards._fork(task, order_of(tmp_path, "1-1"), "status", file.fileno(), "", None)
        except ForkServerLost:
            assert forked
        else:
            assert not forked
            guards.release(task, reusable=False)
        finally:
            os.close(held[0])
    assert (task.guard_pid == 1234) is not forked


def test_the_fork_server_ends_with_its_shim_and_guards_do_not(shim: LoneShim) -> None:
    shim.start("1-1", "exec sleep 60")
    shim.wait("1-1", "running")
    server, guarding = fork_server_of(shim), shim.guard_pid("1-1")

    shim.kill()

    wait_for(lambda: not processes.start_ticks(server))
    assert processes.start_ticks(guarding)


def test_a_server_that_cannot_be_kept_alive_is_an_error_and_no_guard(tmp_path: Path) -> None:
    def guard_is_never_forked(data: bytes, status_file: int, orders: int) -> NoReturn:
        (tmp_path / "forked").touch()
        os._exit(0)

    server = ForkServer(guard_is_never_forked, lambda *keep: os._exit(1))
    with open(os.devnull, "rb") as file, pytest.raises(OSError, match=r"fork server|Broken pipe|reset"):
        server.fork(b"task", 0, status_file=file.fileno(), orders=file.fileno())

    assert (server.pid, (tmp_path / "forked").exists()) == (0, False)


def test_a_task_whose_guard_may_have_been_forked_is_lost_and_not_said_to_be_unstartable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose(*_: object, **__: object) -> NoReturn:
        raise ForkServerLost(0, "the fork server of guards has ended")

    shim = Shim(tmp_path)
    monkeypatch.setattr(shim.guards._processes, "assign", lose)
    # It would end all children of this process that it does not know, and the suite's servers are such.
    monkeypatch.setattr(shim.guards, "sweep", lambda: None)
    shim.start([order_of(tmp_path, "1-1")])

    shim.guards.poll()

    record = shim.store.tasks["1-1"].record
    assert (record["state"], record["lost"], record["text"]) == ("ended", True, NEVER_BEGAN)


def test_without_clone3_the_shim_forks_guards_itself_but_not_into_namespaces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def refuse(*_: object, **__: object) -> NoReturn:
        asked.append(1)
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    guards = Shim(tmp_path).guards._processes
    monkeypatch.setattr(guards._server, "fork", refuse)
    monkeypatch.setattr(os, "fork", lambda: 1234)

    for _ in range(2):
        with pytest.raises(OSError, match="not implemented"):
            guards.fork_guard(b"", kernel.CLONE_NEWPID, -1, -1)
        assert guards.fork_guard(b"", 0, -1, -1) == 1234
    assert len(asked) == 3


def test_a_process_without_a_mount_namespace_of_its_own_mounts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounted: list[object] = []
    monkeypatch.setattr(kernel, "mount", lambda *what: mounted.append(what))
    (tmp_path / "tasks").mkdir()
    (tmp_path / "private").mkdir()
    means = Means(str(tmp_path), namespaces=OWN_NAMESPACES)
    namespaces.remember_account()

    with pytest.raises(OSError, match="no mount namespace of its own"):
        View(str(tmp_path)).make(means, str(tmp_path / "private"))
    monkeypatch.setattr(namespaces, "OUTER_MOUNTS", [])
    with pytest.raises(OSError, match="no mount namespace of its own"):
        View(str(tmp_path)).make(means, str(tmp_path / "private"))

    assert mounted == []


@pytest.mark.parametrize(("ran_ms", "another"), [(1_000, True), (6_000, False)])
def test_a_guard_has_another_task_only_after_a_short_one(tmp_path: Path, ran_ms: int, another: bool) -> None:
    file = StatusFiles(tmp_path).create("1-1")
    read_end, write_end = os.pipe()
    try:
        status = StatusWriter(file, write_end, "1-1")
        end: dict[str, Any] = {"ended": 100_000, "code": 0}
        cell = Cell(Means(), held=Hold(os.getpid()))

        assert guard._write_end(end, 100_000 - ran_ms, 0, guard.Usage(), cell, status) is another
        assert (b"worn" in os.pread(file, 4096, 0)) is not another
    finally:
        for opened in (file, read_end, write_end):
            os.close(opened)


def test_the_time_that_a_guard_needs_to_start_a_task_is_not_the_tasks() -> None:
    usage = guard.Usage()
    usage.without(0.25)
    assert usage.as_line()["cpu_ms"] == 0

    usage._cpu_seconds = 1.0
    usage.without(0.25)
    assert usage.as_line()["cpu_ms"] == 750


def test_a_task_that_cannot_be_forked_leaves_no_pipe_open(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_process() -> int:
        raise BlockingIOError(errno.EAGAIN, "too many processes")

    monkeypatch.setattr(os, "fork", no_process)
    before = os.listdir("/proc/self/fd")

    assert first_task.start(lambda report: os._exit(1)) == (0, b"")

    assert os.listdir("/proc/self/fd") == before
