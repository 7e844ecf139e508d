"""Probes in a guard without a portal: what is reported, what a suspension does, what a status file keeps."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from scheduler.agent import processes
from scheduler.agent.shim.guard_status import PROBES_AT, StatusFiles, StatusWriter
from scheduler.agent.shim.probes import checks, runner
from scheduler.agent.shim.probes.runner import Probes, is_reported
from scheduler.agent.times import in_words

OUTPUT = {"kind": "output", "limit": 60, "every": 1, "failures": 1, "start_after": 0, "timeout": 10}


@pytest.fixture
def reports() -> list[list[Any]]:
    return []


def a_runner(folder: Path, reports: list[list[Any]], **probe: Any) -> Probes:
    order: Any = {"folder": str(folder), "env": {}, "cwd": str(folder), "probes": [OUTPUT | probe]}
    return Probes(order, os.getpid(), start=lambda spawn: spawn(), on_change=reports.append)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that have passed, on every clock of the runner."""
    passed, began, began_wall = [0.0], time.monotonic(), time.time()
    monkeypatch.setattr(runner.time, "monotonic", lambda: began + passed[0])
    monkeypatch.setattr(runner.time, "time", lambda: began_wall + passed[0])
    return passed


def test_silence_is_unhealthy_after_the_limit_and_said_once(
    tmp_path: Path, reports: list[list[Any]], clock: list[float]
) -> None:
    probes = a_runner(tmp_path, reports)
    for _ in range(60):
        clock[0] += 1
        probes.work()
    assert probes.take_unhealthy() == ""
    clock[0] += 2
    probes.work()
    assert probes.take_unhealthy() == "Unhealthy: probe output failed: no output for 1 min."
    assert probes.take_unhealthy() == ""
    assert [result["ok"] for (result,) in reports] == [True, False]


def test_a_suspended_task_is_silent_for_good_reason(
    tmp_path: Path, reports: list[list[Any]], clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    probes = a_runner(tmp_path, reports)
    with monkeypatch.context() as patch:
        patch.setattr(processes, "state_of", lambda pid: "T")
        for _ in range(300):
            clock[0] += 1
            probes.work()
    for _ in range(50):
        clock[0] += 1
        probes.work()
    assert probes.take_unhealthy() == ""


def test_a_long_row_of_failures_is_few_reports(
    tmp_path: Path, reports: list[list[Any]], clock: list[float]
) -> None:
    probes = a_runner(tmp_path, reports, limit=1, failures=1000)
    for _ in range(200):
        clock[0] += 1
        probes.work()
    assert [result["failures"] for (result,) in reports] == [0, 1, 2, 4, 8, 16, 32, 64, 128]
    assert [count for count in range(10) if is_reported(count)] == [1, 2, 4, 8]


def test_results_lie_in_their_place_and_lines_stay(tmp_path: Path) -> None:
    files = StatusFiles(tmp_path)
    file = files.create("7-1")
    writer = StatusWriter(file, os.open("/dev/null", os.O_WRONLY), "7-1")
    writer.write({"guard": 1, "key": "7-1"})
    for failures in (1, 2):
        writer.write_probes([{"number": 0, "ok": False, "failures": failures, "text": "x" * 200}])
    writer.write({"unhealthy": "why"})

    status = files.read("7-1")
    assert status.line("probes")["probes"][0]["failures"] == 2
    assert status.line("unhealthy") == {"unhealthy": "why"}
    assert os.pread(file, 10, PROBES_AT).startswith(b'{"key"')
    os.close(file)


def test_a_check_of_a_server_that_is_not_there_or_no_server() -> None:
    assert checks.http(1, "/", 0.5) == (False, "port 1 does not answer: Connection refused")
    assert checks.result_of(-9, None) == (False, "ended by signal 9")


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.4, "0 s"), (59, "59 s"), (60, "1 min"), (7199, "1 h"), (90_000, "25 h"), (172_800, "2 days")],
)
def test_times_in_words(seconds: float, words: str) -> None:
    assert in_words(seconds) == words


def test_a_check_in_a_process_has_no_other_descriptors(tmp_path: Path) -> None:
    secret = os.open(tmp_path, os.O_RDONLY)
    pid, read_end = checks.in_a_process(lambda: checks.Found(True, " ".join(os.listdir("/proc/self/fd"))))
    _, status = os.waitpid(pid, 0)
    found = checks.result_of(os.waitstatus_to_exitcode(status), read_end)
    os.close(read_end)
    assert found.ok
    assert str(secret) not in found.text.split()
    os.close(secret)
