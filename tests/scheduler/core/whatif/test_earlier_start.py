"""Changes that start a job sooner: found by playing on, named with what they gain."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from scheduler.core.cycle import plan_cycle
from scheduler.core.forecast.forecast import forecast
from scheduler.core.policy import Policy
from scheduler.core.whatif import earlier_start as sooner
from scheduler.core.whatif.earlier_start import EarlierStart, earlier_change
from scheduler.core.whatif.explain import context_after
from tests.support.builders import MINUTE_MS, World, a_job, a_node, a_queue, a_world, running

EASY = Policy(backfill="easy")


def found(world: World, name: str, policy: Policy = EASY, **words: Any) -> EarlierStart | None:
    job = world.job(name)
    before_ms = forecast(world.snapshot, policy, jobs=[job])[job].p90_ms
    assert before_ms is not None
    after = context_after(world.snapshot, policy, plan_cycle(world.snapshot, policy))
    return earlier_change(world.snapshot, policy, job, after, before_ms, **words)


def in_minutes(world: World, change: EarlierStart | None) -> tuple[Any, ...]:
    assert change is not None
    now_ms = world.snapshot.now_ms
    return (
        change.field,
        change.after,
        (change.at_ms - now_ms) // MINUTE_MS,
        (change.before_ms - now_ms) // MINUTE_MS,
    )


def a_gap() -> World:
    """In half an hour one GPU is free for an hour, then the whole node is promised to a large job for a day."""
    return a_world(
        nodes=[a_node("n1", gpus=2)],
        running=[
            running(a_job("short", gpus=1, minutes=30), ("n1", [0]), ends_in=30),
            running(a_job("long", gpus=1, minutes=90), ("n1", [1]), ends_in=90),
        ],
        pending=[a_job("large", gpus=2, minutes=1440), a_job("mine", gpus=1, minutes=80, submitted=1)],
    )


def test_a_shorter_limit_fits_into_a_gap_later_on() -> None:
    world = a_gap()

    change = found(world, "mine")

    assert in_minutes(world, change) == ("time_limit_seconds", 3600, 30, 90 + 1440)
    assert change is not None
    assert change.words == "With a time limit of 1:00:00 instead of 1:20:00"


def test_fewer_gpus_need_not_wait_for_the_last_of_them() -> None:
    world = a_world(
        nodes=[a_node("n1", gpus=4)],
        running=[
            running(a_job("a", gpus=3, minutes=60), ("n1", [0, 1, 2]), ends_in=60),
            running(a_job("b", gpus=1, minutes=600), ("n1", [3]), ends_in=600),
        ],
        pending=[a_job("mine", gpus=4, minutes=600)],
    )

    assert in_minutes(world, found(world, "mine")) == ("gpus", 2, 60, 600)


def test_another_queue_is_the_smallest_change_of_all() -> None:
    world = a_world(
        nodes=[a_node("n1")],
        running=[
            running(a_job("a", minutes=60), "n1", ends_in=60),
            running(a_job("b", queue="side", minutes=60), "n1", ends_in=40),
        ],
        pending=[a_job("first", minutes=600), a_job("mine", minutes=60, submitted=1)],
        queues=[a_queue("main", max_concurrent_jobs=1), a_queue("side", max_concurrent_jobs=1)],
    )

    assert found(world, "mine") is None  # a shorter limit does not help where jobs are counted
    assert in_minutes(world, found(world, "mine", queue_ids=(1, 2))) == ("queue", "side", 40, 660)


def test_a_gain_of_minutes_is_not_worth_a_word() -> None:
    world = a_world(
        nodes=[a_node("n1", gpus=2)],
        running=[
            running(a_job("a", gpus=1, minutes=60), ("n1", [0]), ends_in=595),
            running(a_job("b", gpus=1, minutes=600), ("n1", [1]), ends_in=600),
        ],
        pending=[a_job("mine", gpus=2, minutes=600)],
    )

    assert found(world, "mine") is None


# ------------------------------------------------------------------ a rule broken on purpose is noticed


def _any_gain(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sooner, "GAIN_MS", 0)
    patch.setattr(sooner, "GAIN_PART", 10**9)


def _nothing_lesser(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sooner, "lesser_requests", lambda answers, row, queue_ids: iter(()))


def _largest_first(patch: pytest.MonkeyPatch) -> None:
    real = sooner.lesser_requests

    def turned(answers: Any, row: int, queue_ids: Any) -> Any:
        return (one._replace(loss=-one.loss) for one in real(answers, row, queue_ids))

    patch.setattr(sooner, "lesser_requests", turned)


def _not_changed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sooner, "changed_snapshot", lambda snapshot, row, variant: snapshot)


def _other_queues_unasked(patch: pytest.MonkeyPatch) -> None:
    real = sooner.lesser_requests
    patch.setattr(sooner, "lesser_requests", lambda answers, row, queue_ids: real(answers, row, (1, 2, 3)))


@pytest.mark.parametrize(
    "mutant",
    [_any_gain, _nothing_lesser, _largest_first, _not_changed, _other_queues_unasked],
    ids=lambda mutant: mutant.__name__.removeprefix("_"),
)
def test_a_broken_rule_is_noticed(
    mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)

    def all_of_it() -> None:
        test_a_gain_of_minutes_is_not_worth_a_word()
        test_another_queue_is_the_smallest_change_of_all()
        test_a_shorter_limit_fits_into_a_gap_later_on()
        test_fewer_gpus_need_not_wait_for_the_last_of_them()

    with pytest.raises(AssertionError):
        all_of_it()
