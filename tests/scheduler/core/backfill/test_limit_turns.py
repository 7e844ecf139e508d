"""A job that waits for a quota, a pool or a budget keeps its turn there (finding 16)."""

from __future__ import annotations

import os
import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quotas.core.resources import Resources
from scheduler.core.backfill import limit_turns
from scheduler.core.cycle import plan_cycle
from scheduler.core.forecast.forecast import Course, RunTimes, play_forward
from scheduler.core.policy import Policy
from scheduler.core.reason_codes import ReasonCode
from scheduler.core.reasons.messages import sentence
from scheduler.core.snapshot.snapshot import BudgetColumns, Snapshot
from tests.support.builders import (
    NOW_MS,
    JobSpec,
    World,
    a_job,
    a_node,
    a_quota,
    a_world,
    running,
)

EASY = Policy(backfill="easy")
HOUR_MS = 3_600_000


def a_quota_of_eight_gpus(*pending: JobSpec, held: int = 6, **words: Any) -> World:
    """Project vision may use 8 GPUs of 32 and uses 6 of these for an hour; its head wants 4."""
    return a_world(
        nodes=[a_node("n1", gpus=16), a_node("n2", gpus=16)],
        running=[running(a_job("old", gpus=held), ("n1", list(range(held))), ends_in=60, started=-10)],
        pending=[a_job("head", gpus=4, minutes=60, submitted=-9, **words), *pending],
        quotas=[a_quota("gpu_millis", 8000, used=held * 1000)],
    )


def started(world: World, policy: Policy = EASY) -> set[str]:
    return set(world.starts(plan_cycle(world.snapshot, policy)))


def test_finding_16_a_later_job_of_the_project_passes_only_if_it_is_over_in_time() -> None:
    long = a_job("long", gpus=2, minutes=90)
    short = a_job("short", gpus=2, minutes=60)

    # Once the old job ends, 4 GPUs are left beside the head.
    assert started(a_quota_of_eight_gpus(long)) == {"long"}
    # Nothing is left beside a head that wants all 8.
    assert started(a_quota_of_eight_gpus(long, short, tasks=2)) == {"short"}


def test_finding_16_the_head_is_passed_by_no_stream_of_small_jobs() -> None:
    """All is played on: small jobs of 90 minutes behind the head, always more of them."""
    small = [a_job(f"s{number}", gpus=2, minutes=90) for number in range(30)]
    world = a_quota_of_eight_gpus(*small, tasks=2)
    head = world.job("head")

    future = play_forward(world.snapshot, EASY, RunTimes(), Course.LIMITS, [head])

    assert future.started_ms[head] - NOW_MS <= 61 * 60_000


def test_a_job_without_a_limit_does_not_pass_a_head_that_needs_what_it_takes() -> None:
    world = a_quota_of_eight_gpus(a_job("open", gpus=2, predicted=1), tasks=2)

    assert started(world) == set()


def test_jobs_of_other_projects_are_not_held_up_by_the_quota_of_this_one() -> None:
    world = a_quota_of_eight_gpus(a_job("other", gpus=2, minutes=900, project="speech"), tasks=2)

    assert started(world) == {"other"}


def test_what_starts_in_this_cycle_counts_for_the_turn() -> None:
    """The first of two takes what is left beside the head, so that the second has to wait."""
    world = a_world(
        nodes=[a_node("n1", gpus=16)],
        running=[running(a_job("old", gpus=6), ("n1", list(range(6))), ends_in=60)],
        pending=[
            a_job("head", gpus=7, minutes=60, submitted=-9),
            a_job("first", gpus=1, minutes=900, submitted=-8),
            a_job("second", gpus=1, minutes=900, submitted=-7),
        ],
        quotas=[a_quota("gpu_millis", 8000, used=6000)],
    )

    assert started(world) == {"first"}


def test_a_head_that_can_never_start_holds_nobody_up() -> None:
    for words in ({"gpus": 9}, {"gpus": 4, "tasks": 2, "nodes": 3, "tasks_per_node": 1}):
        world = a_world(
            nodes=[a_node("n1", gpus=16), a_node("n2", gpus=16)],
            running=[running(a_job("old", gpus=6), ("n1", list(range(6))), ends_in=60)],
            pending=[a_job("head", minutes=60, submitted=-9, **words), a_job("long", gpus=2, minutes=900)],
            quotas=[a_quota("gpu_millis", 8000, used=6000)],
        )
        assert "long" in started(world), words


def test_the_reason_names_who_is_ahead_and_until_when() -> None:
    world = a_quota_of_eight_gpus(a_job("long", gpus=2, minutes=90), tasks=2)

    plan = plan_cycle(world.snapshot, EASY)

    reasons = dict(zip(plan.waiting.job_id.tolist(), plan.waiting.decision.tolist(), strict=True))
    decision = plan.decisions[reasons[world.job("long")]]
    assert decision.reason is ReasonCode.PRIORITY
    assert dict(decision.facts)["job"] == world.job("head")
    assert dict(decision.facts)["start_ms"] == NOW_MS + HOUR_MS
    assert "waits for the same quota" in sentence(decision.reason, decision.facts)


def test_a_head_that_waits_for_licences_keeps_its_turn() -> None:
    def with_licences(name: str, amount: int, **words: Any) -> JobSpec:
        job = a_job(name, cpus=1, **words)
        per_task = replace(job.request.per_task, extras=(("matlab", amount),))
        return replace(job, request=replace(job.request, per_task=per_task))

    world = a_world(
        nodes=[a_node("n1", cpus=64)],
        running=[running(with_licences("old", 2), "n1", ends_in=60)],
        pending=[
            with_licences("head", 3, minutes=60, submitted=-9),
            with_licences("long", 1, minutes=90),
            with_licences("short", 1, minutes=30),
        ],
        licences={"matlab": (3, 2)},
    )

    assert started(world) == {"short"}
    assert isinstance(world.snapshot.classes[0].per_task, Resources)


def with_a_budget(world: World, left_gpu_hours: float, hours: float) -> Snapshot:
    """Project vision has part of 100 GPU hours left, in a period that ends in some hours."""
    amount = 100 * HOUR_MS
    budget = BudgetColumns(
        id=[1], owner=["Autumn of project vision"], amount=[amount],
        used=[amount - int(left_gpu_hours * HOUR_MS)], starts_ms=[NOW_MS - HOUR_MS],
        ends_ms=[NOW_MS + int(hours * HOUR_MS)], project_ids=[(int(world.snapshot.projects.id[0]),)],
    )  # fmt: skip
    return replace(world.snapshot, budgets=budget)


def test_a_head_that_waits_for_its_budget_has_the_next_period() -> None:
    world = a_world(
        nodes=[a_node("n1", gpus=16)],
        pending=[
            a_job("head", gpus=8, minutes=60, submitted=-9),
            a_job("into the next", gpus=1, minutes=180),
            a_job("over by then", gpus=1, minutes=60),
        ],
    )

    plan = plan_cycle(with_a_budget(world, left_gpu_hours=4, hours=2), EASY)

    assert set(world.starts(plan)) == {"over by then"}


# ------------------------------------------------------------------ many worlds


def a_world_of_quotas(seed: int) -> World:
    """Nodes enough for all, quotas that are not; some jobs, waiting or running, have no time limit."""
    dice = random.Random(seed)
    before = [
        running(
            a_job(f"r{number}", gpus=dice.randint(1, 3), predicted=dice.randint(1, 60),
                  project=dice.choice(["vision", "speech"])),
            (f"m{number}", [0, 1, 2]), ends_in=dice.choice([0, dice.randint(1, 90)]),
        )
        for number in range(dice.randint(1, 5))
    ]  # fmt: skip
    before = [
        replace(one, on=((one.on[0][0], one.on[0][1][: one.job.request.per_task.gpus]),)) for one in before
    ]
    jobs = [
        a_job(f"j{number}", gpus=dice.randint(1, 6), submitted=number - 20,
              minutes=dice.choice([0, dice.randint(1, 120)]), project=dice.choice(["vision", "vision", "speech"]))
        for number in range(dice.randint(2, 9))
    ]  # fmt: skip
    held = {
        project: sum(one.job.request.per_task.gpus for one in before if one.job.project == project)
        for project in ("vision", "speech")
    }
    quotas = [
        a_quota("gpu_millis", 1000 * max(held["vision"], dice.randint(2, 8)), used=1000 * held["vision"]),
        *([a_quota("gpu_millis", 1000 * max(sum(held.values()), 9), used=1000 * sum(held.values()),
                   projects=("vision", "speech"), owner="lab")] if dice.random() < 0.5 else []),
    ]  # fmt: skip
    return a_world(
        nodes=[a_node(f"m{number}", gpus=4) for number in range(5)]
        + [a_node(f"n{number}", cpus=256, gpus=8) for number in range(len(jobs))],
        running=before, pending=jobs, quotas=quotas,
    )  # fmt: skip


def delayed_head(world: World, policy: Policy) -> str:
    """Whether the first in the order starts later than it would alone: what it was kept its turn for."""
    head, snapshot = world.job("j0"), world.snapshot
    alone = replace(snapshot, pending=snapshot.pending.take(snapshot.pending.id == head))
    best = play_forward(alone, policy, RunTimes(), Course.LIMITS, [head]).started_ms.get(head)
    got = play_forward(snapshot, policy, RunTimes(), Course.LIMITS, [head]).started_ms.get(head)
    if best is None or (got is not None and got <= best + 1000):
        return ""
    return f"alone {best - NOW_MS}, with the others {got and got - NOW_MS}"


def a_policy(seed: int) -> Policy:
    return Policy(
        backfill=("easy", "conservative")[seed % 2], backfill_order=("queue", "shortest")[seed // 2 % 2]
    )


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_the_first_in_the_order_gets_its_quota_when_it_would_alone(seed: int) -> None:
    assert delayed_head(a_world_of_quotas(seed), a_policy(seed)) == ""


@pytest.mark.skipif(not os.environ.get("MUSTER_WORLDS"), reason="takes minutes; say MUSTER_WORLDS=1000")
def test_the_first_in_the_order_gets_its_quota_when_it_would_alone_in_many_worlds() -> None:
    worlds = range(int(os.environ["MUSTER_WORLDS"]))
    assert [seed for seed in worlds if delayed_head(a_world_of_quotas(seed), a_policy(seed))] == []


def test_without_turns_the_property_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds = (5, 8, 11)
    assert not any(delayed_head(a_world_of_quotas(seed), a_policy(seed)) for seed in seeds)
    monkeypatch.setattr(limit_turns.LimitTurns, "keeps", lambda self, row, job_class, number: False)

    assert any(delayed_head(a_world_of_quotas(seed), a_policy(seed)) for seed in seeds)
