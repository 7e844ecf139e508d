"""What a task may use: CPUs, a NUMA domain, memory, processes, time."""

from __future__ import annotations

import os
import signal
import sys
from math import ceil
from pathlib import Path

import pytest

from scheduler.agent import cpus, numa, processes
from tests.support.agents import is_stopped, wait_for
from tests.support.patience import patience
from tests.support.shims import ESCAPE, LoneShim

pytestmark = pytest.mark.either


def test_a_task_that_holds_more_memory_than_its_limit_is_ended_with_a_reason(shim: LoneShim) -> None:
    hog = f"{sys.executable} -c 'import time; held = bytes([1]) * 90_000_000; time.sleep(60)'"
    shim.start("1-1", f"({hog}) & wait", memory_limit_mib=64)
    shim.start("2-1", "sleep 2.5", memory_limit_mib=64)

    record = shim.wait("1-1")

    assert (record["exit_signal"], record["stop_reason"]) == (signal.SIGKILL, "")
    assert record["text"].endswith("MiB of memory; its limit is 64 MiB.")
    assert shim.wait("2-1")["exit_code"] == 0


def test_a_task_runs_on_no_more_cpus_than_its_limit(shim: LoneShim) -> None:
    show = f"{sys.executable} -c 'import os; print(len(os.sched_getaffinity(0)))'"
    shim.start("1-1", show, cpu_limit_millis=500)
    shim.start("2-1", show)

    shim.wait("1-1"), shim.wait("2-1")

    assert (shim.state / "tasks/1-1/stdout").read_text() == "1\n"
    assert (shim.state / "tasks/2-1/stdout").read_text() == f"{len(cpus.usable_cpus())}\n"


def test_a_task_is_bound_to_its_numa_domain_as_far_as_the_kernel_allows(shim: LoneShim) -> None:
    """`numa_maps` says what the kernel does; where it refuses, MUSTER_NUMA_BOUND says so."""
    cpu = cpus.usable_cpus()[-1]
    show = "echo $MUSTER_NUMA_BOUND; head -1 /proc/self/numa_maps; grep Cpus_allowed_list /proc/self/status"
    shim.start("1-1", show, cpus=[cpu], memory_domain=0, memory_mib=1)
    shim.start("2-1", show, cpus=[cpu], memory_domain=0, memory_mib=2**40)  # more than is free there
    shim.start("3-1", show, cpus=[], cpu_limit_millis=None)
    with numa.on_memory(0) as allowed:
        pass

    said = {}
    for key in ("1-1", "2-1", "3-1"):
        shim.wait(key)
        said[key] = (shim.state / f"tasks/{key}/stdout").read_text().splitlines()

    free = numa.free_mib(0) > 1
    assert said["1-1"][0] == ("cpus,memory" if allowed and free else "cpus")
    assert [line.split()[-1] for line in (said["1-1"][-1], said["2-1"][-1])] == [str(cpu)] * 2
    if allowed and free:
        assert " bind:0 " in said["1-1"][1]
        assert " bind" not in said["2-1"][1]
    assert (said["2-1"][0], said["3-1"][0]) == ("cpus", "")
    with numa.on_memory(numa.MOST_DOMAINS + 1) as nowhere:
        assert not nowhere


def test_a_task_stays_suspended_under_the_next_shim_and_its_limit_waits(shim: LoneShim) -> None:
    limit = ceil(patience(1))  # it must not be reached before the pause is
    shim.start("1-1", "while :; do sleep 0.05; done", limit_seconds=limit)
    pid = shim.wait("1-1", "running")["pid"]

    shim.link.suspend_task("1-1")
    still = wait_for(lambda: (r := shim.records["1-1"]).get("suspended_boot_ms") and r)
    os.kill(shim.pid, signal.SIGKILL)
    shim.records.clear()
    assert shim.wait("1-1", "running")["suspended_boot_ms"] == still["suspended_boot_ms"]
    assert is_stopped(pid)
    wait_for(lambda: processes.boot_ms() > still["started_boot_ms"] + limit * 1000 + 200)
    assert shim.records["1-1"]["stop_reason"] == ""

    shim.link.resume_task("1-1")
    assert shim.wait("1-1")["stop_reason"] == "time_limit"
    assert shim.records["1-1"]["suspended_ms"] > 0


def test_a_task_with_more_processes_than_it_may_have_is_ended_with_a_reason(shim: LoneShim) -> None:
    shim.start("1-1", "for i in $(seq 60); do sleep 60 & done; wait", process_limit=50)
    shim.start("2-1", "for i in $(seq 30); do sleep 3 & done; wait", process_limit=50)

    record = shim.wait("1-1")

    assert (record["exit_signal"], record["stop_reason"]) == (signal.SIGKILL, "")
    assert record["text"] == "The task had 61 processes; the limit on this node is 50."
    assert shim.wait("2-1")["exit_code"] == 0


def test_a_task_that_forks_without_end_is_ended(shim: LoneShim, tmp_path: Path) -> None:
    (tmp_path / "bomb.py").write_text(
        "import os, sys, time\n"
        "n = 0\n"
        "while n < 1500:\n"
        "    if os.fork() == 0:\n"
        "        os.setsid(); time.sleep(100)\n"
        "    n += 1\n"
        "time.sleep(100)\n"
    )
    shim.start("1-1", f"env -i setsid {sys.executable} -S {tmp_path}/bomb.py", process_limit=200)

    assert shim.wait("1-1")["text"].endswith("processes; the limit on this node is 200.")


def test_what_has_left_its_group_is_suspended_too(shim: LoneShim, tmp_path: Path) -> None:
    shim.start("1-1", ESCAPE.format(file=tmp_path / "pid") + "sleep 60")
    shim.wait("1-1", "running")
    pid = int(wait_for(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip()))

    shim.link.suspend_task("1-1")
    wait_for(lambda: is_stopped(pid))
    shim.link.resume_task("1-1")

    wait_for(lambda: not is_stopped(pid))
