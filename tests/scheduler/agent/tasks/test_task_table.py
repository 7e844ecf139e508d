"""What the agent reports of its tasks, and when."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from scheduler.agent import processes
from scheduler.agent.gpu.usage import Use
from scheduler.agent.tasks.task_table import TaskTable
from tests.support.agent_messages import a_record
from tests.support.patience import patience


def test_a_report_is_sent_until_its_latest_version_is_acknowledged() -> None:
    table = TaskTable()
    table.update([a_record()], complete=True)
    reports, versions = table.pending_reports(10)
    assert [(r["task"], r["epoch"], r["state"], r["pid"]) for r in reports] == [(5, 2, "running", 9)]

    table.update([a_record(state="ended", exit_code=3, ended_boot_ms=processes.boot_ms())], complete=False)
    table.acknowledge(versions)

    (report,), versions = table.pending_reports(10)
    assert (report["state"], report["exit_code"], report["stdout_bytes"]) == ("failed", 3, 0)
    assert 900 < report["started_ago_ms"] < patience(5000)
    table.acknowledge(versions)
    assert table.pending_reports(10) == ([], {})
    assert table.known() == []


def test_a_short_task_is_reported_once_with_its_beginning_and_its_end() -> None:
    table = TaskTable()
    table.update([a_record(started_boot_ms=processes.boot_ms())], complete=True)
    assert not table.has_pending_reports()
    assert table.pending_reports(10) == ([], {})

    table.update([a_record(state="ended", exit_code=0, ended_boot_ms=processes.boot_ms())], complete=False)

    (report,), _ = table.pending_reports(10)
    assert (report["state"], report["exit_code"], report["pid"]) == ("succeeded", 0, 9)


def test_the_beginning_of_a_longer_task_is_reported_as_soon_as_it_is_due() -> None:
    table = TaskTable()
    table.update([a_record(started_boot_ms=processes.boot_ms())], complete=True)
    began = time.monotonic()

    table.wait_for_reports(patience(20))

    assert table.has_pending_reports()
    assert time.monotonic() - began < patience(2)


def test_a_record_of_another_start_of_the_machine_does_not_wait() -> None:
    table = TaskTable()
    table.update([a_record(started_boot_ms=processes.boot_ms() + 10**9)], complete=True)

    assert table.has_pending_reports()


@pytest.mark.parametrize(
    ("fields", "state"),
    [
        ({"exit_code": 0}, "succeeded"),
        ({"exit_code": 1}, "failed"),
        ({"exit_signal": 9}, "failed"),
        ({"exit_code": 0, "stop_reason": "cancelled"}, "stopped"),
        ({"exit_signal": 15, "stop_reason": "fenced"}, "lost"),
        ({"exit_signal": 15, "stop_reason": "shutdown"}, "lost"),
        ({"lost": True}, "lost"),
    ],
)
def test_ends_have_names(fields: dict[str, Any], state: str) -> None:
    table = TaskTable()
    table.update([a_record(state="ended", **fields)], complete=True)

    assert table.pending_reports(10)[0][0]["state"] == state


def test_a_task_the_table_does_not_know_is_reported_lost() -> None:
    table = TaskTable()
    table.update([a_record()], complete=True)

    table.verify([[5, 2], [6, 1]])

    reports, versions = table.pending_reports(10)
    assert [(r["task"], r["state"]) for r in reports] == [(6, "lost"), (5, "running")]
    table.acknowledge(versions)
    assert table.pending_reports(10) == ([], {})


def test_an_order_that_never_reached_the_shim_may_come_again() -> None:
    table = TaskTable()
    assert table.add(5, 2, job=41, folder="/f")
    assert not table.add(5, 2, job=41, folder="/f")

    table.update([], complete=True)

    assert table.known() == []
    assert table.add(5, 2, job=41, folder="/f")


def test_a_task_is_reported_with_the_use_of_its_gpus() -> None:
    table = TaskTable()
    uses = {"5-2": Use(watched_ms=20_000.4, busy_ms=15_000.4, peak_memory_mib=812)}
    table.gpu_use_of = uses.get
    meta = {"task": 5, "epoch": 2, "job": 41, "devices": [3, 5]}
    table.update([a_record(meta=meta), a_record(key="6-1", pid=10)], complete=True)

    with_gpus, without = table.gpu_holders()
    assert (with_gpus.key, with_gpus.leader, with_gpus.devices) == ("5-2", 9, (3, 5))
    assert 1000 <= with_gpus.ran_ms < 600_000
    assert (without.key, without.devices) == ("6-1", ())

    table.gpu_faults_of = lambda numbers: f"{numbers} are broken."
    ended = {"state": "ended", "exit_code": 1}
    table.update(
        [a_record(meta=meta, **ended), a_record(key="6-1", **ended | {"exit_code": 0})], complete=True
    )

    first, second = table.pending_reports(10)[0]
    assert (first["text"], second.get("text")) == ("[3, 5] are broken.", None)
    assert (first["gpu_watched_ms"], first["gpu_busy_ms"], first["peak_gpu_memory_mib"]) == (
        20_000,
        15_000,
        812,
    )
    assert "gpu_watched_ms" not in second
    assert table.gpu_holders() == []


def test_the_use_of_gpus_is_reported_at_growing_intervals_while_a_task_runs() -> None:
    table = TaskTable()
    table.gpu_use_of = {"5-2": Use(watched_ms=1, busy_ms=1), "6-1": Use(watched_ms=1)}.get

    def reported(minutes: float) -> list[int]:
        began = processes.boot_ms() - int(minutes * 60_000)
        for key, devices in (("5-2", [3]), ("6-1", [])):
            meta = {"task": int(key[0]), "epoch": int(key[2]), "job": 41, "devices": devices}
            table.update([a_record(key=key, started_boot_ms=began, meta=meta)], complete=False)
        table.report_gpu_use()
        reports, versions = table.pending_reports(10)
        table.acknowledge(versions)
        return [report["task"] for report in reports]

    assert reported(0.5) == [5, 6]  # that they run
    assert [reported(minutes) for minutes in (0.9, 1.1, 1.9, 2.3, 4.5, 4.7, 9.1, 9.5, 14.6)] == [
        [], [5], [], [5], [], [5], [], [5], [5],
    ]  # fmt: skip


def a_task_with_elements(folder: Path, *, ended: bool = False, results: int = 3) -> TaskTable:
    """A task that has written this many results."""
    with (folder / "elements").open("a") as file:
        for index in range(results):
            file.write(
                json.dumps([index, 0, None, processes.boot_ms(), processes.boot_ms(), 1, 12, 0, 0, 0, 0, ""])
            )
            file.write("\n")
    table = TaskTable()
    state = {"state": "ended", "exit_code": 0} if ended else {}
    meta = {"task": 5, "epoch": 2, "job": 41, "elements": True}
    table.update([a_record(folder=str(folder), meta=meta, **state)], complete=True)
    return table


def test_results_of_elements_are_sent_until_they_are_acknowledged(tmp_path: Path) -> None:
    table = a_task_with_elements(tmp_path)
    for _ in range(2):
        (report,), versions = table.pending_reports(10)
        assert [one[0] for one in report["elements"]] == [0, 1, 2]
    table.acknowledge(versions)
    assert table.pending_reports(10) == ([], {})

    with (tmp_path / "elements").open("a") as file:
        file.write('[3,0,null,1,2,1,12,0,0,0,0,""]\n[4,0,nul')  # the last line is being written
    table.look_for_results()

    (report,), _ = table.pending_reports(10)
    assert [one[0] for one in report["elements"]] == [3]


def test_the_end_of_a_task_is_reported_with_the_last_of_its_elements(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scheduler.agent.tasks.task_table.MOST_RESULTS", 2)
    table = a_task_with_elements(tmp_path, ended=True, results=3)

    (first,), versions = table.pending_reports(10)
    table.acknowledge(versions)
    (second,), versions = table.pending_reports(10)
    table.acknowledge(versions)

    assert (first["state"], [one[0] for one in first["elements"]]) == ("running", [0, 1])
    assert (second["state"], [one[0] for one in second["elements"]]) == ("succeeded", [2])
    assert table.pending_reports(10) == ([], {})


def test_an_agent_that_adopts_a_task_sends_all_results_again(tmp_path: Path) -> None:
    before = a_task_with_elements(tmp_path)
    before.acknowledge(before.pending_reports(10)[1])

    after = a_task_with_elements(tmp_path, results=0)

    assert len(after.pending_reports(10)[0][0]["elements"]) == 3
