"""The smallest change that helps: what is said is what the planner then does."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from scheduler.core.cycle import plan_cycle
from scheduler.core.policy import Policy
from scheduler.core.whatif.explain import context_after
from scheduler.core.whatif.smallest_change import (
    MOST_PLANNED,
    Change,
    _fits,
    _variants,
    changed_snapshot,
    smallest_change,
)
from tests.scheduler.core.test_plan_properties import FEW
from tests.support.builders import World, a_job, a_node, a_queue, a_quota, a_reservation, a_world, running
from tests.support.strategies import policies, worlds


def found(world: World, name: str, policy: Policy | None = None, **words: Any) -> Change | None:
    policy = policy or Policy()
    plan = plan_cycle(world.snapshot, policy)
    after = context_after(world.snapshot, policy, plan)
    return smallest_change(world.snapshot, policy, world.job(name), after, **words)


def said(world: World, name: str, **words: Any) -> str:
    change = found(world, name, **words)
    return change.sentence(world.snapshot) if change else ""


def test_one_gpu_less_is_enough() -> None:
    world = a_world(
        nodes=[a_node("gpu-1", gpus=8), a_node("gpu-2", gpus=8)],
        running=[
            running(a_job("a", gpus=4), ("gpu-1", [0, 1, 2, 3])),
            running(a_job("b", gpus=1), ("gpu-2", [0])),
        ],
        pending=[a_job("train", gpus=8)],
    )

    assert said(world, "train") == "With 7 GPUs instead of 8 the job would start now, on gpu-2."


def test_another_model_is_less_of_a_change_than_fewer_gpus() -> None:
    world = a_world(
        nodes=[a_node("h", gpus=4), a_node("a", gpus=4, model="A100")],
        running=[running(a_job("old", gpus=1), ("h", [0]))],
        pending=[a_job("train", gpus=4, model="H100")],
    )

    assert said(world, "train") == "With A100 GPUs instead of H100 the job would start now, on a."


def test_a_shorter_limit_ends_before_the_maintenance() -> None:
    world = a_world(
        nodes=[a_node("n1")],
        pending=[a_job("long", minutes=120)],
        reservations=[a_reservation("maintenance", "n1", starts_in=90)],
    )

    assert (
        said(world, "long")
        == "With a time limit of 1:30:00 instead of 2:00:00 the job would start now, on n1."
    )


def test_another_queue_that_its_owner_may_use() -> None:
    world = a_world(
        nodes=[a_node("n1")],
        running=[running(a_job("one"), "n1")],
        pending=[a_job("two")],
        queues=[a_queue("main", max_concurrent_jobs=1), a_queue("side"), a_queue("shut", paused="by A.")],
    )

    assert found(world, "two") is None
    assert said(world, "two", queue_ids=(1, 2, 3)) == "In the queue side the job would start now, on n1."


def test_fewer_tasks_and_a_quota() -> None:
    world = a_world(
        nodes=[a_node("n1", cpus=8)],
        pending=[a_job("wide", cpus=2, tasks=6, memory_gib=0)],
        quotas=[a_quota("cpu_millis", 20_000, used=15_000)],
    )

    assert said(world, "wide") == "With 2 tasks instead of 6 the job would start now, on n1."


def test_where_no_single_change_helps_nothing_is_said() -> None:
    world = a_world(nodes=[a_node("n1", cordoned=True)], pending=[a_job("one", gpus=2)])

    assert said(world, "one") == ""


@given(worlds(), policies())
@FEW
def test_the_planner_does_what_was_said_and_nothing_smaller_would_do(world: World, policy: Policy) -> None:
    plan = plan_cycle(world.snapshot, policy)
    after = context_after(world.snapshot, policy, plan)
    queues = tuple(world.snapshot.queues.id.tolist())
    for job in list(plan.reasons)[:3]:
        change = smallest_change(world.snapshot, policy, job, after, queue_ids=queues)
        row = world.snapshot.job_row(job)
        fitting = 0
        for variant in sorted(_variants(after, row, queues), key=lambda one: (one.loss, one.field)):
            asked = plan_cycle(changed_snapshot(world.snapshot, row, variant), policy).start_of(job)
            same = change is not None and (change.field, change.after) == (variant.field, variant.after)
            fits = _fits(after, row, variant)
            fitting += fits
            if same:
                assert change is not None
                assert asked == change.start
                assert change.sentence(world.snapshot).endswith(".")
            elif asked is not None and fits and fitting <= MOST_PLANNED:
                assert change is not None  # with what later jobs leave; it never takes their start away


def test_the_largest_amount_that_fits_is_offered() -> None:
    world = a_world(nodes=[a_node("n1", gpus=4, cpus=64)], running=[running(a_job("r", gpus=1), ("n1", [3]))],
                    pending=[a_job("x", gpus=4)])  # fmt: skip

    change = found(world, "x")

    assert change is not None
    assert (change.field, change.before, change.after) == ("gpus", 4, 3)


@pytest.mark.parametrize("policy", [Policy(), Policy(backfill="easy")])
def test_what_is_said_keeps_the_promises_of_backfill(policy: Policy) -> None:
    world = a_world(
        nodes=[a_node("n1", gpus=4)],
        running=[running(a_job("r", gpus=2, minutes=60), ("n1", [0, 1]), ends_in=30)],
        pending=[a_job("head", gpus=4, minutes=60, submitted=-9), a_job("next", gpus=3, minutes=600)],
    )

    change = found(world, "next", policy)

    if policy.backfill == "none":
        assert change is not None
        assert change.after == 2
    elif change is not None:
        assert plan_cycle(world.snapshot, policy).start_of(world.job("next")) is None
