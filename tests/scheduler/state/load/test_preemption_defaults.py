"""What a profile's preemption means where it says nothing (finding 26)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from scheduler.core.cycle import plan_cycle
from scheduler.core.policy import Policy
from scheduler.state.load.cluster_rows import preemption_of
from tests.support.builders import NodeSpec, a_job, a_world, running

CLASSES = ((0, ()), (50, (0,)))


@pytest.mark.parametrize(("words", "stopped"), [({}, "burstable"), ({"qos": 0}, "guaranteed")])
def test_finding_26_of_one_priority_a_guaranteed_job_is_stopped_last_unless_the_profile_says_otherwise(
    words: dict[str, int], stopped: str
) -> None:
    """The guaranteed one has run for less, so that stopping it would cost less."""
    rules = preemption_of(True, words, CLASSES)
    world = a_world(
        nodes=[NodeSpec("n1", cpus=2), NodeSpec("n2", cpus=2)],
        running=[
            running(a_job("burstable", cpus=2, priority=10), "n1", started=-600),
            running(
                a_job("guaranteed", cpus=2, cpu_limit=2, memory_limit_gib=1, priority=10), "n2", started=-5
            ),
        ],
        pending=[a_job("high", cpus=2, priority=90)],
    )

    plan = plan_cycle(world.snapshot, replace(Policy(), preemption=rules))

    assert [world.job(stopped)] == [preempt.job_id for preempt in plan.preempts]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"risk": 2}, "risk is 0"),
        ({"by_resource": -1}, "must not|by_resource is 0"),
        ({"pressure_percent": 101}, "pressure_percent is 0"),
        ({"pressure_percent": "high"}, "whole number"),
        ({"pressure": 10}, "is not a setting of preemption"),
        ({"pressure_levels": 50}, "whole numbers by priority"),
        ({"pressure_levels": {"high": 50}}, "whole numbers by priority"),
        ({"pressure_levels": {"75": "50"}}, "whole numbers by priority"),
        ({"pressure_levels": {"50": 60, "75": 70}}, "must not rise"),
    ],
)
def test_what_they_cannot_be_is_refused(words: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        preemption_of(True, words)


def test_pressure_by_priority_is_read_from_a_profile() -> None:
    rules = preemption_of(True, {"pressure_percent": 90, "pressure_levels": {"90": 0, "75": 50}})

    assert [rules.pressure_of(priority) for priority in (0, 74, 75, 89, 90, 100)] == [90, 90, 50, 50, 0, 0]
    assert preemption_of(True, {"pressure_levels": {}}) == preemption_of(True, {})
