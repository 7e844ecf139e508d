"""What the agent does with the server's answer."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from scheduler.agent.checkpoints.service import CheckpointService
from scheduler.agent.fetches.service import Fetches
from scheduler.agent.node.inventory import MeasuredInventory, Overrides
from scheduler.agent.protocol import SyncAnswer
from scheduler.agent.server.client import ServerClient
from scheduler.agent.settings import Settings
from scheduler.agent.sync import ServerSync
from scheduler.agent.tasks.task_table import TaskTable
from tests.support.agent_messages import a_record, an_assignment


class Link:
    """Records the commands for the shim."""

    def __init__(self) -> None:
        self.commands: list[tuple[Any, ...]] = []

    def start_tasks(self, orders: list[Any]) -> None:
        self.commands.append(("start", [order["key"] for order in orders]))

    def stop_task(self, key: str, *, reason: str, grace_seconds: float) -> None:
        self.commands.append(("stop", key, reason, grace_seconds))

    def suspend_task(self, key: str) -> None:
        self.commands.append(("suspend", key))

    def resume_task(self, key: str) -> None:
        self.commands.append(("resume", key))

    def change_limit(self, key: str, seconds: int) -> None:
        self.commands.append(("limit", key, seconds))

    def extend_lease(self, fence_seconds: float) -> None:
        self.commands.append(("lease", round(fence_seconds)))


@pytest.fixture
def link() -> Link:
    return Link()


@pytest.fixture
def table() -> TaskTable:
    return TaskTable()


@pytest.fixture
def sync(tmp_path: Path, table: TaskTable, link: Link) -> ServerSync:
    overrides = Overrides(no_gpus=True)
    settings = Settings(server="", name="n1", state=tmp_path, join_token="", overrides=overrides)
    inventory = MeasuredInventory(overrides, tmp_path, None)
    stopping = threading.Event()
    return ServerSync(
        settings,
        table=table,
        link=link,  # type: ignore[arg-type]
        inventory=inventory,
        gpus=None,
        checkpoints=CheckpointService(table, lambda *_: None, stopping),
        fetches=Fetches(
            tmp_path, table, start=lambda _: None, connect=lambda: ServerClient("http://127.0.0.1:1"),
            stopping=stopping,
        ),
    )  # fmt: skip


def an_answer(**fields: Any) -> SyncAnswer:
    plain: dict[str, Any] = {
        "node_id": 1, "assignments": [], "stops": [], "verify": [], "hold_seconds": 20.0, "fence_seconds": 0.0,
        "log_cap_bytes": 1000, "inventory_wanted": False,
    }  # fmt: skip
    return SyncAnswer(**(plain | fields))  # type: ignore[typeddict-item]


def test_an_assignment_that_comes_twice_is_ordered_once(sync: ServerSync, link: Link) -> None:
    answer = an_answer(assignments=[an_assignment(task=5), an_assignment(task=6)])

    for _ in range(2):
        sync.apply(answer, sent_at=time.monotonic())

    assert link.commands == [("start", ["5-2", "6-2"])]


def test_a_lease_is_passed_on_before_tasks_start_and_only_when_it_ends_later_or_earlier(
    sync: ServerSync, link: Link
) -> None:
    sent_at = time.monotonic()
    sync.apply(an_answer(fence_seconds=60.0, assignments=[an_assignment()]), sent_at=sent_at)
    sync.apply(an_answer(fence_seconds=60.0), sent_at=sent_at + 0.2)
    sync.apply(an_answer(fence_seconds=0.0), sent_at=sent_at)
    sync.apply(an_answer(fence_seconds=90.0), sent_at=sent_at)

    assert link.commands == [("lease", 60), ("start", ["5-2"]), ("lease", 90)]


def test_tasks_that_are_here_are_stopped_suspended_and_resumed(
    sync: ServerSync, table: TaskTable, link: Link
) -> None:
    table.update([a_record(), a_record(key="6-1", meta={"task": 6, "epoch": 1, "job": 41})], complete=True)
    stop = {"reason": "cancelled", "grace_seconds": 5, "stale": True}
    stops: list[Any] = [{"task": 5, "epoch": 2, **stop}, {"task": 99, "epoch": 1, **stop}]

    sync.apply(an_answer(stops=stops, pauses=[[6, 1, 1], [6, 1, 0], [99, 1, 1]]), sent_at=time.monotonic())

    assert link.commands == [("stop", "5-2", "cancelled", 5), ("suspend", "6-1"), ("resume", "6-1")]
    assert table.known() == [[6, 1]]  # the server needs no report on the stale one


def test_a_changed_limit_is_told_to_the_shim_until_its_record_has_it(
    sync: ServerSync, table: TaskTable, link: Link
) -> None:
    table.update([a_record()], complete=True)

    sync.apply(an_answer(limits=[[5, 2, 20], [99, 1, 20]]), sent_at=time.monotonic())
    sync.apply(an_answer(), sent_at=time.monotonic())  # the command may have been lost
    table.update([a_record(changed_limit=20)], complete=False)
    sync.apply(an_answer(limits=[[5, 2, 20]]), sent_at=time.monotonic())

    assert link.commands == [("limit", "5-2", 20), ("limit", "5-2", 20)]


def test_a_task_that_is_not_here_is_reported_lost(sync: ServerSync, table: TaskTable) -> None:
    sync.apply(an_answer(verify=[[7, 3]]), sent_at=time.monotonic())

    ((report,), _) = table.pending_reports(10)
    assert (report["task"], report["state"]) == (7, "lost")
