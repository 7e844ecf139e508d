"""Backfill on nodes and devices: the promise is real, and the gaps are filled."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.core.backfill import availability, future_use, spare_levels
from scheduler.core.backfill.backfill import BackfillLimits
from scheduler.core.cycle import plan_cycle
from scheduler.core.plan import Plan
from scheduler.core.policy import Policy
from scheduler.core.reasons.messages import sentence
from scheduler.core.revalidate import find_conflicts
from scheduler.core.snapshot.codec import decode_plan, encode_plan
from tests.scheduler.core.test_plan_properties import FEW
from tests.support import reference_backfill
from tests.support.builders import (
    NOW_MS,
    NodeSpec,
    World,
    a_job,
    a_quota,
    a_reservation,
    a_world,
    running,
)
from tests.support.strategies import a_random_world, strangers, worlds

EASY = Policy(backfill="easy")


def expected(world: World, plan: Plan) -> dict[str, int]:
    """Job name -> minutes from now of every promise."""
    names = {number: name for name, number in world.jobs.items()}
    return {names[one.job_id]: (one.at_ms - NOW_MS) // 60_000 for one in plan.expected}


def a_full_node_and_a_free_one(*pending: Any, **words: Any) -> World:
    return a_world(
        nodes=[NodeSpec("n1", gpus=4), NodeSpec("n2", gpus=4)],
        running=[running(a_job("old", gpus=4), ("n1", [0, 1, 2, 3]), ends_in=60)],
        pending=pending,
        **words,
    )


def test_a_short_job_passes_and_a_long_one_does_not() -> None:
    world = a_full_node_and_a_free_one(
        a_job("large", gpus=4, tasks=2, minutes=60),
        a_job("long", gpus=1, minutes=61),
        a_job("short", gpus=1, minutes=60),
    )

    plan = plan_cycle(world.snapshot, EASY)

    assert expected(world, plan) == {"large": 60}
    assert world.starts(plan) == {"short": ["n2"]}
    decision = plan.decision_of(world.job("long"))
    assert sentence(decision.reason, decision.facts).startswith("Fits now, but could still be running at")


def test_a_long_job_may_take_what_the_promise_leaves() -> None:
    world = a_full_node_and_a_free_one(
        a_job("large", gpus=3, tasks=2, minutes=60),
        a_job("long", gpus=1, minutes=600),
        a_job("another", gpus=1, minutes=600),
    )

    plan = plan_cycle(world.snapshot, EASY)

    assert expected(world, plan) == {"large": 60}
    assert list(world.starts(plan)) == ["long"]  # one GPU of n2 is to spare, not two


def test_the_very_devices_are_kept_not_only_their_count() -> None:
    """Two GPUs are free on each of two nodes, and a job of four in one piece waits for the other half of n1."""
    world = a_world(
        nodes=[NodeSpec("n1", gpus=4), NodeSpec("n2", gpus=4)],
        running=[
            running(a_job("a", gpus=2), ("n1", [0, 1]), ends_in=30),
            running(a_job("b", gpus=2), ("n2", [0, 1]), ends_in=600),
        ],
        pending=[
            a_job("large", gpus=4, minutes=60),
            *(a_job(f"l{n}", gpus=1, minutes=600) for n in range(3)),
        ],
    )

    plan = plan_cycle(world.snapshot, EASY)

    assert expected(world, plan) == {"large": 30}
    assert plan.expected[0].node_ids == (world.nodes["n1"],)
    assert world.starts(plan) == {"l0": ["n2"], "l1": ["n2"]}


def a_long_a_short_and_a_long_one() -> World:
    return a_full_node_and_a_free_one(
        a_job("large", gpus=2, tasks=3, minutes=60),
        a_job("long", gpus=1, minutes=600),
        a_job("short", gpus=3, minutes=30),
        a_job("late", gpus=1, minutes=600),
    )


def test_what_a_short_job_takes_is_gone_for_a_long_one_too() -> None:
    world = a_long_a_short_and_a_long_one()

    assert list(world.starts(plan_cycle(world.snapshot, EASY))) == ["long", "short"]


def test_a_job_without_any_limit_never_goes_into_a_gap() -> None:
    world = a_full_node_and_a_free_one(a_job("large", gpus=4, tasks=2), a_job("endless", gpus=1))

    assert world.starts(plan_cycle(world.snapshot, EASY)) == {}


def test_quota_of_the_promise_is_kept_too() -> None:
    world = a_full_node_and_a_free_one(
        a_job("large", gpus=4, tasks=2, minutes=60),
        a_job("long", gpus=0, cpus=1, minutes=600),
        a_job("short", gpus=0, cpus=1, minutes=30),
        quotas=[a_quota("running_jobs", 2, used=1, projects=("vision",))],
    )

    assert list(world.starts(plan_cycle(world.snapshot, EASY))) == ["short"]


def test_a_job_that_waits_for_quota_is_promised_nothing() -> None:
    world = a_full_node_and_a_free_one(
        a_job("poor", gpus=4, minutes=60, project="speech"),
        a_job("long", gpus=4, minutes=600),
        quotas=[a_quota("gpu_millis", 1000, projects=("speech",))],
    )

    plan = plan_cycle(world.snapshot, EASY)

    assert expected(world, plan) == {}
    assert list(world.starts(plan)) == ["long"]


def test_a_promise_waits_until_a_maintenance_window_is_over() -> None:
    world = a_full_node_and_a_free_one(
        a_job("large", gpus=4, tasks=2, minutes=60),
        reservations=[a_reservation("maintenance", "n1", starts_in=90, minutes=30)],
    )

    assert expected(world, plan_cycle(world.snapshot, EASY)) == {"large": 120}


def test_conservative_keeps_the_promise_of_the_second_too() -> None:
    jobs = (
        a_job("first", gpus=4, tasks=2, minutes=60),
        a_job("second", gpus=4, tasks=1, minutes=90),
        a_job("short", gpus=1, minutes=30),
        a_job("long", gpus=1, minutes=200),
    )
    world = a_world(
        nodes=[NodeSpec("n1", gpus=4), NodeSpec("n2", gpus=4)],
        running=[
            running(a_job("a", gpus=4), ("n1", [0, 1, 2, 3]), ends_in=60),
            running(a_job("b", gpus=3), ("n2", [0, 1, 2]), ends_in=30),
        ],
        pending=jobs,
    )

    plan = plan_cycle(world.snapshot, replace(EASY, backfill="conservative"))

    assert expected(world, plan) == {"first": 60, "second": 120, "long": 120}
    assert list(world.starts(plan)) == ["short"]


def test_aggressive_lets_the_promise_slip_by_so_much_and_no_more() -> None:
    jobs = [
        a_job("large", gpus=4, tasks=2, minutes=60),
        a_job("a", gpus=1, minutes=70),
        a_job("b", gpus=1, minutes=71),
    ]
    policy = Policy(backfill="aggressive", backfill_delay_seconds=600)
    world = a_full_node_and_a_free_one(*jobs)

    assert list(world.starts(plan_cycle(world.snapshot, policy))) == ["a"]

    # It was promised a start ten minutes ago and has slipped by the ten minutes already.
    pending = world.snapshot.pending
    late = pending.promised_ms.copy()
    late[pending.id == world.job("large")] = NOW_MS + 50 * 60_000
    slipped = replace(world.snapshot, pending=replace(pending, promised_ms=late))
    assert plan_cycle(slipped, policy).starts == ()


def test_a_deadline_gets_a_promise_of_its_own() -> None:
    world = a_world(
        nodes=[NodeSpec("n1", gpus=4), NodeSpec("n2", gpus=4)],
        running=[
            running(a_job("a", gpus=4), ("n1", [0, 1, 2, 3]), ends_in=60),
            running(a_job("b", gpus=3), ("n2", [0, 1, 2]), ends_in=30),
        ],
        pending=[
            a_job("first", gpus=4, minutes=60),
            a_job("second", gpus=4, minutes=60),
            a_job("long", gpus=1, minutes=200),
        ],
    )
    pending = world.snapshot.pending
    deadline = pending.deadline_ms.copy()
    deadline[pending.id == world.job("second")] = NOW_MS + 180 * 60_000
    urgent = replace(world.snapshot, pending=replace(pending, deadline_ms=deadline))

    assert list(world.starts(plan_cycle(world.snapshot, replace(EASY, backfill="deadline")))) == []
    assert expected(world, plan_cycle(urgent, replace(EASY, backfill="deadline"))) == {
        "first": 30,
        "second": 60,
    }
    assert expected(world, plan_cycle(world.snapshot, replace(EASY, backfill="deadline"))) == {"first": 30}


def test_only_low_and_normal_priority_may_pass_where_a_site_says_so() -> None:
    world = a_full_node_and_a_free_one(
        a_job("large", gpus=4, tasks=2, minutes=60),
        a_job("high", gpus=1, minutes=30, priority=90),
        a_job("low", gpus=1, minutes=30, priority=10),
    )

    assert list(world.starts(plan_cycle(world.snapshot, replace(EASY, backfill_max_priority=66)))) == ["low"]


def test_a_strict_order_has_no_backfill() -> None:
    with pytest.raises(ValueError, match="strict"):
        Policy(backfill="easy", strict_order=True)


@given(worlds().map(strangers), st.sampled_from(["fifo", "priority"]), st.sampled_from(["queue", "shortest"]))
@settings(FEW, max_examples=150)
def test_easy_keeps_its_promise_and_fills_the_gaps(world: World, name: str, order: str) -> None:
    policy = Policy(name=name, backfill="easy", backfill_order=order)
    plan = plan_cycle(world.snapshot, policy)

    reference_backfill.check(world.snapshot, policy, plan)
    assert find_conflicts(plan, world.snapshot, policy) == ()
    assert decode_plan(encode_plan(plan)) == plan
    assert set(plan.reasons) | {start.job_id for start in plan.starts} == set(
        world.snapshot.pending.id.tolist()
    )


@pytest.mark.parametrize("order", ["queue", "shortest"])
def test_a_job_of_many_sizes_takes_only_what_the_promise_leaves(order: str) -> None:
    """The first waits for a booking's end with a share of a GPU; one behind it would still be there by then."""
    world = strangers(a_random_world(153, 4, 15))
    queues = replace(world.snapshot.queues, priority=[0] * len(world.snapshot.queues))  # first in, first out
    world = replace(world, snapshot=replace(world.snapshot, queues=queues))
    policy = Policy(backfill="easy", backfill_order=order)
    plan = plan_cycle(world.snapshot, policy)

    assert expected(world, plan) == {"j0": 80}
    assert len(world.starts(plan)["j3"]) == 1  # four would fit now
    reference_backfill.check(world.snapshot, policy, plan)


@given(worlds())
@settings(FEW, max_examples=60)
def test_with_one_promise_conservative_is_easy(world: World) -> None:
    one = Policy(backfill="conservative", backfill_promises=1)

    assert plan_cycle(world.snapshot, one) == plan_cycle(world.snapshot, EASY)


# Mutants: a rule broken on purpose must be noticed.


def _break_protection(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        spare_levels.SpareLevels,
        "candidates",
        lambda self, job_class, level: self.context.candidates(job_class),
    )


def _break_sync(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(spare_levels.SpareWorkspace, "match", lambda self, row, now, free: None)


def _break_ends(patch: pytest.MonkeyPatch) -> None:
    real = availability.Availability.free_at
    patch.setattr(availability.Availability, "free_at", lambda self, at_ms: real(self, at_ms + 600_000))


def _break_devices(patch: pytest.MonkeyPatch) -> None:
    real = future_use.Free.take
    patch.setattr(
        future_use.Free, "take", lambda self, hold, sign=1: real(self, hold._replace(devices=[]), sign)
    )


def _break_scan(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("scheduler.core.start_passes.limits_of", lambda policy: BackfillLimits(promises=1, scan=1))


@pytest.mark.parametrize(
    "mutant",
    [_break_protection, _break_sync, _break_ends, _break_devices, _break_scan],
    ids=lambda mutant: mutant.__name__.removeprefix("_break_"),
)
def test_a_broken_backfill_is_noticed(mutant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)

    def plan_many_worlds() -> None:
        for seed in range(-1, 600):
            world = strangers(a_random_world(seed, 4, 12)) if seed >= 0 else a_long_a_short_and_a_long_one()
            reference_backfill.check(world.snapshot, EASY, plan_cycle(world.snapshot, EASY))

    with pytest.raises(Exception):  # noqa: B017 - an assertion of the check, or the core stumbling
        plan_many_worlds()
