"""Fair queueing has memory (finding 18): tenants take turns by weight over any time, not only inside one cycle."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.core.cluster.index import ClusterIndex
from scheduler.core.cycle import plan_cycle
from scheduler.core.ordering.fair_queue import SCALE, WHOLE, Turn, remembered, turns_after
from scheduler.core.policy import Policy
from scheduler.core.snapshot.codec import _open, decode_snapshot, digest, encode_snapshot
from scheduler.core.snapshot.snapshot import Snapshot, TurnColumns, turn_key
from tests.scheduler.core.test_plan_properties import FEW
from tests.support.builders import JobSpec, NodeSpec, a_job, a_project, a_queue, a_world

PROJECTS = Policy(name="fair_queue")
#: Always the same, so that each keeps its id.
TENANTS = [a_project(name) for name in ("a", "b", "c")]
PEOPLE = Policy(name="fair_queue", tenant="user")


def starts_of(
    jobs: Iterable[JobSpec],
    policy: Policy = PROJECTS,
    *,
    weights: dict[str, int] | None = None,
    people: dict[int, int] | None = None,
    then: Callable[[int], Iterable[JobSpec]] = lambda turn: (),
    turns: int = 1000,
) -> list[str]:
    """The names of jobs as they start, one at a time on one slot; `then` says which jobs come before each turn."""
    waiting, memory, started = list(jobs), TurnColumns(), list[str]()
    if people:
        keys = {person: turn_key(0, True, person) for person in people}
        memory = TurnColumns.from_rows(
            (keys[person], 0, True, person, 0, False, weight) for person, weight in sorted(people.items())
        )
    for turn in range(turns):
        waiting += then(turn)
        if not waiting:
            break
        world = a_world(nodes=[NodeSpec("n1", cpus=4)], pending=waiting, projects=TENANTS)
        snapshot = replace(world.snapshot, turns=memory)
        if weights:
            ours = [weights.get(name, 1) for name in snapshot.projects.name]
            snapshot = replace(snapshot, projects=replace(snapshot.projects, share_weight=ours))
        plan = plan_cycle(snapshot, policy)
        ((name, _),) = list(world.starts(plan).items())[:1]
        memory = remembered(memory, turns_after(ClusterIndex(snapshot), policy, [world.job(name)]))
        waiting = [job for job in waiting if job.name != name]
        started.append(name)
    return started


def header_of(snapshot: Snapshot) -> dict[str, Any]:
    """What a recording says of itself."""
    header, _ = _open(encode_snapshot(snapshot), "snapshot")
    return header


def of(tenant: str, count: int, *, cpus: float = 4, first: int = -1000, **words: object) -> list[JobSpec]:
    return [
        a_job(f"{tenant}{n}", cpus=cpus, project=tenant, submitted=first + n, **words) for n in range(count)
    ]


def letters(names: Iterable[str]) -> str:
    return "".join(name[0] for name in names)


def test_one_slot_alternates_between_two_people_finding_18() -> None:
    jobs = [
        *(a_job(f"a{n}", cpus=4, user=1, submitted=-100 + n) for n in range(3)),
        *(a_job(f"c{n}", cpus=4, user=2, submitted=-50 + n) for n in range(2)),
    ]

    assert letters(starts_of(jobs, PEOPLE)) == "acaca"


def test_weights_of_2_to_1_give_2_to_1_starts_over_any_window() -> None:
    order = letters(starts_of([*of("a", 12), *of("c", 6)], weights={"a": 2}))

    windows = {order[at : at + 3].count("a") for at in range(16)}
    assert windows == {2}


@pytest.mark.parametrize("weight", [2, 3])
def test_people_have_weights(weight: int) -> None:
    jobs = [a_job(f"{name}{n}", cpus=4, user=user, submitted=n) for n in range(2 * weight) for name, user in
            (("a", 1), ("c", 2))]  # fmt: skip

    order = letters(starts_of(jobs, PEOPLE, people={1: weight, 2: 1}, turns=2 * (weight + 1)))

    assert order.count("a") == 2 * weight


def test_who_was_idle_has_not_saved_up() -> None:
    """`a` runs alone for 6 turns; `c` then comes back and shares from there, one for one."""
    late = of("c", 3, first=100)

    order = letters(starts_of(of("a", 9), then=lambda turn: late if turn == 6 else (), turns=12))

    assert order[:6] == "a" * 6
    assert order[6:] == "ca" * 3


def test_who_took_much_waits_however_long_ago_the_job_has_ended() -> None:
    """A start of the whole cluster is worth four of a quarter."""
    jobs = [*of("a", 1, cpus=4, first=-2000), *of("a", 1, cpus=1, first=-1000), *of("c", 6, cpus=1)]
    jobs = [replace(job, name=f"{job.name}-{at}") for at, job in enumerate(jobs)]

    assert letters(starts_of(jobs)) == "cacccacc"


def test_cpu_jobs_cost_what_they_ask_for_and_the_largest_part_counts() -> None:
    """Of 4 cores, 16 GiB and 2 GPUs: 1 core is 25 %, 8 GiB and 1 GPU are 50 %."""
    node = NodeSpec("n1", cpus=4, memory_gib=16, gpus=2)
    world = a_world(
        nodes=[node],
        pending=[
            a_job("core", cpus=1, memory_gib=1, project="a", submitted=-3),
            a_job("memory", cpus=1, memory_gib=8, project="a", submitted=-2),
            a_job("gpu", cpus=1, memory_gib=1, gpus=1, project="a", submitted=-1),
        ],
    )
    index = ClusterIndex(world.snapshot)

    gone = {turn.tenant_id: turn for turn in turns_after(index, PROJECTS, [world.job("core")])}
    whole = {turn.tenant_id: turn for turn in turns_after(index, PROJECTS, list(world.jobs.values()))}

    project = int(world.snapshot.projects.id[0])
    assert gone[project] == Turn(0, False, project, 250_000 * SCALE, True)
    assert whole[project] == Turn(0, False, project, 1_250_000 * SCALE, False)
    assert whole[0] == Turn(0, False, 0, 750_000 * SCALE, False)


def test_who_waits_for_something_else_is_at_most_one_cluster_behind() -> None:
    world = a_world(nodes=[NodeSpec("n1", cpus=4)], pending=[*of("a", 9), *of("c", 9)])
    number = dict(zip(world.snapshot.projects.name, world.snapshot.projects.id.tolist(), strict=True))
    first, second = number["a"], number["c"]
    memory = remembered(
        TurnColumns(), [Turn(0, False, 0, 50 * WHOLE, False), Turn(0, False, first, 0, True),
                        Turn(0, False, second, 50 * WHOLE, True)],
    )  # fmt: skip
    snapshot = replace(world.snapshot, turns=memory)

    (changed,) = [
        turn
        for turn in turns_after(ClusterIndex(snapshot), PROJECTS, [int(snapshot.pending.id[0])])
        if turn.tenant_id == first
    ]

    assert changed.virtual == 50 * WHOLE


def test_a_queue_with_its_own_fair_queue_has_a_memory_of_its_own() -> None:
    world = a_world(
        nodes=[NodeSpec("n1", cpus=4)],
        queues=[a_queue("main"), a_queue("turns")],
        pending=[*of("a", 2, queue="turns"), *of("c", 2, queue="main")],
    )
    number = {
        name: int(one) for one, name in zip(world.snapshot.queues.id, world.snapshot.queues.name, strict=True)
    }
    policy = Policy(queues=((number["turns"], PROJECTS),))

    inside = list(turns_after(ClusterIndex(world.snapshot), policy, [world.job("a0")]))
    outside = list(turns_after(ClusterIndex(world.snapshot), policy, [world.job("c0")]))

    assert {turn.queue_id for turn in inside} == {number["turns"]}
    assert outside == []


def test_without_fair_queueing_nothing_is_remembered_or_recorded() -> None:
    world = a_world(nodes=[NodeSpec("n1")], pending=of("a", 2))

    assert list(turns_after(ClusterIndex(world.snapshot), Policy(), [world.job("a0")])) == []
    assert "turns" not in header_of(world.snapshot)["groups"]
    known = replace(world.snapshot, turns=remembered(TurnColumns(), [Turn(0, False, 1, 5, True)]))
    again = decode_snapshot(encode_snapshot(known))
    assert again == known
    assert digest(plan_cycle(again, PROJECTS)) == digest(plan_cycle(known, PROJECTS))


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from([1, 2, 4])), min_size=6, max_size=10),
    st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4)),
)
@settings(FEW, max_examples=8)
def test_two_tenants_that_wait_are_never_further_apart_than_one_job_of_each(
    asked: list[tuple[str, int]], weights: tuple[int, int, int]
) -> None:
    """The bound of Goyal et al., theorem 1: |W_f / r_f - W_m / r_m| <= l_f / r_f + l_m / r_m while both wait."""
    jobs = [
        a_job(f"{tenant}{n}", cpus=cpus, project=tenant, submitted=n - 100)
        for n, (tenant, cpus) in enumerate(asked)
    ]
    weight = dict(zip("abc", weights, strict=True))
    cost = {job.name: cpus for job, (_, cpus) in zip(jobs, asked, strict=True)}

    order = starts_of(jobs, weights=weight)

    left = {tenant: sum(name == tenant for name, _ in asked) for tenant in "abc"}
    done = dict.fromkeys("abc", 0.0)
    for name in order:
        tenant = name[0]
        done[tenant] += cost[name] / weight[tenant]
        left[tenant] -= 1
        both = [one for one in "abc" if left[one] > 0]
        for one in both:
            for other in both:
                assert abs(done[one] - done[other]) <= 4 / weight[one] + 4 / weight[other] + 1e-9
