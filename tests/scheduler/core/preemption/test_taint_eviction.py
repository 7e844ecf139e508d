"""Who has to leave a node with a NoExecute taint, and what else the same cycle does (P24, N4)."""

from __future__ import annotations

from scheduler.core.cycle import plan_cycle
from scheduler.core.plan import Preempt
from scheduler.core.snapshot.codec import decode_plan, decode_snapshot, encode_plan, encode_snapshot
from scheduler.core.snapshot.constraints import Taint, Toleration
from tests.scheduler.core.preemption.test_preemption import RULES
from tests.support.applied import applied
from tests.support.builders import NOW_MS, a_job, a_node, a_policy, a_world, running

SICK = Taint("sick", "", "NoExecute", since_ms=NOW_MS - 60_000)


def test_it_is_told_once_and_the_telling_can_be_recorded() -> None:
    world = a_world(
        nodes=[a_node("n", taints=(SICK,))], running=[running(a_job("old"), "n", started=-5, saved=-2)]
    )

    plan = plan_cycle(world.snapshot, a_policy())

    assert plan.preempts == (
        Preempt(
            world.job("old"),
            1,
            0,
            0,
            50,
            0,
            lost_seconds=120,
            grace_seconds=60,
            node_id=1,
            taint=("sick", ""),
        ),
    )
    assert decode_plan(encode_plan(plan)) == plan
    assert decode_snapshot(encode_snapshot(world.snapshot)) == world.snapshot
    assert plan_cycle(applied(world.snapshot, plan), a_policy()).preempts == ()


def test_the_shortest_time_counts_and_a_taint_of_another_effect_sends_nobody_away() -> None:
    both = [Toleration("sick", "Exists", seconds=600), Toleration("", "Exists", seconds=30)]
    world = a_world(
        nodes=[a_node("n", taints=(SICK,)), a_node("soft", taints=(Taint("team", "x"),))],
        running=[
            running(a_job("short", tolerations=both), "n"),
            running(a_job("long", tolerations=both[:1]), "n"),
            running(a_job("fine"), "soft"),
        ],
    )

    assert [one.job_id for one in plan_cycle(world.snapshot, a_policy()).preempts] == [world.job("short")]


def test_nobody_else_is_stopped_for_room_that_comes_back_anyway() -> None:
    """The evicted job leaves a license; without counting on it, the other holder would be a victim."""
    world = a_world(
        nodes=[a_node("n", taints=(SICK,)), a_node("well", cpus=8)],
        running=[
            running(a_job("leaves", extras={"matlab": 1}, priority=0), "n", started=-90),
            running(a_job("stays", extras={"matlab": 1}, priority=0), "well", started=-90),
        ],
        pending=[a_job("new", extras={"matlab": 1}, priority=100)],
        licences={"matlab": (2, 2)},
    )

    plan = plan_cycle(world.snapshot, a_policy(name="priority", preemption=RULES))

    assert [one.job_id for one in plan.preempts] == [world.job("leaves")]
