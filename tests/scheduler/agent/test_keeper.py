"""What the keeper promises: exact ends whoever is killed, nothing left running, and a bound on processes."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from scheduler.agent import guard, journal, keeper, processes
from scheduler.agent.keeper_link import KeeperLink
from scheduler.agent.protocol import NEVER_BEGAN
from tests.support.agents import stands_still, wait_for
from tests.support.keepers import Kept

pytestmark = pytest.mark.either


def kill_keeper(kept: Kept) -> None:
    """Kill it, and return once the next one has said what it knows."""
    before = kept.link.keeper_pid
    kept.records.clear()
    os.kill(before, signal.SIGKILL)
    wait_for(lambda: kept.link.keeper_pid != before and kept.records)


def until(file: Path, then: str) -> str:
    return f"while [ ! -e {file} ]; do sleep 0.05; done; {then}"


@pytest.mark.parametrize(
    ("then", "code", "number"), [("exit 7", 7, None), ("exit 0", 0, None), ("kill -9 $$", None, 9)]
)
def test_a_killed_keeper_costs_no_exit_code(
    kept: Kept, tmp_path: Path, then: str, code: int | None, number: int | None
) -> None:
    kept.start("1-1", until(tmp_path / "go", "echo out; " + then))
    pid = kept.wait("1-1", "running")["pid"]

    kill_keeper(kept)
    assert kept.wait("1-1", "running")["pid"] == pid
    (tmp_path / "go").touch()
    record = kept.wait("1-1")

    assert (record["exit_code"], record["exit_signal"], record["lost"]) == (code, number, False)
    assert (record["peak_memory_mib"] or 0) > 0
    assert (tmp_path / "tasks/1-1/stdout").read_text() == "out\n"


def test_what_ends_while_there_is_no_keeper_is_known_to_the_next(kept: Kept, tmp_path: Path) -> None:
    kept.start("1-1", until(tmp_path / "go", "exit 9"))
    kept.start("2-1", until(tmp_path / "go", "exit 0"))
    pids = [kept.wait(key, "running")["pid"] for key in ("1-1", "2-1")]
    kept.link._closed = True
    os.kill(kept.link.keeper_pid, signal.SIGKILL)
    kept.link._thread.join(10)
    for keeper_process in kept.link._started:
        keeper_process.wait()

    (tmp_path / "go").touch()
    wait_for(lambda: not any(processes.start_ticks(pid) for pid in pids))
    kept.records.clear()
    kept.link = KeeperLink(tmp_path, watch_pid=0, on_records=kept._take)
    kept.link.start()

    assert [(kept.wait(key)["exit_code"], kept.wait(key)["lost"]) for key in ("1-1", "2-1")] == [
        (9, False),
        (0, False),
    ]


def test_an_order_to_stop_and_a_limit_act_after_the_keeper_was_killed(kept: Kept) -> None:
    kept.start("1-1", "trap 'exit 5' TERM; while :; do sleep 0.05; done")
    kept.start("2-1", "while :; do sleep 0.05; done", limit_seconds=2)
    for key in ("1-1", "2-1"):
        kept.wait(key, "running")

    kill_keeper(kept)
    kept.wait("1-1", "running")
    kept.link.stop_task("1-1", reason="cancelled", grace_seconds=5)

    stopped, over = kept.wait("1-1"), kept.wait("2-1")
    assert (stopped["stop_reason"], stopped["exit_code"], stopped["lost"]) == ("cancelled", 5, False)
    assert (over["stop_reason"], over["exit_signal"], over["lost"]) == ("time_limit", signal.SIGTERM, False)


#: Leaves its session, its group, its environment and its parent.
_ESCAPE = (
    "env -i setsid sh -c 'echo $$ > {file}; exec sleep 1000' & while [ ! -s {file} ]; do sleep 0.02; done; "
)


@pytest.mark.parametrize("keeper_killed", [False, True])
def test_what_leaves_session_and_environment_ends_with_its_task_beside_others(
    kept: Kept, tmp_path: Path, keeper_killed: bool
) -> None:
    kept.start("1-1", "sleep 60")  # as long as something runs, an orphan could be its
    kept.wait("1-1", "running")
    kept.start("2-1", _ESCAPE.format(file=tmp_path / "pid") + until(tmp_path / "go", "exit 0"))
    kept.wait("2-1", "running")
    pid = int(wait_for(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip()))

    if keeper_killed:
        kill_keeper(kept)
    (tmp_path / "go").touch()
    record = kept.wait("2-1")

    assert (record["exit_code"], record["lost"]) == (0, False)
    assert not processes.start_ticks(pid)
    assert kept.records["1-1"]["state"] == "running"


def test_orphans_of_orphans_and_children_of_threads_end_with_their_task(kept: Kept, tmp_path: Path) -> None:
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
    kept.start("1-1", f"exec {sys.executable} ../script", script=code)
    kept.start("2-1", "sleep 60")
    kept.wait("1-1")

    inside = str(tmp_path / "tasks/1-1")
    assert [pid for pid in processes.all_pids() if _folder_of(pid).startswith(inside)] == []


def guard_of(kept: Kept, key: str) -> int:
    line = guard.read_slip(f"{kept.state}/guards/{key}").line("guard")
    assert line is not None
    return int(line["guard"])


@pytest.mark.parametrize("keeper_killed", [False, True])
def test_a_killed_guard_takes_its_task_along_and_no_other(
    kept: Kept, tmp_path: Path, keeper_killed: bool
) -> None:
    kept.start("1-1", "sleep 60")
    escaped = (
        "" if keeper_killed else _ESCAPE.format(file=tmp_path / "pid")
    )  # an orphan of nobody without a keeper
    kept.start("2-1", escaped + "setsid sleep 1000 & echo $! > inner; touch ../here; wait")
    kept.wait("1-1", "running")
    pid = kept.wait("2-1", "running")["pid"]
    wait_for(lambda: (tmp_path / "tasks/2-1/here").exists())
    if keeper_killed:
        kill_keeper(kept)
        kept.wait("2-1", "running")

    os.kill(guard_of(kept, "2-1"), signal.SIGKILL)
    record = kept.wait("2-1")

    assert (record["exit_code"], record["exit_signal"], record["lost"]) == (None, None, False)
    assert record["text"] == keeper.GUARD_KILLED
    pids = [pid, int((tmp_path / "tasks/2-1/work/inner").read_text())]
    pids += [] if keeper_killed else [int((tmp_path / "pid").read_text())]
    wait_for(lambda: not any(processes.start_ticks(pid) for pid in pids))
    assert kept.records["1-1"]["state"] == "running"


def test_guard_and_keeper_killed_at_once_end_the_task_too(kept: Kept) -> None:
    kept.start("1-1", "setsid sleep 1000 & sleep 1000")
    pid = kept.wait("1-1", "running")["pid"]
    victims = [guard_of(kept, "1-1"), kept.link.keeper_pid]
    kept.records.clear()
    for victim in victims:
        os.kill(victim, signal.SIGKILL)

    record = kept.wait("1-1")

    assert (record["text"], record["lost"]) == (keeper.GUARD_KILLED, False)
    assert not processes.start_ticks(pid)
    slip = str(kept.state / "guards/1-1")
    assert not [
        pid for pid in processes.all_pids() if processes.environment_value(pid, guard.SLIP_VARIABLE) == slip
    ]


def test_a_task_of_another_portal_with_the_same_key_goes_on(kept: Kept, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = Kept(tmp_path / "other")
    other.link.start()
    try:
        for portal in (kept, other):
            portal.start("1-1", "sleep 1000")
        pids = [portal.wait("1-1", "running")["pid"] for portal in (kept, other)]

        os.kill(guard_of(kept, "1-1"), signal.SIGKILL)
        kept.wait("1-1")

        assert not processes.start_ticks(pids[0])
        assert processes.start_ticks(pids[1])
        assert other.records["1-1"]["state"] == "running"
    finally:
        other.clean_up()


def test_a_task_whose_guard_was_never_there_never_began(tmp_path: Path) -> None:
    """The keeper was killed between its word in the journal and the guard."""
    first = keeper.Keeper(tmp_path)
    entry: Any = {
        "key": "5-2", "folder": str(tmp_path / "tasks/5-2"), "meta": {}, "limit_seconds": None, "grace_seconds": 1,
    }  # fmt: skip
    first.journal.append(keeper._Task(first._blank(entry), None, 1).journal_entry())
    first.journal.close()
    later = keeper.Keeper(tmp_path)

    later._recover()

    record = later.tasks["5-2"].record
    assert (record["state"], record["lost"], record["text"]) == ("ended", True, NEVER_BEGAN)
    later.journal.close()


def test_a_task_with_more_processes_than_it_may_have_is_ended_and_told_why(kept: Kept) -> None:
    kept.start("1-1", "for i in $(seq 60); do sleep 60 & done; wait", process_limit=50)
    kept.start("2-1", "for i in $(seq 30); do sleep 3 & done; wait", process_limit=50)

    record = kept.wait("1-1")

    assert (record["exit_signal"], record["stop_reason"]) == (signal.SIGKILL, "")
    assert record["text"] == "It had 61 processes; a task may have 50 on this node."
    assert kept.wait("2-1")["exit_code"] == 0


def test_a_task_that_forks_without_end_is_ended(kept: Kept, tmp_path: Path) -> None:
    (tmp_path / "bomb.py").write_text(
        "import os, sys, time\n"
        "n = 0\n"
        "while n < 1500:\n"
        "    if os.fork() == 0:\n"
        "        os.setsid(); time.sleep(100)\n"
        "    n += 1\n"
        "time.sleep(100)\n"
    )
    kept.start("1-1", f"env -i setsid {sys.executable} -S {tmp_path}/bomb.py", process_limit=200)

    assert kept.wait("1-1")["text"].endswith("processes; a task may have 200 on this node.")


def _folder_of(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/cwd")
    except OSError:
        return ""


def test_on_a_full_disk_a_journal_stays_whole_and_nothing_starts_unwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = journal.Journal(tmp_path / "journal.jsonl")
    book.append({"a": 1})
    real = os.write
    monkeypatch.setattr(journal.os, "write", lambda fd, data: real(fd, data[:5]))
    with pytest.raises(OSError, match="No space"):
        book.append({"b": 2})
    book.compact(lambda: [{"a": 1}], now=True)
    monkeypatch.undo()

    book.append({"c": 3})

    assert list(book.replay()) == [{"a": 1}, {"c": 3}]
    book.close()


def test_what_has_left_its_group_stands_still_too(kept: Kept, tmp_path: Path) -> None:
    kept.start("1-1", _ESCAPE.format(file=tmp_path / "pid") + "sleep 60")
    kept.wait("1-1", "running")
    pid = int(wait_for(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip()))

    kept.link.pause_task("1-1", still=True)
    wait_for(lambda: stands_still(pid))
    kept.link.pause_task("1-1", still=False)

    wait_for(lambda: not stands_still(pid))
