"""Who goes first: every order against a slow one, and the rules that a site can read off it."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.core.cluster.index import ClusterIndex
from scheduler.core.ordering.fair_queue import WHOLE, Turn, remembered
from scheduler.core.ordering.ordering import fair_share, job_order
from scheduler.core.policy import POLICIES, Policy
from scheduler.core.snapshot.snapshot import Snapshot, TurnColumns
from tests.scheduler.core.test_plan_properties import FEW
from tests.support.builders import NOW_MS, NodeSpec, World, a_job, a_queue, a_world, running
from tests.support.reference_planner import State, order_key
from tests.support.strategies import worlds

HOUR = 3600


def with_history(world: World, seed: int) -> Snapshot:
    """The world with deadlines, weights and past use thrown in."""
    dice = random.Random(seed)
    snapshot = world.snapshot
    count, projects = len(snapshot.pending), len(snapshot.projects)
    by_user = dice.random() < 0.5
    ids = sorted({0, *(snapshot.pending.user_id if by_user else snapshot.projects.id).tolist()})
    memory = [
        Turn(
            0,
            by_user,
            tenant,
            dice.choice([0, 10**9, 10**12, 2 * 10**12]),
            bool(tenant) and dice.random() < 0.5,
        )
        for tenant in ids
        if dice.random() < 0.7
    ]
    return replace(
        snapshot,
        turns=remembered(TurnColumns(), memory),
        pending=replace(
            snapshot.pending,
            deadline_ms=[dice.choice([0, NOW_MS + 1000 * dice.randint(1, 9)]) for _ in range(count)],
        ),
        projects=replace(
            snapshot.projects,
            share_weight=[dice.randint(1, 3) for _ in range(projects)],
            used_gpu_seconds=[dice.choice([0, 3600, dice.randint(0, 10**6)]) for _ in range(projects)],
        ),
    )


def names_in_order(world: World, policy: Policy, snapshot: Snapshot | None = None) -> list[str]:
    snapshot = snapshot or world.snapshot
    names = {number: name for name, number in world.jobs.items()}
    rows = job_order(ClusterIndex(snapshot), policy)
    return [names[number] for number in snapshot.pending.id[rows].tolist()]


@given(
    worlds(),
    st.integers(0, 1000),
    st.sampled_from(POLICIES),
    st.sampled_from(["project", "user"]),
    st.sampled_from([(), (("age", 3), ("fairshare", 2), ("queue", 1)), (("size", 5), ("priority", 1))]),
    st.sampled_from([(), ("tasks",), ("-priority", "time_limit_seconds")]),
)
@settings(FEW, max_examples=200)
def test_every_order_is_what_an_obvious_sort_gives(
    world: World,
    seed: int,
    name: str,
    tenant: str,
    factors: tuple[tuple[str, int], ...],
    ties: tuple[str, ...],
) -> None:
    snapshot = with_history(world, seed)
    policy = Policy(name=name, tenant=tenant, factors=factors, tie_breakers=ties, age_cap_seconds=120)
    state = State(snapshot)

    rows = job_order(ClusterIndex(snapshot), policy)

    slow = sorted(state.jobs.values(), key=lambda job: order_key(state, job, policy))
    assert snapshot.pending.id[rows].tolist() == [int(job["id"]) for job in slow]


def test_fair_share_is_the_formula_of_the_document() -> None:
    weight, used = np.array([2, 1, 1]), np.array([3 * HOUR, 0, HOUR // 2])

    assert fair_share(weight, used).tolist() == [2 / (3 + 1.0), 1 / (0 + 1.0), 1 / (0.5 + 1.0)]


def test_who_used_less_goes_first() -> None:
    world = a_world(
        nodes=[NodeSpec("n1", gpus=1)],
        pending=[a_job("old", project="vision", submitted=-9), a_job("new", project="speech")],
    )
    projects = world.snapshot.projects
    used = [HOUR * 10 if name == "vision" else 0 for name in projects.name]
    snapshot = replace(world.snapshot, projects=replace(projects, used_gpu_seconds=used))

    assert names_in_order(world, Policy(name="fairshare"), snapshot) == ["new", "old"]
    assert names_in_order(world, Policy(name="fifo"), snapshot) == ["old", "new"]


def test_a_tenant_with_twice_the_weight_gets_two_turns_for_one() -> None:
    jobs = [
        a_job(f"{p}{n}", gpus=1, project=p, submitted=-9 + n) for p in ("speech", "vision") for n in range(4)
    ]
    world = a_world(nodes=[NodeSpec("n1", gpus=8)], pending=jobs)
    projects = world.snapshot.projects
    weights = [2 if name == "vision" else 1 for name in projects.name]
    snapshot = replace(world.snapshot, projects=replace(projects, share_weight=weights))

    order = names_in_order(world, Policy(name="fair_queue"), snapshot)

    assert [sum(name.startswith("vision") for name in order[:n]) for n in (3, 6)] == [2, 4]


def test_a_tenant_that_took_much_waits_for_those_that_took_nothing() -> None:
    """Three of four GPUs went to vision: it is three quarters of the cluster ahead."""
    world = a_world(
        nodes=[NodeSpec("n1", gpus=4)],
        running=[running(a_job("big", gpus=3, project="vision"), ("n1", [0, 1, 2]))],
        pending=[
            a_job("v", gpus=1, project="vision", submitted=-9),
            *(a_job(f"s{n}", gpus=1, project="speech", submitted=-n) for n in range(3)),
        ],
    )
    names = dict(zip(world.snapshot.projects.name, world.snapshot.projects.id.tolist(), strict=True))
    ahead = Turn(0, False, names["vision"], 3 * WHOLE // 4, True)
    snapshot = replace(world.snapshot, turns=remembered(TurnColumns(), [ahead]))

    assert names_in_order(world, Policy(name="fair_queue"), snapshot)[-1] == "v"


@pytest.mark.parametrize("name", POLICIES)
def test_a_queue_of_higher_priority_goes_first_under_every_policy_finding_19(name: str) -> None:
    world = a_world(
        nodes=[NodeSpec("n1")],
        queues=[a_queue("low", priority=20), a_queue("urgent", priority=80)],
        pending=[
            a_job("early", queue="low", submitted=-99, priority=90, deadline=5, minutes=1),
            a_job("late", queue="urgent", submitted=-1, priority=10, minutes=10),
        ],
    )

    assert names_in_order(world, Policy(name=name)) == ["late", "early"]


def test_factors_that_weigh_the_queue_say_how_much_its_priority_counts() -> None:
    world = a_world(
        nodes=[NodeSpec("n1")],
        queues=[a_queue("low", priority=20), a_queue("urgent", priority=80)],
        pending=[a_job("high", queue="low", priority=90), a_job("small", queue="urgent", priority=10)],
    )

    weighed = Policy(name="priority", factors=(("priority", 10), ("queue", 1)))
    assert names_in_order(world, weighed) == ["high", "small"]
    assert names_in_order(world, Policy(name="priority", factors=(("priority", 10),))) == ["small", "high"]


def test_jobs_of_one_band_start_first_in_first_out_and_66_does_not_pass_34() -> None:
    world = a_world(
        nodes=[NodeSpec("n1")],
        pending=[
            a_job("low", priority=33, submitted=-99), a_job("34", priority=34, submitted=-9),
            a_job("66", priority=66, submitted=-5), a_job("67", priority=67, submitted=-1),
        ],
    )  # fmt: skip

    assert names_in_order(world, Policy(name="priority")) == ["67", "66", "34", "low"]
    assert names_in_order(world, Policy(name="priority", priority_by="band")) == ["67", "34", "66", "low"]
    with pytest.raises(ValueError, match='under the policy "priority" without factors'):
        Policy(name="fifo", priority_by="band")


def test_waiting_raises_a_job_but_only_up_to_the_cap() -> None:
    policy = Policy(name="priority", factors=(("priority", 10), ("age", 2)), age_cap_seconds=10 * 60)
    jobs = [a_job("ancient", priority=50, submitted=-10_000), a_job("old", priority=50, submitted=-10),
            a_job("high", priority=75), a_job("fair", priority=60)]  # fmt: skip
    world = a_world(nodes=[NodeSpec("n1")], pending=jobs)

    # 10 x 0.5 + 2 x 1 = 7 for both old ones, however old; 7.5 and 6 for the others.
    assert names_in_order(world, policy) == ["high", "ancient", "old", "fair"]


def test_shortest_and_most_urgent_go_first_and_those_that_say_nothing_last() -> None:
    world = a_world(
        nodes=[NodeSpec("n1")],
        pending=[a_job("endless"), a_job("long", minutes=60), a_job("short", minutes=5)],
    )
    pending = world.snapshot.pending
    deadline = np.where(pending.id == world.job("long"), NOW_MS + 1, 0)
    urgent = replace(world.snapshot, pending=replace(pending, deadline_ms=deadline))

    assert names_in_order(world, Policy(name="sjf")) == ["short", "long", "endless"]
    assert names_in_order(world, Policy(name="edf"), urgent) == ["long", "endless", "short"]


@pytest.mark.parametrize("words", [{"factors": (("luck", 1),)}, {"tenant": "planet"}, {"age_cap_seconds": 0}])
def test_an_order_that_cannot_be_is_refused(words: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"luck|planet|capped"):
        Policy(**words)  # type: ignore[arg-type]
