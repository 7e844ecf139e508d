"""Gangs that gather nodes: what must hold in every small crowded world."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import combinations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduler.core.cycle import plan_cycle
from scheduler.core.plan import GiveBack, Plan, Reserve
from scheduler.core.policy import Policy
from scheduler.core.reasons.messages import sentence
from scheduler.core.revalidate import find_conflicts
from scheduler.core.snapshot import codec
from scheduler.core.snapshot.snapshot import gathering_id
from tests.support.builders import JobSpec, World, a_job, a_node, a_policy, a_world, running
from tests.support.strategies import a_random_job, a_random_node, random_running


def a_world_that_gathers(seed: int) -> World:
    """Some gangs want to gather, one or two gather already, on nodes of their own."""
    dice = random.Random(seed)
    nodes = [a_random_node(random.Random(f"{seed} n{number}"), f"n{number}") for number in range(6)]
    names = [node.name for node in nodes]
    dice.shuffle(names)
    jobs: list[JobSpec] = []
    for number in range(9):
        job = a_random_job(random.Random(f"{seed} j{number}"), f"j{number}")
        if dice.random() < 0.5:
            job = replace(job, gathers=dice.choice([5, 30]), gathered_in_vain=dice.choice([0, 3]))
        if number < 2 and dice.random() < 0.6:
            kept = tuple(names[2 * number : 2 * number + 2])
            job = replace(job, gathers=30, gathering=kept, gathers_until=dice.choice([-1, 10]))
        jobs.append(job)
    return a_world(nodes=nodes, running=random_running(dice, nodes, 5), pending=jobs)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.integers(0, 2**32 - 1), st.sampled_from([0, 1, 2]), st.sampled_from(["none", "easy", "conservative"])
)
def test_what_must_hold_of_gangs_that_gather(seed: int, most: int, backfill: str) -> None:
    world = a_world_that_gathers(seed)
    snapshot, policy = world.snapshot, Policy(assemblies=most, backfill=backfill)
    pending, now_ms = snapshot.pending, snapshot.now_ms

    plan = plan_cycle(snapshot, policy)

    started = {start.job_id for start in plan.starts}
    assert len(started | set(plan.reasons)) == len(pending) == len(started) + len(plan.reasons)
    assert find_conflicts(plan, snapshot, policy) == ()
    kept = dict(zip(snapshot.reservations.id.tolist(), snapshot.reservations.node_ids, strict=True))
    until = dict(zip(pending.id.tolist(), pending.assembling_until_ms.tolist(), strict=True))
    live = {job: set(kept[gathering_id(job)]) for job, at in until.items() if at > now_ms}
    new = {reserve.job_id: set(reserve.node_ids) for reserve in plan.reserves}
    # Whose time is up and who does not start gives all back, and nobody else does.
    late = {job for job, at in until.items() if 0 < at <= now_ms}
    assert {one.job_id for one in plan.given_back} == late - started
    assert all(one.retry_ms >= now_ms + 60_000 for one in plan.given_back)
    # Nobody else starts where a gang gathers already; it may itself, where it likes.
    for start in plan.starts:
        for job, nodes in live.items():
            assert start.job_id == job or job in started or not nodes & set(start.node_ids)
    # No node is gathered by two, and no more gather than may.
    gathering = {job: nodes for job, nodes in (live | new).items() if job not in started}
    assert not any(one & other for one, other in combinations(gathering.values(), 2))
    assert len(set(gathering) - set(live)) <= max(0, most - len(set(live) - started))
    # Who begins is whole where it gathers: its nodes could hold all of it.
    for reserve in plan.reserves:
        assert reserve.node_ids
        assert reserve.until_ms > now_ms


def test_a_plan_with_gatherings_is_the_same_after_a_recording() -> None:
    plan = Plan(reserves=(Reserve(7, 2, (1, 3), 99),), given_back=(GiveBack(8, 1, 120),))

    assert codec.decode_plan(codec.encode_plan(plan)) == plan


def test_none_gather_where_the_policy_lets_none() -> None:
    world = a_world(
        nodes=[a_node("n1", gpus=2), a_node("n2", gpus=2)],
        running=[running(a_job("old", gpus=2), ("n1", [0, 1]), ends_in=5)],
        pending=[a_job("gang", tasks=2, gpus=2, gathers=60), a_job("small", gpus=2)],
    )

    plan = plan_cycle(world.snapshot, a_policy(assemblies=0))

    assert (plan.reserves, world.starts(plan)) == ((), {"small": ["n2"]})


def test_a_gang_gathers_also_where_limits_end_after_its_window_and_says_so() -> None:
    """Finding 25: limits are the longest that jobs run, so its nodes may be free before; else its time is up."""
    world = a_world(
        nodes=[a_node("n1", gpus=2), a_node("n2", gpus=2)],
        running=[running(a_job("old", gpus=2), ("n1", [0, 1]), ends_in=90)],
        pending=[a_job("gang", tasks=2, gpus=2, gathers=60), a_job("small", gpus=2)],
    )
    now_ms = world.snapshot.now_ms

    plan = plan_cycle(world.snapshot, a_policy())

    (reserve,) = plan.reserves
    assert (len(reserve.node_ids), reserve.until_ms, world.starts(plan)) == (2, now_ms + 60 * 60_000, {})
    why = plan.decision_of(reserve.job_id)
    assert dict(why.facts)["by_limits_ms"] == now_ms + 90 * 60_000
    said = sentence(why.reason, why.facts)
    assert "after that: the job starts only if some end before their limits" in said


def test_a_gang_that_a_limit_stops_gathers_nothing() -> None:
    from tests.support.builders import a_quota

    world = a_world(
        nodes=[a_node("n1", gpus=2), a_node("n2", gpus=2)],
        running=[running(a_job("old", gpus=2), ("n1", [0, 1]), ends_in=5)],
        pending=[a_job("gang", tasks=2, gpus=2, gathers=60)],
        quotas=[a_quota("gpu_millis", 4000, used=1000)],
    )

    assert plan_cycle(world.snapshot, a_policy()).reserves == ()
