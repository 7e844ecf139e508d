"""What the shim promises: exact ends whatever is killed, and nothing left running."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from scheduler.agent import processes
from scheduler.agent.protocol import GUARD_KILLED
from scheduler.agent.shim.guard import STATUS_FILE_VARIABLE
from scheduler.agent.shim.shim import ORPHAN_SECONDS, Shim
from tests.support.agents import ROOT, wait_for
from tests.support.patience import patience
from tests.support.shims import ESCAPE, LoneShim

pytestmark = pytest.mark.either


def until(file: Path, then: str) -> str:
    return f"while [ ! -e {file} ]; do sleep 0.05; done; {then}"


@pytest.mark.parametrize(
    ("then", "code", "number"), [("exit 7", 7, None), ("exit 0", 0, None), ("kill -9 $$", None, 9)]
)
def test_a_killed_shim_costs_no_exit_code(
    shim: LoneShim, tmp_path: Path, then: str, code: int | None, number: int | None
) -> None:
    shim.start("1-1", until(tmp_path / "go", "echo out; " + then))
    pid = shim.wait("1-1", "running")["pid"]

    shim.kill()
    assert shim.wait("1-1", "running")["pid"] == pid
    (tmp_path / "go").touch()
    record = shim.wait("1-1")

    assert (record["exit_code"], record["exit_signal"], record["lost"]) == (code, number, False)
    assert (record["peak_memory_mib"] or 0) > 0
    assert (tmp_path / "tasks/1-1/stdout").read_text() == "out\n"


def test_what_ends_while_there_is_no_shim_is_known_to_the_next(shim: LoneShim, tmp_path: Path) -> None:
    shim.start("1-1", until(tmp_path / "go", "exit 9"))
    shim.start("2-1", until(tmp_path / "go", "exit 0"))
    pids = [shim.wait(key, "running")["pid"] for key in ("1-1", "2-1")]
    shim.kill_for_good()

    (tmp_path / "go").touch()
    wait_for(lambda: not any(processes.start_ticks(pid) for pid in pids))
    shim.restart()

    assert [(shim.wait(key)["exit_code"], shim.wait(key)["lost"]) for key in ("1-1", "2-1")] == [
        (9, False),
        (0, False),
    ]


def test_an_order_to_stop_and_a_limit_act_after_the_shim_was_killed(shim: LoneShim) -> None:
    shim.start("1-1", "trap 'exit 5' TERM; while :; do sleep 0.05; done")
    shim.start("2-1", "while :; do sleep 0.05; done", limit_seconds=2)
    for key in ("1-1", "2-1"):
        shim.wait(key, "running")

    shim.kill()
    shim.wait("1-1", "running")
    shim.link.stop_task("1-1", reason="cancelled", grace_seconds=5)

    stopped, over = shim.wait("1-1"), shim.wait("2-1")
    assert (stopped["stop_reason"], stopped["exit_code"], stopped["lost"]) == ("cancelled", 5, False)
    assert (over["stop_reason"], over["exit_signal"], over["lost"]) == ("time_limit", signal.SIGTERM, False)


@pytest.mark.parametrize("shim_killed", [False, True])
def test_what_leaves_session_and_environment_ends_with_its_task_beside_others(
    shim: LoneShim, tmp_path: Path, shim_killed: bool
) -> None:
    shim.start("1-1", "sleep 60")  # as long as something runs, an orphan could be its
    shim.wait("1-1", "running")
    shim.start("2-1", ESCAPE.format(file=tmp_path / "pid") + until(tmp_path / "go", "exit 0"))
    shim.wait("2-1", "running")
    pid = int(wait_for(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip()))

    if shim_killed:
        shim.kill()
    (tmp_path / "go").touch()
    record = shim.wait("2-1")

    assert (record["exit_code"], record["lost"]) == (0, False)
    assert not processes.start_ticks(pid)
    assert shim.records["1-1"]["state"] == "running"


def test_orphans_of_orphans_and_children_of_threads_end_with_their_task(
    shim: LoneShim, tmp_path: Path
) -> None:
    code = (
        "import os, subprocess, threading\n"
        "def work():\n"
        "    shell = 'trap \"\" TERM; (setsid sleep 1000 &); sleep 1000'\n"
        "    p = subprocess.Popen(['setsid', 'sh', '-c', shell], env={'PATH': os.environ['PATH']})\n"
        "    open('pid', 'w').write(str(p.pid))\n"
        "    threading.Event().wait()\n"
        "threading.Thread(target=work, daemon=True).start()\n"
        "import time\n"
        "while not (os.path.exists('pid') and open('pid').read()): time.sleep(0.02)\n"
        "time.sleep(0.3)\n"
    )
    shim.start("1-1", f"exec {sys.executable} ../script", script=code)
    shim.start("2-1", "sleep 60")
    shim.wait("1-1")

    inside = str(tmp_path / "tasks/1-1")
    assert [pid for pid in processes.all_pids() if _folder_of(pid).startswith(inside)] == []


@pytest.mark.parametrize("shim_killed", [False, True])
def test_a_killed_guard_takes_its_task_along_and_no_other(
    shim: LoneShim, tmp_path: Path, shim_killed: bool
) -> None:
    shim.start("1-1", "sleep 60")
    escaped = (
        "" if shim_killed else ESCAPE.format(file=tmp_path / "pid")
    )  # without a shim it would have no subreaper
    shim.start("2-1", escaped + "setsid sleep 1000 & echo $! > inner; touch ../here; wait")
    shim.wait("1-1", "running")
    pid = shim.wait("2-1", "running")["pid"]
    wait_for(lambda: (tmp_path / "tasks/2-1/here").exists())
    if shim_killed:
        shim.kill()
        shim.wait("2-1", "running")

    os.kill(shim.guard_pid("2-1"), signal.SIGKILL)
    record = shim.wait("2-1")

    assert (record["exit_code"], record["exit_signal"], record["lost"]) == (None, None, False)
    assert record["text"] == GUARD_KILLED
    pids = [pid, int((tmp_path / "tasks/2-1/work/inner").read_text())]
    pids += [] if shim_killed else [int((tmp_path / "pid").read_text())]
    wait_for(lambda: not any(processes.start_ticks(pid) for pid in pids))
    assert shim.records["1-1"]["state"] == "running"


def test_guard_and_shim_killed_at_once_end_the_task_too(shim: LoneShim) -> None:
    shim.start("1-1", "setsid sleep 1000 & sleep 1000")
    pid = shim.wait("1-1", "running")["pid"]
    victims = [shim.guard_pid("1-1"), shim.pid]
    shim.records.clear()
    for victim in victims:
        os.kill(victim, signal.SIGKILL)

    record = shim.wait("1-1")

    assert (record["text"], record["lost"]) == (GUARD_KILLED, False)
    assert not processes.start_ticks(pid)
    status_file = str(shim.state / "guards/1-1")
    assert not [
        pid
        for pid in processes.all_pids()
        if processes.environment_value(pid, STATUS_FILE_VARIABLE) == status_file
    ]


def test_a_task_of_another_portal_with_the_same_key_goes_on(shim: LoneShim, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = LoneShim(tmp_path / "other")
    other.link.start()
    try:
        for portal in (shim, other):
            portal.start("1-1", "sleep 1000")
        pids = [portal.wait("1-1", "running")["pid"] for portal in (shim, other)]

        os.kill(shim.guard_pid("1-1"), signal.SIGKILL)
        shim.wait("1-1")

        assert not processes.start_ticks(pids[0])
        assert processes.start_ticks(pids[1])
        assert other.records["1-1"]["state"] == "running"
    finally:
        other.clean_up()


def _folder_of(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/cwd")
    except OSError:
        return ""


# ---------------------------------------------------------------- commands and leases


def test_the_same_order_twice_starts_once(shim: LoneShim) -> None:
    for _ in range(3):
        shim.start("1-1", "echo x >> ../count; sleep 0.2")
    shim.wait("1-1")

    assert (shim.state / "tasks/1-1/count").read_text() == "x\n"


def test_a_fence_stops_everything(shim: LoneShim) -> None:
    shim.start("1-1", "sleep 60")
    pid = shim.wait("1-1", "running")["pid"]

    shim.link.extend_lease(0.5)
    record = shim.wait("1-1")

    assert (record["stop_reason"], record["exit_signal"]) == ("fenced", 15)
    assert not processes.start_ticks(pid)


def test_a_lease_that_is_extended_stops_nothing(shim: LoneShim) -> None:
    fence = patience(0.8)
    shim.start("1-1", "sleep 1.2")
    for _ in range(6):
        shim.link.extend_lease(fence)
        time.sleep(0.2)

    assert shim.wait("1-1")["exit_code"] == 0


def test_a_stopped_process_is_woken_to_end(shim: LoneShim) -> None:
    shim.start("1-1", "kill -STOP $$")
    shim.wait("1-1", "running")
    time.sleep(0.2)

    shim.link.stop_task("1-1", reason="cancelled", grace_seconds=5)

    assert shim.wait("1-1")["exit_signal"] == signal.SIGTERM


def test_a_task_that_is_forgotten_leaves_nothing(shim: LoneShim) -> None:
    shim.start("1-1", "touch file; mkdir -m 0 closed")
    shim.wait("1-1")

    shim.link.forget(["1-1"])

    wait_for(lambda: not (shim.state / "tasks/1-1").exists())
    entries = [json.loads(line) for line in (shim.state / "journal.jsonl").read_text().splitlines()]
    assert entries[-1] == {"forget": "1-1"}


def test_without_agent_and_tasks_a_shim_ends(tmp_path: Path) -> None:
    alone = Shim(tmp_path)
    alone.agent.left_at = time.monotonic() - ORPHAN_SECONDS - 1

    assert alone.may_exit()
    alone.agent.left_at = time.monotonic()
    assert not alone.may_exit()
    alone.store.close()


def test_an_agent_of_an_earlier_version_can_start_a_shim(shim: LoneShim, tmp_path: Path) -> None:
    """It runs on while Muster is upgraded under it, and knows the shim by another name."""
    shim.start("1-1", until(tmp_path / "go", "exit 9"))
    pid = shim.wait("1-1", "running")["pid"]
    shim.kill_for_good()

    with subprocess.Popen(
        [sys.executable, "-S", "-m", "scheduler.agent.keeper", str(tmp_path)],
        cwd=tmp_path, env={"PATH": os.defpath, "PYTHONPATH": str(ROOT)},
    ) as started:  # fmt: skip
        try:
            wait_for(lambda: (tmp_path / "keeper.lock").read_text().strip() == str(started.pid))
            shim.restart()
            assert (shim.pid, shim.wait("1-1", "running")["pid"]) == (started.pid, pid)
            (tmp_path / "go").touch()
            assert shim.wait("1-1")["exit_code"] == 9
        finally:
            started.kill()
