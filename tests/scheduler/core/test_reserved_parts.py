"""Reservations of parts of nodes: who may use what of a node, and when; and that properties notice when not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from scheduler.core.context import reserved_parts
from scheduler.core.cycle import plan_cycle
from scheduler.core.forecast.forecast import Course, RunTimes, play_forward
from scheduler.core.policy import Policy
from scheduler.core.reason_codes import ReasonCode
from scheduler.core.reasons.messages import sentence
from scheduler.core.revalidate import find_conflicts
from tests.support import reference_backfill, reference_planner
from tests.support.applied import applied
from tests.support.builders import MINUTE_MS, NOW_MS, World, a_job, a_node, a_reservation, a_world
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


def a_course(**words: Any) -> World:
    """One node of four GPUs and 8 cores, of which the course holds two GPUs and 4 cores from now on."""
    course = a_reservation("course", parts=[("n1", 4, 8, [0, 1])], magnetic=False, projects=("vision",))
    return a_world(nodes=[a_node("n1", cpus=8, memory_gib=32, gpus=4)], reservations=[course], **words)


def test_the_reason_names_the_node_of_which_a_part_is_reserved() -> None:
    world = a_course(pending=[a_job("large", gpus=3, minutes=10)])

    plan = plan_cycle(world.snapshot, Policy())

    decision = plan.decision_of(world.job("large"))
    assert decision.reason is ReasonCode.RESERVATION
    assert sentence(decision.reason, decision.facts).startswith("Part of node n1 is reserved from ")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"reservation": "gone", "minutes": 10}, "is over or cancelled"),
        ({"reservation": "course"}, "before the job would be over"),
        ({"reservation": "course", "minutes": 90}, "before the job would be over"),
        ({"reservation": "course", "minutes": 10, "project": "speech", "user": 9}, "is not for the project"),
    ],
)
def test_the_reason_says_why_a_job_cannot_run_in_its_reservation(words: dict[str, Any], said: str) -> None:
    world = a_course(pending=[a_job("inside", gpus=1, **words)])

    decision = plan_cycle(world.snapshot, Policy()).decision_of(world.job("inside"))

    assert said in sentence(decision.reason, decision.facts)


def test_a_forecast_plays_jobs_inside_from_the_start_of_their_reservation() -> None:
    course = a_reservation(
        "course", parts=[("n1", 4, 8, [0, 1])], magnetic=False, projects=("vision",), starts_in=20
    )
    jobs = [a_job("inside", gpus=2, minutes=10, reservation="course"), a_job("long", gpus=4, minutes=60)]
    world = a_world(nodes=[a_node("n1", cpus=8, gpus=4)], reservations=[course], pending=jobs)

    future = play_forward(world.snapshot, Policy(), RunTimes(), Course.LIMITS, world.jobs.values())

    starts = {name: (future.started_ms[number] - NOW_MS) // MINUTE_MS for name, number in world.jobs.items()}
    assert starts == {"inside": 20, "long": 80}  # the course holds its GPUs until then


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
