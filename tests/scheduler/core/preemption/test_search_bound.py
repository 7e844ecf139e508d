"""The search for victims: what it leaves out changes no plan, and its bound is said where it is reached."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from scheduler.core.backfill import cluster_backfill
from scheduler.core.cluster.index import ClusterIndex
from scheduler.core.context.cycle_context import CycleContext
from scheduler.core.context.pending_reasons import PendingReasons
from scheduler.core.context.running_jobs import RunningJobs
from scheduler.core.cycle import plan_cycle
from scheduler.core.placement.plugins import resolve
from scheduler.core.policy import Policy
from scheduler.core.preemption import preemption
from scheduler.core.preemption import victim_search as victims
from scheduler.core.preemption_policy import PreemptionPolicy
from scheduler.core.reasons.messages import sentence
from tests.scheduler.core.preemption.test_preemption import a_crowded_world, a_policy, old
from tests.support.builders import World, a_job, a_node, a_world
from tests.support.strategies import a_random_world, a_world_of_lines

ENDED = "The search for jobs to preempt reached its bound in this cycle before it had tried all."


def some_world(seed: int) -> tuple[World, Policy]:
    """Crowded nodes, gangs, lines with lending, reclaim, suspension: whatever a search may meet."""
    dice = random.Random(seed)
    make = dice.choice([a_random_world, a_world_of_lines])
    world = make(seed, dice.choice([2, 4, 6]), dice.choice([8, 12, 20]))
    rules = PreemptionPolicy(
        enabled=True, classes=((0, ()), (50, (0,)), (90, (0, 50))), minimum_gap=1, protected_seconds=0,
        reclaim=dice.choice([0, 1]), mode=dice.choice(["requeue", "suspend"]),
    )  # fmt: skip
    policy = Policy(
        name=dice.choice(["fifo", "priority", "fairshare"]), backfill=dice.choice(["none", "easy", "conservative"]),
        resize_seconds=dice.choice([0, 10]), preemption=rules,
    )  # fmt: skip
    return world, policy


def without_shortcuts(patch: pytest.MonkeyPatch) -> None:
    """Every removal is simulated, every job asks for itself, and every class is refused by itself."""
    patch.setattr(victims.VictimSearch, "needed_at_least", lambda self, wanted, sequence, released: 1)
    patch.setattr(preemption, "question_of", lambda context, wanted, priority, rules: None)
    patch.setattr(cluster_backfill, "REFUSALS", 1 << 60)


def test_what_the_search_leaves_out_changes_no_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_backfill, "REFUSALS", 1)
    stopped = 0
    for seed in range(300):
        world, policy = some_world(seed) if seed % 3 == 0 else (a_crowded_world(seed), a_policy())
        quick = plan_cycle(world.snapshot, policy)
        with monkeypatch.context() as patch:
            without_shortcuts(patch)
            assert plan_cycle(world.snapshot, policy) == quick, seed
        stopped += len(quick.preempts)

    assert stopped > 20


def test_what_jobs_count_on_a_line_together_is_the_sum_of_each() -> None:
    lines = 0
    for seed in range(40):
        snapshot = a_world_of_lines(seed, 4, 12).snapshot
        context = CycleContext(ClusterIndex(snapshot), resolve(Policy()))
        jobs = RunningJobs(context)
        some = np.arange(len(snapshot.running)) % 2 == 0
        for line in range(len(snapshot.quotas)):
            each = [dict(jobs.charges(row)).get(line, 0) for row in np.flatnonzero(some).tolist()]
            assert jobs.charged(line, some) == sum(each)
            lines += any(each)
    assert lines > 20


def test_the_lines_that_are_short_are_those_of_each_class() -> None:
    met = 0
    for seed in range(60):
        context = CycleContext(ClusterIndex(a_world_of_lines(seed, 4, 12).snapshot), resolve(Policy()))
        if context.cluster.charges.has_model_lines or context.workspace.limits.tree.keeps:
            continue
        reasons = PendingReasons(context)
        together = sorted(zip(*(column.tolist() for column in reasons.short_classes()), strict=True))
        one_by_one = sorted(
            zip(*(column.tolist() for column in reasons._short_classes_one_by_one()), strict=True)
        )
        assert together == one_by_one
        met += len(together)
    assert met > 10


def two_that_wait() -> World:
    """A node whose two GPUs two jobs of low priority hold, and two jobs of high priority that wait for one each."""
    return a_world(
        nodes=[a_node("n1", gpus=2)],
        running=[old("a", ("n1", [0])), old("b", ("n1", [1]))],
        pending=[a_job("x", gpus=1, priority=100), a_job("y", gpus=1, cpus=2, priority=100)],
    )


def reason_of(world: World, name: str, plan: Any) -> str:
    decision = plan.decision_of(world.job(name))
    return sentence(decision.reason, decision.facts)


def test_a_bound_that_is_reached_is_said_of_the_jobs_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    world = two_that_wait()
    whole = plan_cycle(world.snapshot, a_policy())

    monkeypatch.setattr(victims, "MOST_REMOVALS", victims.REMOVALS_A_SEARCH)
    first = plan_cycle(world.snapshot, a_policy())
    monkeypatch.setattr(victims, "MOST_REMOVALS", 0)
    none = plan_cycle(world.snapshot, a_policy())

    assert len(whole.preempts) == 2
    assert not any("search_ended" in decision.details for decision in whole.decisions)
    assert [len(first.preempts), len(none.preempts)] == [0, 0]
    for name in ("x", "y"):
        assert reason_of(world, name, none).endswith(ENDED)
        assert reason_of(world, name, none).removesuffix(f" {ENDED}") != reason_of(world, name, none)


def test_jobs_before_the_bound_have_their_victims(monkeypatch: pytest.MonkeyPatch) -> None:
    world = two_that_wait()
    monkeypatch.setattr(victims, "MOST_REMOVALS", victims.REMOVALS_A_SEARCH + 2)

    plan = plan_cycle(world.snapshot, a_policy())

    assert {preempt.for_job_id for preempt in plan.preempts} == {world.job("x")}
    assert not reason_of(world, "x", plan).endswith(ENDED)
    assert reason_of(world, "y", plan).endswith(ENDED)
    assert plan == plan_cycle(world.snapshot, a_policy()), "the same bound, the same plan"


def test_equal_questions_are_asked_once_until_something_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    real = victims.VictimSearch.victims_of
    monkeypatch.setattr(
        victims.VictimSearch, "victims_of", lambda self, *words: asked.append(words) or real(self, *words)
    )
    jobs = [a_job(f"j{i}", gpus=4, priority=100, project=f"p{i}") for i in range(5)]
    world = a_world(
        nodes=[a_node("n1", gpus=4)],
        running=[old("a", ("n1", [0, 1])), old("keep", ("n1", [2, 3]), preemptible=False)],
        pending=jobs,
    )

    plan = plan_cycle(world.snapshot, a_policy())

    assert plan.preempts == ()
    assert len(asked) == 1


def test_a_job_whose_question_is_another_is_searched_for_all_the_same() -> None:
    keep = old("keep", ("n1", [2, 3]), preemptible=False)
    world = a_world(
        nodes=[a_node("n1", gpus=4)],
        running=[old("a", ("n1", [0, 1])), keep],
        pending=[a_job("large", gpus=4, priority=100), a_job("small", gpus=2, priority=100)],
    )

    plan = plan_cycle(world.snapshot, a_policy())

    assert {preempt.for_job_id for preempt in plan.preempts} == {world.job("small")}
