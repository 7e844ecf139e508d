"""A queue with a policy of its own, planned inside the one cycle of its cluster."""

from __future__ import annotations

import pytest

from scheduler.core.cycle import plan_cycle
from scheduler.core.policy import Policy
from scheduler.core.snapshot.codec import decode_policy, encode_policy
from tests.support.builders import a_job, a_node, a_world, running

#: Queue ids are numbered in the order they are first met.
SHORT_FIRST = Policy(queues=((1, Policy(name="sjf")),))


def test_its_places_in_line_are_dealt_out_by_its_own_order() -> None:
    world = a_world(
        nodes=[a_node("n", cpus=3)],
        pending=[
            a_job("slow", queue="quick", minutes=90, submitted=-4),
            a_job("other", queue="main", minutes=5, submitted=-3),
            a_job("fast", queue="quick", minutes=10, submitted=-2),
            a_job("late", queue="main", minutes=1, submitted=-1),
        ],
    )

    plan = plan_cycle(world.snapshot, SHORT_FIRST)

    assert list(world.starts(plan)) == ["fast", "other", "slow"]  # "late" keeps its place behind "other"


def test_each_queue_has_its_own_placement_for_the_same_request() -> None:
    world = a_world(
        nodes=[a_node("small", cpus=4), a_node("large", cpus=16)],
        pending=[a_job("wide", queue="spread"), a_job("tight", queue="main")],
    )

    plan = plan_cycle(world.snapshot, Policy(queues=((1, Policy(placement="spread")),)))

    assert world.starts(plan) == {"wide": ["large"], "tight": ["small"]}


def test_one_queue_is_strict_and_the_other_is_not() -> None:
    world = a_world(
        nodes=[a_node("n", cpus=4)],
        pending=[
            a_job("s1", queue="strict", cpus=4),
            a_job("s2", queue="strict"),
            a_job("m1", queue="main", cpus=4),
            a_job("m2", queue="main"),
        ],
        running=[running(a_job("old", queue="strict"), "n")],
    )

    plan = plan_cycle(world.snapshot, Policy(queues=((1, Policy(strict_order=True)),)))

    assert world.starts(plan) == {"m2": ["n"]}
    assert world.reasons(plan)["s2"] == "Priority"


@pytest.mark.parametrize(("most", "passes"), [(66, True), (33, False)])
def test_whether_its_jobs_may_pass_others_is_its_own_matter(most: int, passes: bool) -> None:
    """Only low or normal priorities may backfill, where a queue says so."""
    world = a_world(
        nodes=[a_node("n", cpus=4)],
        running=[running(a_job("old", cpus=2), "n", ends_in=30)],
        pending=[
            a_job("large", cpus=4, minutes=60, submitted=-2),
            a_job("small", queue="side", minutes=10, submitted=-1, priority=50),
        ],
    )
    side = int(world.snapshot.queues.id[world.snapshot.queues.name.index("side")])
    policy = Policy(backfill="easy", queues=((side, Policy(backfill_max_priority=most)),))

    assert ("small" in world.starts(plan_cycle(world.snapshot, policy))) == passes


def test_it_is_recorded_with_the_policy_of_the_cluster() -> None:
    policy = Policy(backfill="easy", queues=((1, Policy(name="priority", factors=(("age", 2),))),))

    assert decode_policy(encode_policy(policy)) == policy
    with pytest.raises(ValueError, match="alone"):
        Policy(queues=((1, policy),))
