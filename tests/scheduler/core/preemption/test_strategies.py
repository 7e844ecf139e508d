"""Preemption by resource, by pressure and by risk: off by default, and what each changes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from scheduler.core.cycle import plan_cycle
from scheduler.core.policy import Policy
from scheduler.core.preemption_policy import PreemptionPolicy
from scheduler.core.reason_codes import ReasonCode
from scheduler.core.reasons.messages import sentence
from scheduler.core.snapshot.codec import decode_plan, decode_policy, encode_plan, encode_policy
from tests.support.builders import World, a_job, a_node, a_world, running

RULES = PreemptionPolicy(
    enabled=True, classes=((0, ()), (25, (0,)), (50, (0, 25)), (75, (0, 25, 50))), protected_seconds=1
)


def victims(world: World, **rules: Any) -> set[str]:
    """The names of the jobs that are stopped."""
    names = {number: name for name, number in world.jobs.items()}
    plan = plan_cycle(world.snapshot, Policy(preemption=replace(RULES, **rules)))
    return {names[preempt.job_id] for preempt in plan.preempts}


def test_a_job_without_gpus_stops_a_gpu_job_only_where_nothing_else_helps() -> None:
    """The GPU job is of the lower priority, so it is the usual victim."""
    nodes = [a_node("gpu", cpus=8, gpus=1), a_node("plain", cpus=8)]
    trains = running(a_job("trains", cpus=8, gpus=1, priority=10), ("gpu", [0]), started=-60)
    serves = running(a_job("serves", cpus=8, priority=30), "plain", started=-60)
    wants = a_job("wants", cpus=8, priority=90)
    both = a_world(nodes=nodes, running=[trains, serves], pending=[wants])
    alone = a_world(nodes=nodes[:1], running=[trains], pending=[wants])

    assert victims(both) == {"trains"}
    assert victims(both, by_resource=1) == {"serves"}
    assert victims(alone, by_resource=1) == {"trains"}


def test_a_job_with_gpus_stops_jobs_that_hold_gpus_it_can_use() -> None:
    """A CPU job of lower priority holds the cores that it lacks on one node."""
    world = a_world(
        nodes=[a_node("one", cpus=8, gpus=2), a_node("two", cpus=8, gpus=1)],
        running=[
            running(a_job("cores", cpus=8, priority=10), "one", started=-60),
            running(a_job("gpus", cpus=8, gpus=1, priority=30), ("two", [0]), started=-60),
        ],
        pending=[a_job("wants", cpus=8, gpus=1, priority=90)],
    )

    assert victims(world) == {"cores"}
    assert victims(world, by_resource=1) == {"gpus"}


@pytest.mark.parametrize(("percent", "stops"), [(0, True), (50, True), (51, False), (100, False)])
def test_below_the_pressure_nobody_is_stopped(percent: int, stops: bool) -> None:
    """Half of each node is allocated, and the job needs a whole one."""
    world = a_world(
        nodes=[a_node("one", cpus=8), a_node("two", cpus=8), a_node("away", cpus=64, state="down")],
        running=[
            running(a_job("a", cpus=4, priority=10), "one", started=-60),
            running(a_job("b", cpus=4, priority=10), "two", started=-50),
        ],
        pending=[a_job("wants", cpus=8, priority=90)],
    )

    assert bool(victims(world, pressure_percent=percent)) == stops


def test_pressure_is_of_the_resource_that_is_asked_for() -> None:
    """All GPUs are allocated and few cores: a job with GPUs finds pressure where one without does not."""
    world = a_world(
        nodes=[a_node("one", cpus=64, gpus=2)],
        running=[running(a_job("a", cpus=1, gpus=2, priority=10), ("one", [0, 1]), started=-60)],
        pending=[a_job("gpus", cpus=1, gpus=2, priority=90)],
    )
    cores = a_world(
        nodes=[a_node("one", cpus=64, gpus=2)],
        running=[running(a_job("a", cpus=1, gpus=2, priority=10), ("one", [0, 1]), started=-60)],
        pending=[a_job("cores", cpus=64, priority=90)],
    )

    assert victims(world, pressure_percent=90) == {"a"}
    assert victims(cores, pressure_percent=90) == set()


def half_allocated(priority: int) -> World:
    """Half of each node is allocated, and the job needs a whole one."""
    return a_world(
        nodes=[a_node("one", cpus=8), a_node("two", cpus=8)],
        running=[
            running(a_job("a", cpus=4, priority=10), "one", started=-60),
            running(a_job("b", cpus=4, priority=10), "two", started=-50),
        ],
        pending=[a_job("wants", cpus=8, priority=priority), a_job("later", cpus=8, priority=priority - 1)],
    )


@pytest.mark.parametrize(("priority", "stops"), [(40, False), (50, False), (75, True), (90, True)])
def test_each_priority_has_its_pressure(priority: int, stops: bool) -> None:
    levels = {"pressure_percent": 90, "pressure_levels": ((50, 70), (75, 50), (90, 0))}
    assert bool(victims(half_allocated(priority), **levels)) == stops


def test_the_waiting_job_and_the_victim_name_the_pressure() -> None:
    waits = plan_cycle(half_allocated(90).snapshot, Policy(preemption=replace(RULES, pressure_percent=60)))
    texts = {sentence(decision.reason, decision.facts) for decision in waits.decisions}
    assert all(
        text.endswith(
            "No job is preempted for it: of the nodes that it may use 50 % is allocated, of 60 % required."
        )
        for text in texts
    )

    world = half_allocated(90)
    stops = plan_cycle(world.snapshot, Policy(preemption=replace(RULES, pressure_percent=50)))
    assert {"pressure_percent": 50, "allocated_percent": 50}.items() <= dict(
        stops.preempts[0].strategy
    ).items()
    text = next(
        sentence(decision.reason, decision.facts)
        for decision in stops.decisions
        if decision.reason is ReasonCode.WAITING_FOR_PREEMPTION
    )
    assert text.endswith(
        "Of the nodes that it may use 50 % is allocated; jobs are preempted for it from 50 % on."
    )


def test_pressure_does_not_rise_with_the_priority() -> None:
    for levels in (((50, 60), (75, 70)), ((50, 60), (50, 50)), ((50, 101),), ((101, 5),)):
        with pytest.raises(ValueError, match="pressure_levels"):
            replace(RULES, pressure_levels=levels)
    with pytest.raises(ValueError, match="must not be above pressure_percent"):
        replace(RULES, pressure_percent=40, pressure_levels=((50, 60),))


@pytest.mark.parametrize(
    ("left", "right", "usual"),
    [
        ({"times_preempted": 2}, {}, "a"),
        ({"ends_in": 1}, {"ends_in": 600}, "a"),
    ],
    ids=["stopped before", "near its end"],
)
def test_of_two_that_lose_the_same_the_one_at_more_risk_is_left_alone(
    left: dict[str, int], right: dict[str, int], usual: str
) -> None:
    """Both lose an hour; without risk the number decides, and with it what else stopping one costs."""
    world = a_world(
        nodes=[a_node("one", cpus=8), a_node("two", cpus=8)],
        running=[
            running(a_job("b", cpus=8, priority=10), "two", started=-60, **right),
            running(a_job("a", cpus=8, priority=10), "one", started=-60, **left),
        ],
        pending=[a_job("wants", cpus=8, priority=90)],
    )

    assert victims(world) == {usual}
    assert victims(world, risk=1) == {"b"}


def test_a_victim_says_what_spoke_for_it_and_keeps_it_when_recorded() -> None:
    world = a_world(
        nodes=[a_node("one", cpus=8)],
        running=[running(a_job("a", cpus=8, priority=10), "one", started=-60, times_preempted=1)],
        pending=[a_job("wants", cpus=8, priority=90)],
    )
    plain, by_risk = (
        plan_cycle(world.snapshot, Policy(preemption=replace(RULES, risk=risk))) for risk in (0, 1)
    )

    (preempt,) = by_risk.preempts
    assert plain.preempts[0].strategy == ()
    assert dict(preempt.strategy)["cost"] == (3600 + 2 * RULES.restart_seconds) * 500
    assert dict(preempt.strategy)["times_preempted"] == 1
    assert decode_plan(encode_plan(by_risk)) == by_risk
    assert decode_plan(encode_plan(plain)) == plain


def test_they_are_recorded_with_the_policy() -> None:
    levels = {"pressure_percent": 80, "pressure_levels": ((50, 60), (90, 0))}
    policy = Policy(preemption=replace(RULES, risk=1, by_resource=1, **levels))  # type: ignore[arg-type]

    assert decode_policy(encode_policy(policy)) == policy
