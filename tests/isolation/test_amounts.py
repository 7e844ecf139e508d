"""What a task asked for is what it gets, by the kernel, whatever session its processes move to."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from scheduler.agent import processes
from tests.isolation.conftest import means_of, remove_groups
from tests.support.agents import wait_for
from tests.support.shims import LoneShim

pytestmark = pytest.mark.either


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoneShim]:
    state = tmp_path_factory.mktemp("bounded")
    means = means_of("all", state)
    if not {"memory", "pids", "cpu"} <= set(means.groups.folders):
        pytest.skip("this machine has no control groups that this process may divide")
    shim = LoneShim(state, means)
    shim.link.start()
    yield shim
    shim.clean_up()
    remove_groups(means)


def out(shim: LoneShim, key: str) -> str:
    return (shim.state / f"tasks/{key}/stdout").read_text()


HOG = f"{sys.executable} -S -c 'held = bytes([1]) * 300_000_000; print(len(held))'"


@pytest.mark.parametrize("how", ["", "setsid -w ", "env -i setsid -w "])
def test_more_memory_than_the_limit_ends_what_takes_it(shim: LoneShim, how: str) -> None:
    key = f"{10 + len(how)}-1"
    shim.start(key, f"{how}{HOG}", user="alice", memory_limit_mib=64)

    record = shim.wait(key)

    # Where the task is slow, the shim may measure it between the limit and the 8 MiB that the group has beyond it.
    measured = re.fullmatch(r"The task used (\d+) MiB of memory; its limit is 64 MiB\.", record["text"])
    assert record["text"] == "Out of memory: the limit is 64 MiB." or (measured and int(measured[1]) <= 72)
    assert record["exit_code"] == 137 or record["exit_signal"] == 9
    assert out(shim, key) == ""


@pytest.mark.parametrize(("asked", "most"), [(64, 64), (2, 8)])
def test_the_first_task_of_a_guard_has_its_limit_for_itself(shim: LoneShim, asked: int, most: int) -> None:
    """Its guard is not in the group: with more, the task could hold what the watch of memory ends it for."""
    key = f"{70 + asked}-1"
    shim.start(key, "exec sleep 60", user=f"dora{asked}", memory_limit_mib=asked)
    pid = shim.wait(key, "running")["pid"]

    assert most * 2**20 == _memory_limit_of(pid)
    shim.link.stop_task(key, reason="cancelled", grace_seconds=0)
    shim.wait(key)


def _memory_limit_of(pid: int) -> int:
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            return int(Path(f"/sys/fs/cgroup/memory{path}/memory.limit_in_bytes").read_text())
        if not controllers and (file := Path(f"/sys/fs/cgroup{path}/memory.max")).exists():
            return int(file.read_text())
    raise AssertionError("it is in no memory group")


def test_the_next_task_of_the_same_guard_has_its_own_limits(shim: LoneShim) -> None:
    shim.start("20-1", HOG, user="carol", memory_limit_mib=64)
    shim.wait("20-1")
    shim.start("21-1", HOG, user="carol")

    record = shim.wait("21-1")

    assert (record["exit_code"], record["text"], out(shim, "21-1")) == (0, "", "300000000\n")


@pytest.mark.parametrize("key", ["30-1", "31-1"], ids=["the first task of a guard", "the next one"])
def test_no_more_processes_than_the_limit_can_be_started(shim: LoneShim, key: str) -> None:
    program = (
        "import os, time\n"
        "n = 0\n"
        "try:\n"
        "    while n < 500:\n"
        "        if os.fork() == 0:\n"
        "            os.setsid(); time.sleep(30); os._exit(0)\n"
        "        n += 1\n"
        "except BlockingIOError:\n"
        "    pass\n"
        "print(n)\n"
    )
    shim.start(key, "", argv=[sys.executable, "-S", "-c", program], user="fay", process_limit=40)

    shim.wait(key)

    assert out(shim, key) == "39\n"


def test_a_limit_of_cpu_holds_for_all_processes_together(shim: LoneShim) -> None:
    loops = "for i in 1 2 3 4; do (while :; do :; done) & done; sleep 1"
    shim.start("40-1", loops, user="alice", cpu_limit_millis=200, cpu_millis=100)

    record = shim.wait("40-1")

    ran_ms = record["ended_boot_ms"] - record["started_boot_ms"]
    assert record["cpu_time_ms"] is not None
    assert record["cpu_time_ms"] < 0.2 * ran_ms + 300, (
        f"in {ran_ms} ms"
    )  # 4 loops on 2 CPUs would take all of both


def test_shares_and_limits_of_cpu_in_the_words_of_version_2(shim: LoneShim) -> None:
    """There is one folder for all controllers, so the task is in it from its start."""
    if shim.means is None or shim.means.groups.version != 2:
        pytest.skip("control groups of version 1")
    show = "cd /sys/fs/cgroup$(sed -n 's/^0:://p' /proc/self/cgroup); cat cpu.weight cpu.max memory.swap.max pids.max"
    shim.start("46-1", show, user="alice", cpu_millis=1500, cpu_limit_millis=500, memory_limit_mib=64)
    shim.start("47-1", show, user="erin", cpu_millis=1000, process_limit=20)
    shim.wait("46-1")
    shim.wait("47-1")

    assert out(shim, "46-1").splitlines() == ["59", "50000 100000", "0", "max"]
    assert out(shim, "47-1").splitlines() == ["39", "max 100000", "max", "20"]  # the first task of its guard


def test_a_task_that_runs_for_long_shares_the_cpu_as_its_request_says(shim: LoneShim) -> None:
    if shim.means is None or shim.means.groups.version != 1:
        pytest.skip("only guards in groups of version 1 enter that of the CPU late")
    program = (
        "group() { sed -n 's/.*:cpu:/:/p' /proc/$1/cgroup; }\n"
        "setsid sleep 30 & child=$!\n"
        "group self\n"
        "for i in $(seq 100); do case $(group $child)$(group self) in *muster*muster*) break;; esac; sleep 0.05; done\n"
        "group $child; group self; cat /sys/fs/cgroup/cpu$(group self | cut -c2-)/cpu.shares\n"
    )
    shim.start("45-1", program, user="alice", cpu_millis=1500)

    shim.wait("45-1")

    first, child, later, shares = out(shim, "45-1").splitlines()
    assert "muster" not in first  # a short task waits for its turn as any process does
    assert child == later
    assert "/muster-" in later
    assert shares == "1536"


def test_devices_are_those_that_every_program_needs(shim: LoneShim) -> None:
    tried = (
        "for f in null zero urandom kmsg mem loop-control vda; do (: < /dev/$f) 2>/dev/null && echo $f; done"
    )
    shim.start("50-1", tried, user="alice")
    shim.wait("50-1")

    assert out(shim, "50-1").split() == ["null", "zero", "urandom"]


def test_what_has_left_its_parent_and_session_ends_with_its_task(shim: LoneShim, tmp_path: Path) -> None:
    escape = (
        "(setsid sh -c 'setsid env -i sleep 1000 & sleep 1000' &) ; (env -i setsid sleep 1000 &); sleep 0.1"
    )
    shim.start("60-1", escape, user="alice")
    group = wait_for(
        lambda: shim.records.get("60-1", {}).get("state") == "running" and shim.records["60-1"]["pid"]
    )
    assert group

    assert shim.wait("60-1")["exit_code"] == 0
    assert [pid for pid in processes.descendants_of(shim.pid) if "sleep" in _command(pid)] == []


def test_a_killed_guard_takes_its_task_along(shim: LoneShim) -> None:
    shim.start("70-1", "env -i setsid sleep 1000 & exec sleep 1000", user="alice")
    record = shim.wait("70-1", "running")
    guard = shim.guard_pid("70-1")
    members = wait_for(lambda: len(found := list(processes.descendants_of(guard))) == 2 and found)
    os.kill(guard, 9)

    assert shim.wait("70-1")["text"].startswith("The supervisor process of the task")
    wait_for(lambda: not any(processes.start_ticks(pid) for pid in (record["pid"], *members)))


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text()
    except OSError:
        return ""


def test_other_means_hold_for_what_starts_next_and_spare_what_runs(shim: LoneShim) -> None:
    shim.start("80-1", "exec sleep 1000", user="alice")
    running = shim.wait("80-1", "running")
    assert shim.means is not None
    shim.link._send({"op": "isolate", "means": replace(shim.means, landlock=0).as_json()})
    shim.start("81-1", "ls / >/dev/null && echo listed", user="alice")
    shim.wait("81-1")
    shim.link._send({"op": "isolate", "means": shim.means.as_json()})
    shim.start("82-1", "ls / >/dev/null && echo listed", user="alice")
    shim.wait("82-1")

    assert (out(shim, "81-1"), out(shim, "82-1")) == ("listed\n", "")
    assert processes.is_running(running["pid"], running["start_ticks"])
