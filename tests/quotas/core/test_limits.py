"""What a start counts for on a quota line."""

from __future__ import annotations

import pytest

from quotas.core.amounts import parse_amount
from quotas.core.limits import charge
from quotas.core.resources import BadAmount, Resources


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


@pytest.mark.parametrize("text", ["0" * 20 + "9" * 30, "0" * 30 + "5" * 4400, "9" * 17, "²", "-1", ""])
def test_a_number_of_jobs_is_one_that_the_database_can_keep(text: str) -> None:
    with pytest.raises(BadAmount):
        parse_amount("running_jobs", text)
    with pytest.raises(BadAmount):
        parse_amount("memory_mib", text or "x")

    assert parse_amount("running_jobs", "0" * 40 + "12") == 12
    assert parse_amount("running_jobs", "0") == 0
