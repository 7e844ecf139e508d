"""The site's program: what it prints and how it ends."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from scheduler.agent.node.health_check import HealthCheck
from scheduler.agent.node.inventory import MeasuredInventory, Overrides


def program(folder: Path, text: str) -> Path:
    path = folder / "check"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("echo all well", ""),
        ("echo looking; echo '  disk  is\tfull '; echo; exit 3", "disk is full"),
        ("exit 4", "exit code 4"),
        ("kill -9 $$", "ended by signal 9"),
        ("echo to stderr >&2; exit 1", "to stderr"),
        ("sleep 60", "check did not end within 0.2 s"),
    ],
)
def test_the_last_line_is_the_problem(tmp_path: Path, text: str, problem: str) -> None:
    check = HealthCheck(program(tmp_path, text), timeout_seconds=0.2 if "sleep" in text else 10)
    assert check.problem is None
    check.run()
    assert check.problem == problem


def test_a_program_that_cannot_be_run_is_a_problem(tmp_path: Path) -> None:
    check = HealthCheck(tmp_path / "none")
    check.run()
    assert check.problem == f"{tmp_path}/none cannot be run: No such file or directory"


def test_the_inventory_is_sent_when_the_result_changes(tmp_path: Path) -> None:
    check = HealthCheck(tmp_path / "none")
    inventory = MeasuredInventory(Overrides(no_gpus=True), tmp_path, None, health=check)
    assert "health_problem" not in inventory.current()
    check.problem = ""
    inventory.was_sent(inventory.current())
    assert inventory.to_send() is None
    check.problem = "bad"
    sent = inventory.to_send()
    assert sent is not None
    assert sent["health_problem"] == "bad"


def test_only_a_change_is_announced(tmp_path: Path) -> None:
    check, changes = HealthCheck(program(tmp_path, "exit 1")), []

    class Turns(threading.Event):
        left = 4

        def wait(self, timeout: float | None = None) -> bool:
            self.left -= 1
            if self.left == 1:
                program(tmp_path, "true")
            return self.left <= 0

    check.watch(1.0, Turns(), lambda: changes.append(check.problem))
    assert changes == ["exit code 1", ""]
