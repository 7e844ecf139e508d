"""How figures are judged: each by how fast the core was when it was measured."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import run
from benchmarks.peers import versus_peers
from benchmarks.registry import BENCHMARKS, Benchmark, NotMeasuredError


def test_a_core_that_slows_down_changes_what_was_measured_and_not_what_is_judged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slowness = iter([1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 4.0, 4.0, 4.0, 1.0, 1.0, 1.0, 3.0, 3.0, 3.0])
    now: list[float] = []

    def ratio() -> float:
        now[:] = [next(slowness)]
        return now[0]

    def measure() -> Iterator[tuple[str, float]]:
        yield "decision_us", 20.0 * now[0]
        yield "growth", 3.0

    monkeypatch.setattr(run, "core_ratio", ratio)

    figures = list(run.measured(Benchmark("one", ("decision_us", "growth"), measure), {"decision_us"}))

    assert figures == [("decision_us", 40.0, 20.0), ("growth", 3.0, None)]


def test_what_waits_for_others_is_measured_once_and_judged_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "core_ratio", lambda: pytest.fail("nobody needs to know"))
    asked = []

    def measure() -> Iterator[tuple[str, float]]:
        asked.append(1)
        yield "submits_per_s", 300.0

    assert list(run.measured(Benchmark("one", ("submits_per_s",), measure), ())) == [
        ("submits_per_s", 300.0, None)
    ]
    assert asked == [1]


def test_a_bar_is_held_or_missed() -> None:
    assert run.judge(25.0, {"at_most": 25}) == ("<= 25", True)
    assert run.judge(25.1, {"at_most": 25}) == ("<= 25", False)
    assert run.judge(299.9, {"at_least": 300}) == (">= 300", False)


def test_every_bar_is_of_a_figure_and_every_benchmark_says_what_it_runs() -> None:
    assert run._load() == []
    known = {key for one in BENCHMARKS.values() for key in one.keys}
    limits = tomllib.loads((run.HERE / "limits.toml").read_text())
    used = list(BENCHMARKS)[list(BENCHMARKS).index("at_rest") :]

    assert sorted(limits.keys() - known) == []
    assert [one.name for one in BENCHMARKS.values() if len(one.says) < 20] == []
    assert {"rows_of_plans", "e2e", "wal", "listing"} <= set(used), (
        "memory at rest is of a portal not yet used"
    )


def test_a_peer_that_is_not_there_is_not_measured_and_the_reason_is_said(tmp_path: Path) -> None:
    nowhere = versus_peers.Peer("hyperqueue", 1, 1, "")

    with pytest.raises(NotMeasuredError, match="hyperqueue did not start: ModuleNotFoundError"):
        with versus_peers._Running(Path(sys.executable), nowhere, tmp_path):
            pytest.fail("it began")


def test_peers_that_cannot_be_installed_are_not_measured_and_pip_is_quoted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    failed = subprocess.CompletedProcess([], 1, "", "WARNING: x\nERROR: No matching distribution\n")
    monkeypatch.setattr(versus_peers, "PEERS", tmp_path / "peers")
    monkeypatch.setattr(versus_peers.subprocess, "run", lambda *_, **__: failed)

    with pytest.raises(NotMeasuredError, match="ERROR: No matching distribution"):
        versus_peers._python_with_peers()
    assert not list(tmp_path.glob("peers/installed-*"))
