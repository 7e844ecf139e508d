"""What people are told is what the planner did: no sentence names another cause than the one that counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from scheduler.core.cycle import plan_cycle
from scheduler.core.plan import Plan
from scheduler.core.policy import Policy
from scheduler.core.reasons.messages import sentence
from scheduler.core.snapshot.snapshot import JobGate
from scheduler.core.whatif.explain import context_after, node_table
from tests.scheduler.core.backfill.test_backfill_guarantees import (
    a_head_and_one_that_would_pass,
    with_a_budget,
)
from tests.support.builders import NOW_MS, World, a_job, a_node, a_quota, a_reservation, a_world, running


def said(world: World, plan: Plan) -> dict[str, str]:
    """Job name -> its headline as it is read."""
    names = {number: name for name, number in world.jobs.items()}
    return {
        names[number]: sentence(plan.decision_of(number).reason, plan.decision_of(number).facts)
        for number in plan.reasons
    }


def nodes_say(world: World, policy: Policy, job: str) -> list[str]:
    plan = plan_cycle(world.snapshot, policy)
    return [verdict.sentence for verdict in node_table(world.snapshot, policy, world.job(job), plan)]


@pytest.mark.parametrize("ends_in", [0, 60], ids=["nobody knows when", "at a time that is known"])
@pytest.mark.parametrize(
    ("knobs", "who", "why"),
    [
        ({"backfill_max_priority": 66}, "high", "jobs of this priority are not backfilled."),
        ({"backfill_scan": 1}, "low", "each cycle tries a limited number of jobs behind it."),
    ],
    ids=["priority", "scan"],
)
def test_who_may_not_pass_is_not_told_to_ask_for_less_time(
    knobs: dict[str, int], who: str, why: str, ends_in: int
) -> None:
    world = a_world(
        nodes=[a_node("n1", gpus=4), a_node("n2", gpus=4)],
        running=[running(a_job("old", gpus=4), ("n1", [0, 1, 2, 3]), ends_in=ends_in)],
        pending=[
            a_job("head", gpus=4, tasks=2, minutes=60, submitted=-9, priority=90),
            a_job("high", gpus=1, minutes=5, priority=90),
            a_job("low", gpus=1, minutes=5, priority=10),
        ],
    )

    plan = plan_cycle(world.snapshot, Policy(backfill="easy", **knobs))

    assert said(world, plan)[who].startswith(f"Fits now, but job {world.job('head')} is ahead")
    assert said(world, plan)[who].endswith(why)


def test_a_budget_that_is_kept_for_another_is_named() -> None:
    world = a_head_and_one_that_would_pass()

    snapshot = with_a_budget(world, 11)

    assert said(world, plan_cycle(snapshot, Policy(backfill="easy")))["passes"] == (
        f"Fits now, but the remaining budget is reserved for job {world.job('head')} ahead."
    )


def test_nobody_is_told_to_wait_for_a_moment_that_is_over() -> None:
    world = a_world(
        nodes=[a_node("n1", gpus=4), a_node("n2", gpus=4)],
        running=[running(a_job("old", gpus=4), ("n1", [0, 1, 2, 3]), ends_in=20)],
        pending=[
            a_job("head", gpus=4, tasks=2, minutes=60, submitted=-9),
            a_job("long", gpus=1, minutes=300),
        ],
    )
    told = replace(world.snapshot.pending, promised_ms=[NOW_MS - 300_000, 0])
    policy = Policy(backfill="aggressive", backfill_delay_seconds=600)

    plan = plan_cycle(replace(world.snapshot, pending=told), policy)

    assert "still be running at 2023-11-14T22:13:20Z" in said(world, plan)["long"]  # and not 5 minutes ago


def gathering(*others: Any, quotas: Sequence[Any] = (), **words: Any) -> World:
    gang = a_job(
        "gang", tasks=2, gpus=2, gathers=60, minutes=60, gathering=("n1", "n2"), gathers_until=30, **words
    )
    return a_world(
        nodes=[a_node("n1", gpus=2), a_node("n2", gpus=2)],
        running=[running(a_job("old", gpus=2), ("n1", [0, 1]), ends_in=10)],
        pending=[gang, *others],
        quotas=quotas,
    )


def test_a_gang_that_gathers_is_told_first_what_else_keeps_it() -> None:
    held = gathering(gate=JobGate.HELD_BY_ADMIN)
    poor = gathering(quotas=[a_quota("gpu_millis", 4000, used=2000)])
    free = gathering()

    plans = [plan_cycle(world.snapshot, Policy()) for world in (held, poor, free)]

    assert said(held, plans[0])["gang"] == "Held by an operator until released."
    assert "project vision uses 2 of 4" in said(poor, plans[1])["gang"]
    assert said(free, plans[2])["gang"].startswith("Reserving 2 nodes until")
    assert [len(plan.expected) for plan in plans] == [0, 1, 1]  # nobody is told when a held job starts


def test_of_two_reservations_the_one_is_named_that_is_in_the_way() -> None:
    world = a_world(
        nodes=[a_node("n1", gpus=2), a_node("n2")],
        reservations=[
            a_reservation("near", "n1", starts_in=-5, minutes=30, projects=("other",)),
            a_reservation("far", "n2", starts_in=-5, minutes=3000, projects=("other",)),
        ],
        pending=[a_job("train", gpus=1, minutes=60)],
    )

    assert said(world, plan_cycle(world.snapshot, Policy())) == {
        "train": "The matching node (1) is reserved from 2023-11-14T22:08:20Z to 2023-11-14T22:38:20Z."
    }


def test_nodes_do_not_offer_what_this_cycle_gave_away() -> None:
    goes_on = a_world(
        nodes=[a_node("n1", cpus=4)],
        running=[running(a_job("still", cpus=4), "n1", pause="suspended", started=-60, ends_in=60)],
        pending=[a_job("other", cpus=2)],
    )
    gathers = a_world(
        nodes=[a_node("n1", gpus=2), a_node("n2", gpus=2)],
        running=[running(a_job("old", gpus=2), ("n1", [0, 1]), ends_in=10)],
        pending=[
            a_job("gang", tasks=2, gpus=2, gathers=60, minutes=60, submitted=-9),
            a_job("other", gpus=1),
        ],
    )

    assert nodes_say(goes_on, Policy(), "other") == ["needs 2 CPUs, has 0 CPUs free"]
    assert nodes_say(gathers, Policy(), "other") == ["needs 1 GPU, has 0 GPUs free"] * 2


def test_licences_are_counted_for_every_task_that_started() -> None:
    world = a_world(
        nodes=[a_node("n1", cpus=8)],
        licences={"matlab": (4, 0)},
        pending=[
            a_job("open", tasks=1, most=4, extras={"matlab": 1}, submitted=-9),
            a_job("other", extras={"matlab": 1}),
        ],
    )

    plan = plan_cycle(world.snapshot, Policy())

    assert context_after(world.snapshot, Policy(), plan).workspace.limits.pool_used == [4]
