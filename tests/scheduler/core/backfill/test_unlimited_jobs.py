"""Jobs without a time limit in plans: a head has an expected start behind them, and nobody delays it (finding 15)."""

from __future__ import annotations

import os
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduler.core import start_passes
from scheduler.core.columns import Ints
from scheduler.core.cycle import plan_cycle
from scheduler.core.forecast.forecast import forecast
from scheduler.core.policy import Policy
from scheduler.core.snapshot.codec import decode_snapshot, encode_snapshot
from scheduler.core.snapshot.likely_ends import likely_ends_ms
from scheduler.core.snapshot.snapshot import BudgetColumns, RunningColumns, Snapshot
from tests.scheduler.core.backfill.test_expected_starts_hold import a_mixed_world, a_policy, broken_promise
from tests.support.builders import NOW_MS, JobSpec, World, a_job, a_node, a_world, running

EASY = Policy(backfill="easy")


def eight_gpus_of_which_four_run_without_a_limit(*pending: JobSpec, predicted: int, since: int = 0) -> World:
    return a_world(
        nodes=[a_node("n1", gpus=8)],
        running=[
            running(a_job("open", gpus=4, predicted=predicted), ("n1", [0, 1, 2, 3]), started=-since),
        ],
        pending=[a_job("head", gpus=8, minutes=60, submitted=-9), *pending],
    )  # fmt: skip


def head_starts_in(world: World) -> float | None:
    """Minutes from now."""
    plan = plan_cycle(world.snapshot, EASY)
    known = {one.job_id: (one.at_ms - NOW_MS) / 60_000 for one in plan.expected}
    return known.get(world.job("head"))


def test_finding_15_a_head_behind_a_job_without_a_limit_has_a_start_that_no_later_job_delays() -> None:
    world = eight_gpus_of_which_four_run_without_a_limit(
        a_job("five minutes", gpus=4, minutes=5), a_job("open too", gpus=4, predicted=1), predicted=4
    )

    assert head_starts_in(world) == 4
    assert world.starts(plan_cycle(world.snapshot, EASY)) == {}


def test_a_later_job_that_is_over_in_time_still_passes() -> None:
    world = eight_gpus_of_which_four_run_without_a_limit(
        a_job("five minutes", gpus=4, minutes=5), predicted=12
    )

    assert head_starts_in(world) == 12
    plan = plan_cycle(world.snapshot, EASY)
    assert world.starts(plan) == {"five minutes": ["n1"]}
    # For /metrics (finding 40): it was started ahead of one with an expected start.
    assert plan.backfilled == {world.job("five minutes")}


def test_a_job_at_the_head_is_not_backfilled() -> None:
    world = a_world(
        nodes=[a_node("n1", gpus=8)],
        pending=[
            a_job("first", gpus=4, minutes=60, submitted=-9), a_job("head", gpus=8, minutes=60, submitted=-8),
            a_job("filler", gpus=4, minutes=5),
        ],
    )  # fmt: skip

    plan = plan_cycle(world.snapshot, EASY)

    assert set(world.starts(plan)) == {"first", "filler"}
    assert plan.backfilled == {world.job("filler")}
    assert plan_cycle(world.snapshot, Policy()).backfilled == frozenset()


def test_a_prediction_that_proved_too_short_is_doubled_while_the_job_runs() -> None:
    def left(since: int) -> float | None:
        return head_starts_in(eight_gpus_of_which_four_run_without_a_limit(predicted=10, since=since))

    assert [left(0), left(9), left(10), left(19), left(20), left(45)] == [10, 1, 10, 1, 20, 35]


def test_nothing_is_predicted_where_nothing_is_known_or_a_limit_says_it() -> None:
    columns = RunningColumns.from_columns(
        id=[1, 2, 3], class_index=[0, 0, 0], queue_id=[1, 1, 1], project_id=[1, 1, 1],
        started_ms=[NOW_MS - 1000] * 3, expected_end_ms=[0, NOW_MS + 5, 0], predicted_seconds=[0, 60, 60],
    )  # fmt: skip

    assert likely_ends_ms(columns, NOW_MS).tolist() == [0, NOW_MS + 5, NOW_MS + 59_000]


def test_a_recording_keeps_what_was_predicted() -> None:
    snapshot = eight_gpus_of_which_four_run_without_a_limit(a_job("next", predicted=3), predicted=7).snapshot

    again = decode_snapshot(encode_snapshot(snapshot))

    assert again.running.predicted_seconds.tolist() == [7 * 60]
    assert np.array_equal(again.pending.predicted_seconds, snapshot.pending.predicted_seconds)
    assert plan_cycle(again, EASY) == plan_cycle(snapshot, EASY)


def test_the_range_of_a_start_behind_it_has_a_latest_moment() -> None:
    world = eight_gpus_of_which_four_run_without_a_limit(predicted=30)

    found = forecast(world.snapshot, EASY, jobs=[world.job("head")])[world.job("head")]

    assert (found.p90_ms, found.unknown) == (NOW_MS + 30 * 60_000, "")


# ------------------------------------------------------------------ many worlds


def an_open_world(seed: int) -> Snapshot:
    """A mixed world where some jobs, waiting or running, have no limit, and one project may have a budget."""
    dice, snapshot = random.Random(seed), a_mixed_world(seed).snapshot
    running, pending = snapshot.running, snapshot.pending
    open_runs = np.array([dice.random() < 0.5 for _ in range(len(running))], dtype=np.bool_)
    open_jobs = np.array([dice.random() < 0.4 for _ in range(len(pending))], dtype=np.bool_)
    lasts = (running.expected_end_ms - running.started_ms) // 1000
    snapshot = replace(
        snapshot,
        running=replace(
            running,
            expected_end_ms=np.where(open_runs, 0, running.expected_end_ms),
            predicted_seconds=np.where(open_runs, lasts, 0),
        ),
        # Those that wait run on for ever once they start: to let one into the way of the first would be seen.
        pending=replace(pending, time_limit_seconds=np.where(open_jobs, 0, pending.time_limit_seconds)),
    )
    if dice.random() < 0.5:
        return snapshot
    amount = dice.choice([1, 4, 16]) * 3_600_000
    budgets = BudgetColumns(
        id=[1], owner=["Autumn"], amount=[amount], used=[dice.randint(0, amount)],
        starts_ms=[snapshot.now_ms - 1000], ends_ms=[snapshot.now_ms + dice.choice([1, 30]) * 3_600_000],
        project_ids=[(int(snapshot.projects.id[0]),)],
    )  # fmt: skip
    return replace(snapshot, budgets=budgets)


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_what_the_first_is_promised_comes_true_beside_jobs_without_limits(seed: int) -> None:
    assert broken_promise(an_open_world(seed), a_policy(seed)) == ""


@pytest.mark.skipif(not os.environ.get("MUSTER_WORLDS"), reason="takes minutes; say MUSTER_WORLDS=1000")
def test_what_the_first_is_promised_comes_true_beside_jobs_without_limits_in_many_worlds() -> None:
    worlds = range(int(os.environ["MUSTER_WORLDS"]))
    assert [seed for seed in worlds if broken_promise(an_open_world(seed), a_policy(seed))] == []


def test_a_pass_by_prediction_would_break_promises(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job without a limit that passed because it is expected to be over in time."""
    seeds = (19, 22, 44)
    assert not any(broken_promise(an_open_world(seed), a_policy(seed)) for seed in seeds)

    def optimistic(limit_seconds: Ints, bound_seconds: Ints) -> Ints:
        limit = np.where(limit_seconds > 0, limit_seconds, bound_seconds)
        return np.where(limit > 0, limit, 60) * 1000

    monkeypatch.setattr(start_passes, "lengths_ms", optimistic)

    assert any(broken_promise(an_open_world(seed), a_policy(seed)) for seed in seeds)
