"""What is easily forgotten where others are disturbed: arrays, budgets, and tasks that are on their way out."""

from __future__ import annotations

import pytest

from scheduler.core.cycle import plan_cycle
from scheduler.core.policy import Policy
from scheduler.core.snapshot.snapshot import BudgetColumns, SpentRule
from tests.scheduler.core.preemption.test_elastic import POLICY, RULES, a_sweep
from tests.support.builders import NOW_MS, a_job, a_node, a_quota, a_world, running

HOUR_MS = 3_600_000


def test_a_member_of_a_full_array_keeps_nobody_from_having_others_stopped() -> None:
    """The two ask for the same; the first may not start while its array is full, whoever is stopped."""
    world = a_world(
        nodes=[a_node("n1", gpus=2)],
        running=[
            running(a_job("member", gpus=1, priority=75, array=7), ("n1", (0,)), started=-60),
            running(a_job("low", gpus=1, priority=25), ("n1", (1,)), started=-60),
        ],
        pending=[
            a_job("next", gpus=1, priority=75, array=7, array_max_running=1, submitted=-9),
            a_job("alone", gpus=1, priority=75),
        ],
    )

    plan = plan_cycle(world.snapshot, Policy(name="priority", preemption=RULES))

    assert [(one.job_id, one.for_job_id) for one in plan.preempts] == [(world.job("low"), world.job("alone"))]


def spent(world: object, *, hours: int) -> BudgetColumns:
    """A budget of which so many GPU-hours are left."""
    return BudgetColumns(
        id=[1], owner=["Autumn of project vision"], amount=[1000 * hours * 3600], starts_ms=[NOW_MS - HOUR_MS],
        ends_ms=[NOW_MS + 100 * HOUR_MS], on_spent=[int(SpentRule.REFUSE)],
        project_ids=[tuple(world.snapshot.projects.id.tolist())],  # type: ignore[attr-defined]
    )  # fmt: skip


def test_nobody_is_stopped_for_what_the_budget_does_not_pay() -> None:
    """The long one cannot be paid for; the short one, which asks for the same otherwise, can."""
    world = a_world(
        nodes=[a_node("n1", gpus=1)],
        running=[running(a_job("low", gpus=1, priority=25), ("n1", (0,)), started=-60)],
        pending=[
            a_job("long", gpus=1, priority=75, minutes=600, submitted=-9),
            a_job("short", gpus=1, priority=75, minutes=60),
        ],
    )
    object.__setattr__(world.snapshot, "budgets", spent(world, hours=2))

    plan = plan_cycle(world.snapshot, Policy(name="priority", preemption=RULES))

    assert [one.for_job_id for one in plan.preempts] == [world.job("short")]


@pytest.mark.parametrize("backfill", ["none", "easy"])
@pytest.mark.parametrize("hours", [2, 50])
def test_a_gang_that_nothing_pays_for_gathers_no_nodes(backfill: str, hours: int) -> None:
    world = a_world(
        nodes=[a_node("n1", gpus=2), a_node("n2", gpus=2)],
        running=[
            running(a_job(f"r{number}", gpus=2), (f"n{number}", (0, 1)), ends_in=10, started=-60)
            for number in (1, 2)
        ],
        pending=[a_job("gang", tasks=2, gpus=2, gathers=60, minutes=600)],
    )
    object.__setattr__(world.snapshot, "budgets", spent(world, hours=hours))

    plan = plan_cycle(world.snapshot, Policy(assemblies=1, backfill=backfill))

    assert bool(plan.reserves) == (hours == 50)


def test_a_lowered_limit_counts_tasks_that_are_on_their_way_out() -> None:
    """Three GPUs are in use, two are allowed, and one task leaves already: that is enough."""
    world = a_world(
        nodes=[a_node("n1", gpus=4)],
        running=[
            a_sweep("sweep", 2, ("n1", (0,)), ("n1", (1,)), leaving=(1,), resized=-1),
            running(a_job("other", gpus=1), ("n1", (2,)), started=-5),
        ],
        quotas=[a_quota("gpu_millis", 2000, used=3000, converge=-1)],
    )

    for policy in (Policy(), POLICY):
        assert plan_cycle(world.snapshot, policy).preempts == ()


def test_a_lowered_limit_stops_nobody_whom_a_larger_job_makes_needless() -> None:
    """Two of five GPUs have to come free: the last to start has one, the one before it three."""
    world = a_world(
        nodes=[a_node("n1", gpus=5)],
        running=[
            running(a_job("oldest", gpus=1), ("n1", (0,)), started=-60),
            running(a_job("large", gpus=3), ("n1", (1, 2, 3)), started=-30),
            running(a_job("latest", gpus=1), ("n1", (4,)), started=-5),
        ],
        quotas=[a_quota("gpu_millis", 3000, used=5000, converge=-1)],
    )

    assert [one.job_id for one in plan_cycle(world.snapshot, Policy()).preempts] == [world.job("large")]
