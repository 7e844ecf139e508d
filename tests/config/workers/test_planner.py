"""Of two planner processes one plans; the other is loaded, waits, and goes on the moment the first has ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.agents import wait_for
from tests.support.stack import ROOT

WAITS = """
import sys
from pathlib import Path
from config.workers.planner import wait_for_turn
wait_for_turn(Path(sys.argv[1]))
print("my turn", flush=True)
sys.stdin.read()
"""


@contextmanager
def a_planner(folder: Path, name: str) -> Iterator[subprocess.Popen[str]]:
    env = os.environ | {
        "MUSTER_READY_FILE": str(folder / f"{name}.ready"), "DJANGO_SETTINGS_MODULE": "config.settings.test"
    }  # fmt: skip
    with (
        (folder / f"{name}.out").open("w") as out,
        subprocess.Popen(
            [sys.executable, "-c", WAITS, str(folder / "lock")],
            cwd=ROOT, env=env, stdin=subprocess.PIPE, stdout=out, text=True,
        ) as process,
    ):  # fmt: skip
        yield process
        process.kill()


def has_turn(folder: Path, name: str) -> bool:
    return "my turn" in (folder / f"{name}.out").read_text()


@pytest.mark.parametrize("sig", [signal.SIGKILL, signal.SIGTERM])
def test_a_spare_is_ready_while_it_waits_and_plans_once_the_planner_has_ended(
    tmp_path: Path, sig: int
) -> None:
    with a_planner(tmp_path, "first") as first:
        wait_for(lambda: has_turn(tmp_path, "first"))
        assert (tmp_path / "lock").read_text() == f"{first.pid}\n"
        with a_planner(tmp_path, "spare") as spare:
            wait_for(lambda: (tmp_path / "spare.ready").exists())
            assert not has_turn(tmp_path, "spare")
            # The first is ready only once its worker takes tasks.
            assert not (tmp_path / "first.ready").exists()

            first.send_signal(sig)

            wait_for(lambda: has_turn(tmp_path, "spare"))
            assert (tmp_path / "lock").read_text() == f"{spare.pid}\n"


def test_a_planner_that_is_only_stopped_keeps_its_turn(tmp_path: Path) -> None:
    with a_planner(tmp_path, "first") as first, a_planner(tmp_path, "spare") as spare:
        wait_for(lambda: has_turn(tmp_path, "first") or has_turn(tmp_path, "spare"))
        at_work, other = ("first", "spare") if has_turn(tmp_path, "first") else ("spare", "first")
        {"first": first, "spare": spare}[at_work].send_signal(signal.SIGSTOP)
        wait_for(lambda: (tmp_path / f"{other}.ready").exists())

        assert not has_turn(tmp_path, other)


def test_a_planner_asks_for_a_plan_of_everything_as_it_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    from celery.signals import worker_ready

    from config.workers import planner

    asked: list[tuple[str, str]] = []
    monkeypatch.setattr(planner.app, "send_task", lambda name, *, queue, **_: asked.append((name, queue)))

    worker_ready.send(sender=None)

    assert asked == [("scheduler.tasks.plan_all", "scheduling")]
