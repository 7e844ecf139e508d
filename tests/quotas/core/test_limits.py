"""What a start counts for on a quota line, and what a path of lines leaves."""

from __future__ import annotations

import pytest

from quotas.core.limits import Line, charge, room_on_path, short_lines
from quotas.core.resources import Resources


@pytest.mark.parametrize(
    ("resource", "per_task", "tasks", "counts"),
    [
        ("cpu_millis", Resources(cpu_millis=1500), 2, 3000),
        ("gpu_millis", Resources(gpus=4), 2, 8000),
        ("gpu_millis", Resources(gpus=1, gpu_millis=250), 4, 1000),
        ("gpus", Resources(gpus=2), 3, 6),
        ("running_jobs", Resources(cpu_millis=1), 64, 1),
        ("matlab", Resources(extras=(("matlab", 2),)), 3, 6),
        ("matlab", Resources(), 3, 0),
    ],
)
def test_a_start_counts_for_all_its_tasks(
    resource: str, per_task: Resources, tasks: int, counts: int
) -> None:
    assert charge(resource, per_task, tasks) == counts


def test_the_lines_without_room_are_named_with_what_is_needed_there() -> None:
    own, lab, reported = (
        Line("gpu_millis", 4000, 3000),
        Line("gpu_millis", 9000, 3000),
        Line("gpu_millis", 1, 0, False),
    )

    assert short_lines([own, lab, reported], Resources(gpus=2), 1) == [(own, 2000)]


def test_a_bound_cut_below_what_is_used_leaves_nothing_rather_than_less() -> None:
    assert Line("cpu_millis", 1000, 5000).left == 0


def test_the_tightest_line_on_a_path_decides() -> None:
    lines = [Line("cpu_millis", 8000, 1000), Line("cpu_millis", 6000, 2000), Line("memory_mib", 5)]

    assert room_on_path(lines, "cpu_millis") == 4000
    assert room_on_path(lines, "storage_mib") is None
