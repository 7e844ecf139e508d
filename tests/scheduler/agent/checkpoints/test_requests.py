"""When a task is asked for a checkpoint, and what a stop does that waits for one."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from scheduler.agent import processes
from scheduler.agent.checkpoints.requests import Asked
from scheduler.agent.protocol import Stop
from scheduler.agent.tasks.local_task import LocalTask
from scheduler.agent.tasks.reports import report_of
from tests.support.agent_messages import a_record

#: Not to all: that would be the servers that this process has started.
TERMS = {"signal": int(signal.SIGUSR1), "to": "shell", "grace_seconds": 20, "every_seconds": None}


class Stops(list[Any]):
    def __call__(self, reason: str, grace: float) -> None:
        self.append((reason, round(grace)))


@pytest.fixture
def stops() -> Stops:
    return Stops()


@pytest.fixture
def handler() -> Iterator[list[int]]:
    """This process is the job: it handles SIGUSR1."""
    got: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: got.append(number))
    yield got
    signal.signal(signal.SIGUSR1, before)


def asked(stops: Stops, *, age_seconds: float = 100.0, limit: int | None = None, **terms: Any) -> Asked:
    pid = os.getpid()
    meta = {"task": 5, "epoch": 2, "job": 41, "checkpoint": TERMS | terms, "limit_seconds": limit}
    record = a_record(
        pid=pid, start_ticks=processes.start_ticks(pid), meta=meta,
        started_boot_ms=processes.boot_ms() - round(age_seconds * 1000),
    )  # fmt: skip
    return Asked(LocalTask("5-2", 5, 2, 41, "/nowhere", record=record), stops)


def stop(reason: str = "preempted", grace: int = 60) -> Stop:
    return Stop(task=5, epoch=2, reason=reason, grace_seconds=grace, stale=False)


def test_a_stop_waits_for_the_checkpoint_and_keeps_the_rest_of_its_grace(
    stops: Stops, handler: list[int]
) -> None:
    one = asked(stops)
    assert one.hold(stop())
    assert one.hold(stop())  # said again
    one.signal()
    one.signal()
    assert handler == [signal.SIGUSR1]
    assert (one.missed(), stops) == ("", [])
    assert one.saved() == "stop"
    assert stops == [("preempted", 60)]
    assert one.entry.held_stop == "preempted"
    assert not one.hold(stop())  # from now on the shim gets it, however often it comes


def test_a_stop_goes_on_when_no_checkpoint_comes(stops: Stops) -> None:
    one = asked(stops)
    one.hold(stop(grace=0))
    one.signal()
    assert one.missed() == "No process of the job handles SIGUSR1."
    assert stops == [("preempted", 5)]
    assert one.entry.held_stop == ""


@pytest.mark.parametrize("reason", ["cancelled", "time_limit", "gang_member_failed"])
def test_a_stop_after_which_the_job_does_not_start_again_does_not_wait(stops: Stops, reason: str) -> None:
    assert not asked(stops).hold(stop(reason))


def test_a_task_is_asked_before_its_time_limit_once(stops: Stops) -> None:
    one = asked(stops, age_seconds=79, limit=100)
    one.ask_when_due()
    assert one.request is None
    one = asked(stops, age_seconds=81, limit=100)
    one.ask_when_due()
    assert one.request is not None
    assert (one.request.why, one.request.seconds_left) == ("time_limit", 19)
    one.saved()
    one.ask_when_due()
    assert one.request is None


def test_a_task_is_asked_every_so_often_also_after_its_agent_was_started_again(stops: Stops) -> None:
    one = asked(stops, age_seconds=100, every_seconds=60)
    one.ask_when_due()
    assert one.request is None  # 40 seconds of the second period have passed
    one._last_at = one._last_at - 21 if one._last_at is not None else None
    one.ask_when_due()
    assert one.request is not None
    assert one.saved() == "periodic"


def test_the_same_request_of_somebody_asks_once(stops: Stops) -> None:
    one = asked(stops)
    one.ask(7)
    assert one.saved() == "asked"
    one.ask(7)
    assert one.request is None
    one.ask(8)
    assert one.request is not None


def test_only_processes_that_handle_the_signal_get_it(handler: list[int]) -> None:
    assert processes.handles(os.getpid(), signal.SIGUSR1)
    assert not processes.handles(os.getpid(), signal.SIGUSR2)
    assert processes.signal_handlers(os.getpid(), signal.SIGUSR2, tree=False) == 0
    assert processes.signal_handlers(os.getpid(), signal.SIGUSR1, tree=False) == 1
    assert handler == [signal.SIGUSR1]


def ended_well(one: Asked) -> LocalTask:
    entry = one.entry
    assert entry.record is not None
    entry.record = entry.record.copy()
    entry.record |= {"state": "ended", "exit_code": 0, "ended_boot_ms": processes.boot_ms()}
    entry.version = 2
    return entry


def reported(entry: LocalTask) -> str:
    assert entry.record is not None
    report = report_of(entry, entry.record, use=None, gpu_faults_of=lambda numbers: "", cap_bytes=1000)
    return report["state"] + " " + report.get("stop_reason", "")


def test_a_program_that_saves_and_exits_well_after_a_stop_was_stopped(
    stops: Stops, handler: list[int]
) -> None:
    one = asked(stops)
    assert reported(ended_well(one)) == "succeeded "
    one = asked(stops)
    one.hold(stop())
    one.signal()
    assert reported(ended_well(one)) == "stopped preempted"


def test_the_end_of_a_task_is_reported_once_its_last_checkpoint_is_known(stops: Stops) -> None:
    entry = ended_well(asked(stops))
    assert not entry.has_pending_report
    entry.checkpoints_begun = True
    assert entry.has_pending_report
