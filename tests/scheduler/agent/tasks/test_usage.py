"""When running tasks are sampled, and what a sample says."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass

import pytest

from scheduler.agent import processes
from scheduler.agent.gpu.usage import Use
from scheduler.agent.protocol import TaskRecord
from scheduler.agent.tasks import usage
from scheduler.agent.tasks.task_table import TaskTable
from scheduler.agent.tasks.usage import UsageSampler


@dataclass
class Clock:
    """What the boot clock says and what the processes of every task have used."""

    ms: int = 1_000_000
    cpu_ms: int = 0
    memory_mib: int = 0

    def measured(self, leader: int, request: int) -> tuple[int, int]:
        return self.cpu_ms, self.memory_mib


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(processes, "boot_ms", lambda: clock.ms)
    return clock


def a_table(clock: Clock, *, devices: list[int] | None = None, **more: object) -> TaskTable:
    table = TaskTable()
    meta = {"task": 7, "epoch": 2, "job": 1, "devices": devices or [], "memory_mib": 100, **more}
    record = TaskRecord(
        key="7-2", state="running", boot_id="b", folder="/none", meta=meta, pid=1, start_ticks=1,
        started_boot_ms=clock.ms, ended_boot_ms=0, exit_code=None, exit_signal=None, stop_reason="", lost=False,
        text="", peak_memory_mib=None, cpu_time_ms=None,
    )  # fmt: skip
    table.update([record], complete=False)
    return table


def step(clock: Clock, seconds: float, *, cores: float = 0.0, memory_mib: int = 0) -> None:
    clock.ms += round(1000 * seconds)
    clock.cpu_ms += round(1000 * seconds * cores)
    clock.memory_mib = memory_mib


def test_a_task_shorter_than_one_interval_gives_no_sample(clock: Clock) -> None:
    sampler = UsageSampler(a_table(clock), measured=clock.measured)
    step(clock, 4)
    assert sampler.take()["samples"] == []
    step(clock, 5.9)
    assert sampler.take()["samples"] == []


def test_a_sample_has_the_cores_since_the_last_one_and_the_most_memory(clock: Clock) -> None:
    sampler = UsageSampler(a_table(clock), measured=clock.measured)
    sampler.take()
    step(clock, 10, cores=2.5, memory_mib=30)
    assert sampler.take()["samples"] == [[7, 2, 2500, 30, None, None]]
    step(clock, 10, cores=0.5, memory_mib=20)
    assert sampler.take()["samples"] == [[7, 2, 500, 20, None, None]]


def test_old_tasks_are_sampled_less_often_and_their_peaks_are_kept(clock: Clock) -> None:
    sampler = UsageSampler(a_table(clock), measured=clock.measured)
    step(clock, 3600, memory_mib=1)
    sampler.take()
    step(clock, 15, cores=1, memory_mib=900)
    assert sampler.take()["samples"] == []
    step(clock, 15, cores=3, memory_mib=5)
    assert sampler.take()["samples"] == [[7, 2, 2000, 900, None, None]]


def test_gpus_are_sampled_where_they_are_measured(clock: Clock) -> None:
    table = a_table(clock, devices=[0])
    use = Use(watched_ms=1000, busy_ms=1000, memory_mib=1)
    table.gpu_use_of = lambda key: use
    sampler = UsageSampler(table, measured=clock.measured)
    sampler.take()
    step(clock, 10)
    use.watched_ms, use.busy_ms, use.memory_mib = 11_000, 3500, 640
    assert sampler.take()["samples"] == [[7, 2, 0, 0, 25, 640]]


def test_the_processes_of_a_task_are_counted_also_those_that_have_ended() -> None:
    """A guard in the place of ours: this Python's child, whose first process has reaped one that computed."""
    burn = "import time\nwhile time.process_time() < .15: pass"
    then = "print('ready', flush=True)\ninput()"
    task = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {burn!r}])\n{then}"
    guard = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {task!r}])"
    with subprocess.Popen(
        [sys.executable, "-c", guard], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "ready\n"
        (leader,) = processes.children_of(process.pid)
        cpu_ms, memory_mib = usage.measure(leader, 10**6)
        process.stdin.close()
    assert 140 <= cpu_ms < 2000
    assert memory_mib >= 2


def test_a_process_that_is_gone_has_used_nothing() -> None:
    assert usage.measure(2**22 + 1, 1) == (0, 0)
    assert processes.parent_of(os.getpid()) == os.getppid()
