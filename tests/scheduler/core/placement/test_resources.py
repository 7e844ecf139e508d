"""Requests, limits, classes of service and overcommit, slices of GPUs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from quotas.core.gpu_models import model_matches
from quotas.core.resources import Resources
from scheduler.core.cluster import device_index
from scheduler.core.cluster.index import ClusterIndex
from scheduler.core.cluster.workspace import Workspace
from scheduler.core.cycle import plan_cycle
from scheduler.core.forecast.forecast import forecast
from scheduler.core.placement import filters as feasibility
from scheduler.core.placement.fragmentation import Prospects
from scheduler.core.policy import Policy
from scheduler.core.preemption import victim_search as victims
from scheduler.core.preemption_policy import PreemptionPolicy
from scheduler.core.qos import Qos
from scheduler.core.revalidate import find_conflicts
from scheduler.core.snapshot import request_classes as classes
from scheduler.core.snapshot.codec import decode_snapshot, encode_snapshot
from scheduler.core.whatif.explain import node_table
from tests.support import reference_planner
from tests.support.builders import MINUTE_MS, a_job, a_node, a_quota, a_snapshot, a_world, running
from tests.support.strategies import a_random_world

RULES = PreemptionPolicy(enabled=True, classes=((0, ()), (50, (0,))), protected_seconds=0)


@pytest.mark.parametrize(
    ("words", "qos"),
    [
        ({}, Qos.BURSTABLE),
        ({"cpu_limit": 1, "memory_limit_gib": 1}, Qos.GUARANTEED),
        ({"cpu_limit": 1}, Qos.BURSTABLE),
        ({"cpu_limit": 2, "memory_limit_gib": 1}, Qos.BURSTABLE),
        ({"cpus": 0, "memory_gib": 0}, Qos.BEST_EFFORT),
        ({"cpus": 0, "memory_gib": 0, "memory_limit_gib": 4}, Qos.BURSTABLE),
        ({"cpus": 0, "memory_gib": 0, "gpus": 1}, Qos.BEST_EFFORT),
    ],
)
def test_the_class_follows_from_requests_and_limits(words: dict[str, Any], qos: Qos) -> None:
    assert a_job("a", **words).request.qos is qos


def test_limits_are_kept_in_recordings_and_absent_where_there_are_none() -> None:
    plain = a_snapshot(nodes=[a_node("n")], pending=[a_job("a")])
    bound = a_snapshot(nodes=[a_node("n")], pending=[a_job("a", cpu_limit=2, memory_limit_gib=3)])

    again = decode_snapshot(encode_snapshot(bound))

    assert (again.classes[0].cpu_limit_millis, again.classes[0].memory_limit_mib) == (2000, 3072)
    assert b"cpu_limit" not in encode_snapshot(plain)
    assert decode_snapshot(encode_snapshot(plain)) == plain


def test_a_job_that_requests_nothing_takes_nothing_from_others() -> None:
    world = a_world(
        nodes=[a_node("n", cpus=1, memory_gib=1)],
        pending=[a_job("free", cpus=0, memory_gib=0), a_job("one")],
    )

    plan = plan_cycle(world.snapshot, Policy())

    assert set(world.starts(plan)) == {"free", "one"}
    assert plan.starts[0].per_task == Resources()


def victim(**rules: Any) -> str:
    """Who is stopped of three that differ in their class of service, the surest being the cheapest to stop."""
    world = a_world(
        nodes=[a_node("n", gpus=3)],
        running=[
            running(a_job("sure", gpus=1, priority=10, cpu_limit=1, memory_limit_gib=1), ("n", [0]), started=-1),
            running(a_job("more", gpus=1, priority=10), ("n", [1]), started=-9),
            running(a_job("least", gpus=1, priority=10, cpus=0, memory_gib=0), ("n", [2]), started=-99),
        ],
        pending=[a_job("urgent", gpus=1, priority=75)],
    )  # fmt: skip
    plan = plan_cycle(world.snapshot, Policy(preemption=replace(RULES, **rules)))
    return {number: name for name, number in world.jobs.items()}[plan.preempts[0].job_id]


def test_best_effort_makes_way_first_only_where_the_profile_says_so() -> None:
    assert victim() == "sure"
    assert victim(qos=1) == "least"


def test_a_lower_priority_still_goes_before_a_lower_class_of_service() -> None:
    world = a_world(
        nodes=[a_node("n", gpus=2)],
        running=[
            running(a_job("low", gpus=1, priority=5, cpu_limit=1, memory_limit_gib=1), ("n", [0]), started=-9),
            running(a_job("least", gpus=1, priority=10, cpus=0, memory_gib=0), ("n", [1]), started=-9),
        ],
        pending=[a_job("urgent", gpus=1, priority=75)],
    )  # fmt: skip

    plan = plan_cycle(world.snapshot, Policy(preemption=replace(RULES, qos=1)))

    assert [one.job_id for one in plan.preempts] == [world.job("low")]


def test_an_order_that_forgets_the_class_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(victims, "preemption_rank", lambda world: world.snapshot.running.priority)

    with pytest.raises(AssertionError):
        test_best_effort_makes_way_first_only_where_the_profile_says_so()


# ------------------------------------------------------------------ overcommit


def plan_many_worlds() -> None:
    """Against a planner that is easy to believe."""
    for seed in range(200):
        world = a_random_world(seed, node_count=4, job_count=10, cut=True)
        reference_planner.check(world.snapshot, Policy(), plan_cycle(world.snapshot, Policy()))


def test_more_may_be_given_away_than_there_is_but_never_more_than_that_to_one_task() -> None:
    world = a_world(
        nodes=[a_node("n", cpus=4, memory_gib=8, overcommit=2)],
        pending=[
            a_job("big", cpus=6),
            a_job("wide", memory_gib=9),
            *(a_job(f"j{n}", cpus=4) for n in range(3)),
        ],
    )

    plan = plan_cycle(world.snapshot, Policy())

    assert set(world.starts(plan)) == {"j0", "j1"}
    assert world.reasons(plan) == {
        "big": "NoMatchingNode", "wide": "NoMatchingNode", "j2": "WaitingForResources",
    }  # fmt: skip
    (said,) = node_table(world.snapshot, Policy(), world.job("big"))
    assert (said.gate, said.sentence) == (
        "size", "too small for one task: the node has 4 CPUs and 8 GiB of memory",
    )  # fmt: skip


def test_a_ratio_below_one_keeps_something_back() -> None:
    world = a_world(
        nodes=[a_node("n", cpus=4, overcommit=0.75)], pending=[a_job("all", cpus=4), a_job("most", cpus=3)]
    )

    assert set(world.starts(plan_cycle(world.snapshot, Policy()))) == {"most"}


def test_a_gate_that_forgets_the_size_of_the_machine_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        feasibility.BUILT_IN, "size", feasibility.StaticFilter("size", lambda question, world: None)
    )

    with pytest.raises(AssertionError):
        test_more_may_be_given_away_than_there_is_but_never_more_than_that_to_one_task()


# ------------------------------------------------------------------ slices of GPUs


def test_every_job_gets_what_an_obvious_planner_would_give_it_where_devices_are_cut() -> None:
    plan_many_worlds()


def test_each_job_gets_the_slice_it_names_and_nobody_else_is_on_it() -> None:
    world = a_world(
        nodes=[a_node("n", gpus=1, slices=("1g.10gb", "1g.10gb", "3g.40gb"))],
        pending=[
            a_job("whole", gpus=1), a_job("more", gpus=1), a_job("half", gpus=1, share=500),
            a_job("s1", slice="1g.10gb"), a_job("s2", slice="1g.10gb", model="H100"), a_job("s3", slice="1g.10gb"),
            a_job("large", slice="3g.40gb"), a_job("other", slice="2g.20gb"),
            a_job("a100", slice="1g.10gb", model="A100"),
        ],
    )  # fmt: skip

    plan = plan_cycle(world.snapshot, Policy())

    given = {name: world.devices_of(plan.start_of(world.job(name)))[0][0][1] for name in world.starts(plan)}  # type: ignore[arg-type]
    assert given == {"whole": 0, "s1": 1, "s2": 2, "large": 3}
    reasons = world.reasons(plan)
    assert (reasons["s3"], reasons["more"], reasons["half"]) == ("WaitingForResources",) * 3
    assert reasons["other"] == reasons["a100"] == "NoMatchingNode"
    assert find_conflicts(plan, world.snapshot, Policy()) == ()


def test_a_slice_counts_for_its_part_of_a_gpu_and_limits_of_its_model_count_it() -> None:
    world = a_world(
        nodes=[a_node("n", slices=("1g.10gb",) * 7)],
        pending=[a_job(f"s{number}", slice="1g.10gb") for number in range(7)],
        quotas=[a_quota("gpu_millis", 500, model="H100")],
    )

    plan = plan_cycle(world.snapshot, Policy())

    assert [start.placements[0].gpu_millis for start in plan.starts] == [142] * 3
    assert set(world.reasons(plan).values()) == {"WaitingForQuota"}


def test_a_slice_that_somebody_took_meanwhile_is_a_conflict() -> None:
    words: dict[str, Any] = {"nodes": [a_node("n", slices=("1g.10gb",))]}
    before = a_world(**words, pending=[a_job("s", slice="1g.10gb", id=7)])
    plan = plan_cycle(before.snapshot, Policy())
    held = running(a_job("r", slice="1g.10gb"), ("n", [0]))
    after = a_world(**words, pending=[a_job("s", slice="1g.10gb", id=7)], running=[held])

    (conflict,) = find_conflicts(plan, after.snapshot, Policy())

    assert dict(conflict.facts)["gate"] in ("gpus", "device")


@pytest.mark.parametrize("backfill", ["none", "easy"])
def test_a_slice_comes_free_with_its_job_in_every_future(backfill: str) -> None:
    world = a_world(
        nodes=[a_node("n", slices=("1g.10gb",))],
        running=[running(a_job("r", slice="1g.10gb"), ("n", [0]), ends_in=10)],
        pending=[a_job("s", slice="1g.10gb", minutes=5), a_job("t", slice="1g.10gb", minutes=5)],
    )
    policy = Policy(backfill=backfill)

    found = forecast(world.snapshot, policy)

    waits = [(found[world.job(name)].p90_ms or 0) - world.snapshot.now_ms for name in "st"]
    assert waits == [10 * MINUTE_MS, 15 * MINUTE_MS]
    if backfill == "easy":
        (promised,) = plan_cycle(world.snapshot, policy).expected[:1]
        assert promised.at_ms == world.snapshot.now_ms + 10 * MINUTE_MS


def test_a_slice_is_cleared_for_a_job_of_higher_standing() -> None:
    world = a_world(
        nodes=[a_node("n", gpus=1, slices=("1g.10gb", "2g.20gb"))],
        running=[
            running(a_job("one", slice="1g.10gb", priority=10), ("n", [1]), started=-9),
            running(a_job("two", slice="2g.20gb", priority=10), ("n", [2]), started=-9),
        ],
        pending=[a_job("urgent", slice="2g.20gb", priority=75)],
    )

    plan = plan_cycle(world.snapshot, Policy(preemption=RULES))

    assert [one.job_id for one in plan.preempts] == [world.job("two")]


def _any_device_will_do(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(device_index, "suits", lambda wanted, have: not wanted or model_matches(wanted[:4], have))


def _a_slice_is_shared(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        classes.RequestClass,
        "shares_gpu",
        property(lambda self: self.per_task.gpus == 1 and 0 < self.per_task.gpu_millis < 1000),
    )


@pytest.mark.parametrize("mutant", [_any_device_will_do, _a_slice_is_shared])
def test_a_broken_rule_about_slices_is_noticed(
    mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)

    with pytest.raises((AssertionError, ValueError)):
        plan_many_worlds()


# ------------------------------------------------------------------ what slices count for


def test_a_node_of_slices_is_no_node_of_as_many_gpus() -> None:
    """best_fit takes the node that has less left: one GPU and seven slices are two GPUs, not eight."""
    world = a_world(
        nodes=[
            a_node("whole", gpus=2, first_device_id=10),
            a_node("cut", gpus=1, slices=("1g.10gb",) * 6, first_device_id=20),
        ],
        pending=[a_job("one", gpus=1)],
    )

    assert world.starts(plan_cycle(world.snapshot, Policy(placement="best_fit"))) == {"one": ["cut"]}
    assert world.starts(plan_cycle(world.snapshot, Policy(placement="spread"))) == {"one": ["whole"]}


def test_idle_slices_are_no_prospect_for_whole_jobs_and_one_for_those_of_slices() -> None:
    def prospect(slices: tuple[str, ...], *, cut: bool = False) -> float:
        jobs = [
            a_job("one", gpus=1),
            a_job("pair", gpus=2),
            *([a_job("small", slice="1g.10gb")] if cut else []),
        ]
        world = a_world(nodes=[a_node("n", gpus=2, slices=slices)], pending=jobs)
        return float(Prospects(Workspace(ClusterIndex(world.snapshot))).current()[0])

    cut = [prospect(("1g.10gb",) * count, cut=True) for count in range(3)]

    assert prospect(("1g.10gb",) * 4) == prospect(())
    assert cut[2] - cut[1] == cut[1] - cut[0] == 2 * 142  # one more task of a seventh


def test_what_is_free_of_a_slice_is_its_part_and_nothing_once_it_is_held() -> None:
    snapshot = a_world(
        nodes=[a_node("n", gpus=1, slices=("1g.10gb", "3g.40gb"))],
        running=[running(a_job("r", slice="1g.10gb"), ("n", [1]))],
    ).snapshot
    workspace = Workspace(ClusterIndex(snapshot))

    assert workspace.cluster.devices.gpu_capacity.tolist() == [1000 + 142 + 428]
    assert workspace.free_gpu_millis.tolist() == [1000 + 428]


def test_a_slice_that_is_taken_costs_the_usual_whole_jobs_nothing() -> None:
    """By fragmentation it goes beside the GPUs that nobody could use whole any more."""
    world = a_world(
        nodes=[
            a_node("roomy", gpus=2, cpus=4, slices=("1g.10gb",), first_device_id=10),
            a_node("tight", gpus=2, cpus=4, slices=("1g.10gb",), first_device_id=20),
        ],
        running=[running(a_job("r", gpus=2, cpus=2), ("tight", [0, 1]))],
        pending=[
            a_job("small", slice="1g.10gb", cpus=2, priority=90),
            a_job("pair", gpus=2, cpus=4, priority=10),
        ],
    )

    plan = plan_cycle(world.snapshot, Policy(name="priority", placement="frag"))

    assert world.starts(plan) == {"small": ["tight"], "pair": ["roomy"]}
