"""Reservations of parts of nodes: who may use what of a node, and when; and that properties notice when not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings

from scheduler.core.context import reserved_parts
from scheduler.core.cycle import plan_cycle
from scheduler.core.policy import Policy
from scheduler.core.revalidate import find_conflicts
from tests.support import reference_backfill, reference_planner
from tests.support.applied import applied
from tests.support.builders import World
from tests.support.strategies import a_random_world, policies, strangers, worlds_of_parts

FEW = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


@given(worlds_of_parts(), policies())
@settings(FEW, max_examples=200)
def test_every_job_gets_what_an_obvious_planner_would_give_it(world: World, policy: Policy) -> None:
    plan = plan_cycle(world.snapshot, policy)

    reference_planner.check(world.snapshot, policy, plan)
    assert find_conflicts(plan, world.snapshot, policy) == ()


@given(worlds_of_parts(), policies())
@FEW
def test_planning_again_on_the_applied_result_starts_nothing_more(world: World, policy: Policy) -> None:
    plan = plan_cycle(world.snapshot, policy)

    again = plan_cycle(applied(world.snapshot, plan), policy)

    if policy.strict_order or any(own.strict_order for _, own in policy.queues):
        return
    if any(not term.apart for request in world.snapshot.classes for term in request.job_terms):
        return
    assert again.starts == ()


@given(worlds_of_parts())
@settings(FEW, max_examples=120)
def test_backfill_leaves_reserved_parts_alone_and_fills_what_is_idle_until_they_begin(world: World) -> None:
    world = strangers(world)
    policy = Policy(backfill="easy")

    plan = plan_cycle(world.snapshot, policy)

    reference_backfill.check(world.snapshot, policy, plan)
    assert find_conflicts(plan, world.snapshot, policy) == ()


def _break_unused(patch: pytest.MonkeyPatch) -> None:
    """Nothing is kept of CPUs and memory."""
    real = reserved_parts.Kept.cpu_left
    patch.setattr(
        reserved_parts.Kept,
        "cpu_left",
        lambda self, free, rows=slice(None): real(self._replace(cpu_millis=self.cpu_millis * 0), free, rows),
    )


def _break_devices(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reserved_parts.Kept, "devices_used", lambda self, used: used)


def _break_begins(patch: pytest.MonkeyPatch) -> None:
    """Reservations that have not begun are forgotten."""
    patch.setattr(reserved_parts.ReservedParts, "begins", lambda self, view, *moments: [])


def _break_inside(patch: pytest.MonkeyPatch) -> None:
    """What jobs inside are given in this cycle is not counted."""
    patch.setattr(reserved_parts.ReservedParts, "start", lambda self, inside, uses: None)


MUTANTS: list[Callable[[pytest.MonkeyPatch], None]] = [
    _break_unused, _break_devices, _break_begins, _break_inside,
]  # fmt: skip


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__.removeprefix("_break_"))
def test_a_broken_rule_is_noticed(
    mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)

    def plan_many_worlds() -> None:
        for seed in range(400):
            world = a_random_world(seed, node_count=3, job_count=8, parts=True)
            policy = Policy(name=("fifo", "priority")[seed % 2])
            reference_planner.check(world.snapshot, policy, plan_cycle(world.snapshot, policy))

    with pytest.raises(AssertionError):
        plan_many_worlds()
