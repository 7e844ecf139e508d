"""Names of output files, as sbatch replaces what is in them."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler.agent.tasks.output_paths import output_files, output_path


def an_assignment(**more: Any) -> Any:
    return {
        "job": 4711, "name": "train/one", "user": "ada", "rank": 3, "node_rank": 1, "working_dir": "", **more,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("out.txt", "out.txt"),
        ("%j.out", "4711.out"),
        ("%x-%u.%N", "train_one-ada.n1"),
        ("slurm-%A_%a.out", "slurm-8_5.out"),
        ("%t/%n", "3/1"),
        ("%8j-%3t-%99j", "00004711-003-0000004711"),
        ("%5u", "ada"),
        ("100%%j", "100%j"),
        ("%q-%", "%q-%"),
        ("\\%j.out", "%j.out"),
    ],
)
def test_it_is_replaced(pattern: str, path: str) -> None:
    assignment = an_assignment(array_id="8", array_index=5)

    assert output_path(pattern, assignment, node_name="n1.example.org") == path


def test_a_job_that_is_no_array_has_slurms_own_index() -> None:
    assert output_path("%A_%a", an_assignment(), node_name="n1") == "4711_4294967294"


def test_errors_go_with_the_output_unless_they_have_a_file() -> None:
    def files(stdout: str, stderr: str, **more: Any) -> Any:
        asked = {"stdout": stdout, "stderr": stderr, "append": False}
        return output_files(an_assignment(output=asked, **more), node_name="n1")

    assert output_files(an_assignment(), node_name="n1") is None
    assert files("o-%j", "") == {"stdout": "o-4711", "stderr": "o-4711", "append": False}
    assert files("o", "e") == {"stdout": "o", "stderr": "e", "append": False}
    assert files("", "e") == {"stdout": "", "stderr": "e", "append": False}
    # Tasks in one folder would empty each other's file.
    assert files("o", "", working_dir="/data")["append"] is True
    assert files("o", "", working_dir="/data", rank=0)["append"] is False
