"""Budgets in a cycle: what is spent refuses or demotes, each in its period, and says so in a sentence."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scheduler.core.cycle import plan_cycle
from scheduler.core.plan import Plan
from scheduler.core.policy import Policy
from scheduler.core.reasons.messages import sentence
from scheduler.core.revalidate import find_conflicts
from scheduler.core.snapshot.codec import decode_snapshot, encode_snapshot
from scheduler.core.snapshot.snapshot import BudgetColumns, Snapshot, SpentRule
from scheduler.core.whatif.explain import explain
from tests.support.builders import World, a_job, a_node, a_policy, a_world

HOUR = 3600
GPU_HOUR = 1000 * HOUR


def with_budget(world: World, **words: object) -> Snapshot:
    """The world's snapshot with one budget that every project counts on; this period ends in ten hours."""
    snapshot = world.snapshot
    columns: dict[str, object] = {
        "id": [1], "owner": ["Autumn of project vision"], "amount": [10 * GPU_HOUR],
        "starts_ms": [snapshot.now_ms - 1], "ends_ms": [snapshot.now_ms + 10 * HOUR * 1000],
        "project_ids": [tuple(snapshot.projects.id.tolist())],
    } | words  # fmt: skip
    return replace(snapshot, budgets=BudgetColumns(**columns))


def outcome(snapshot: Snapshot, policy: Policy | None = None) -> tuple[list[int], dict[int, str]]:
    plan = plan_cycle(snapshot, policy or a_policy())
    return [start.job_id for start in plan.starts], {
        job: reason.value for job, reason in plan.reasons.items()
    }


def jobs(count: int, hours: int, **words: object) -> World:
    return a_world(
        nodes=[a_node("n1", gpus=8)],
        pending=[a_job(f"j{n}", gpus=1, minutes=hours * 60, **words) for n in range(count)],
    )


@pytest.mark.parametrize("policy", [a_policy(), a_policy(backfill="easy"), a_policy(name="priority")])
def test_jobs_start_until_the_budget_is_spent(policy: Policy) -> None:
    snapshot = with_budget(jobs(4, hours=4))

    assert outcome(snapshot, policy) == ([1, 2], {3: "BudgetSpent", 4: "BudgetSpent"})


def test_a_shorter_job_behind_one_too_long_still_starts() -> None:
    world = a_world(
        nodes=[a_node("n1", gpus=8)],
        pending=[
            a_job("long", gpus=1, minutes=540),
            a_job("short", gpus=1, minutes=60),
        ],
    )
    snapshot = with_budget(world, used=[5 * GPU_HOUR])

    assert outcome(snapshot) == ([2], {1: "BudgetSpent"})


def test_the_sentences_name_the_budget_and_the_way_out() -> None:
    snapshot = with_budget(jobs(1, hours=8), used=[3 * GPU_HOUR])
    decision = explain(snapshot, a_policy(), 1).headline
    text = sentence(decision.reason, decision.facts)
    assert text.startswith(
        "Needs 8 GPU-hours of the budget Autumn of project vision; 7 GPU-hours of 10 GPU-hours are left until"
    )

    never = explain(with_budget(jobs(1, hours=9), amount=[2 * GPU_HOUR]), a_policy(), 1).headline
    assert sentence(never.reason, never.facts) == (
        "Needs 9 GPU-hours; the budget Autumn of project vision has 2 GPU-hours in all. "
        "Request less time, or a larger budget."
    )


def test_only_the_seconds_within_a_period_count_on_it() -> None:
    world = jobs(1, hours=12)
    ends = world.snapshot.now_ms + 2 * HOUR * 1000

    assert outcome(with_budget(world, amount=[2 * GPU_HOUR], ends_ms=[ends]))[0] == [1]
    assert outcome(with_budget(world, amount=[2 * GPU_HOUR - 1], ends_ms=[ends])) == (
        [],
        {1: "ExceedsBudget"},
    )
    assert outcome(
        with_budget(world, amount=[9 * GPU_HOUR], starts_ms=[ends], ends_ms=[ends + 90 * HOUR * 1000])
    ) == ([], {1: "ExceedsBudget"})


def test_a_job_without_a_limit_sets_an_hour_aside() -> None:
    world = a_world(nodes=[a_node("n1", gpus=8)], pending=[a_job("open", gpus=2)])

    assert outcome(with_budget(world, amount=[2 * GPU_HOUR]))[0] == [1]
    assert outcome(with_budget(world, amount=[2 * GPU_HOUR - 1]))[0] == []


def test_money_is_reckoned_by_the_model_and_the_dearest_where_it_is_not_known() -> None:
    prices = (("gpu_millis", "", 1_000_000), ("gpu_millis", "H100", 4_000_000))
    known = a_world(
        nodes=[a_node("n1", gpus=8)],
        pending=[a_job("any", gpus=1, minutes=60)],
    )

    def starts(amount: int) -> list[int]:
        return outcome(with_budget(known, resource=["money_micros"], amount=[amount], prices=[prices]))[0]

    assert starts(4_000_000) == [1]
    assert starts(3_999_999) == []


def test_a_spent_budget_that_demotes_lets_others_go_first_and_stops_nobody() -> None:
    world = a_world(
        nodes=[a_node("n1", gpus=1)],
        pending=[a_job("mine", gpus=1, project="rich"), a_job("theirs", gpus=1, project="poor")],
    )
    rich = next(
        n
        for n, name in zip(world.snapshot.projects.id.tolist(), world.snapshot.projects.name, strict=True)
        if name == "rich"
    )
    spent = with_budget(world, on_spent=[SpentRule.DEMOTE], used=[10 * GPU_HOUR], project_ids=[(rich,)])

    assert outcome(world.snapshot)[0] == [1]
    assert outcome(spent)[0] == [2]
    assert outcome(with_budget(world, on_spent=[SpentRule.DEMOTE], project_ids=[(rich,)]))[0] == [1]


def test_a_budget_spent_meanwhile_is_a_conflict() -> None:
    snapshot = with_budget(jobs(2, hours=5))
    plan = plan_cycle(snapshot, a_policy())
    fresh = replace(snapshot, budgets=replace(snapshot.budgets, used=snapshot.budgets.used + 5 * GPU_HOUR))

    assert find_conflicts(plan, snapshot, a_policy()) == ()
    conflicts = find_conflicts(Plan(starts=plan.starts), fresh, a_policy())
    assert [(one.job_id, one.reason.value) for one in conflicts] == [(2, "BudgetSpent")]


def test_a_recording_keeps_budgets() -> None:
    snapshot = with_budget(jobs(1, hours=1), prices=[(("gpu_millis", "", 5),)], resource=["money_micros"])

    assert decode_snapshot(encode_snapshot(snapshot)).budgets == snapshot.budgets
