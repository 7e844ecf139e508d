"""The judge of a series finds each kind of broken promise, and none where all was kept."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import pytest

from tests.chaos.series import Outcome, table
from tests.chaos.work import Piece, Row, broken, pieces, trace

ONCE = Piece("w0000", 1, 0.0, 3, "never")
AGAIN = Piece("w0001", 1, 0.0, 0, "on_failure")
ROWS = [Row("w0000", "failed", 3, 1, ""), Row("w0001", "completed", 0, 1, "")]
KEPT = {"w0000": "begun 1 9\ndone 1\n", "w0001": "begun 1 9\ndone 1\n"}


def found(folder: Path, rows: list[Row] = ROWS, **traces: str) -> set[str]:
    for name, text in (KEPT | traces).items():
        (folder / name).write_text(text)
    return {promise for promise, cases in broken(folder, [ONCE, AGAIN], rows).items() if cases}


def test_what_was_kept_is_not_called_broken(tmp_path: Path) -> None:
    assert found(tmp_path) == set()
    # It was cut short once, and its policy lets it begin again.
    assert found(tmp_path, w0001="begun 1 9\nbegun 2 10\ndone 2\n") == set()


@pytest.mark.parametrize(
    ("promise", "rows", "traces"),
    [
        ("lost", ROWS[:1], {}),
        ("lost", ROWS, {"w0001": "begun 1 9\n"}),
        ("made up", [*ROWS, Row("w0001", "completed", 0, 1, "")], {}),
        ("made up", [*ROWS, Row("w0002", "completed", 0, 1, "")], {}),
        ("not ended", [ROWS[0], Row("w0001", "running", None, 1, "")], {}),
        ("wrong exit code", [Row("w0000", "failed", None, 1, "lost"), ROWS[1]], {}),
        ("done twice", ROWS, {"w0000": "begun 1 9\nbegun 2 10\ndone 2\n"}),
        ("done twice", ROWS, {"w0001": "begun 1 9\ndone 1\nbegun 2 10\ndone 2\n"}),
        ("live twice at once", ROWS, {"w0001": "begun 1 9\ntogether 2\nbegun 2 10\ndone 2\n"}),
    ],
)
def test_each_broken_promise_is_found(
    tmp_path: Path, promise: str, rows: list[Row], traces: dict[str, str]
) -> None:
    assert found(tmp_path, rows, **traces) == {promise}


def test_a_series_that_broke_a_promise_does_not_hold_and_says_which() -> None:
    outcome = Outcome(recovery={"planner": [1.0, 9.0, 2.0]}, broken={"lost": ["w0007"]}, jobs=8)

    assert not outcome.holds
    said = "\n".join(table(outcome))
    assert "    1  lost\n         w0007" in said
    assert ["planner", "3", "2.0", "9.0", "3"] in [line.split() for line in said.splitlines()]


def test_the_same_seed_makes_the_same_work_of_every_kind() -> None:
    made = pieces(800, random.Random(1))

    assert made == pieces(800, random.Random(1))
    assert sum(len(piece.names) for piece in made) == 800
    assert {piece.restart_policy for piece in made} == {"never", "on_failure"}
    assert {piece.elements > 1 for piece in made} == {False, True}
    assert {piece.seconds > 5 for piece in made} == {False, True}
    assert {piece.exit_code for piece in made} == {0, 3, 7}


def test_a_job_leaves_the_trace_that_is_read_and_sees_another_of_its_name(tmp_path: Path) -> None:
    command = Piece("w0000", 1, 0.3, 7, "never").request(tmp_path)["command"]
    both = [
        subprocess.Popen(["bash", "-c", command], env={"PATH": "/usr/bin:/bin", "MUSTER_ATTEMPT": attempt})
        for attempt in ("1", "2")
    ]
    assert [process.wait(30) for process in both] == [7, 7]

    did = trace(tmp_path, "w0000")

    assert sorted(attempt for attempt, _ in did.begun) == [1, 2]
    assert sorted(pid for _, pid in did.begun) == sorted(process.pid for process in both)
    assert (sorted(did.done), did.together) == ([1, 2], 1)
