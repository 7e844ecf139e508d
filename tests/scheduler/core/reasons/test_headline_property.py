"""Who does what the headline says gets on: the job starts, or the headline is another."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from scheduler.core.cycle import plan_cycle
from scheduler.core.plan import Plan
from scheduler.core.policy import Policy
from scheduler.core.reason_codes import ReasonCode
from scheduler.core.reasons import closed_nodes, shortfalls
from scheduler.core.reasons.causes import Cause, CauseCode, cause_of
from scheduler.core.reasons.messages import sentence
from scheduler.core.snapshot.snapshot import Snapshot
from tests.support.applied import applied
from tests.support.remedies import alone, remedied
from tests.support.strategies import a_random_world

#: What a person cannot take away in a world in which nothing happens.
NO_REMEDY = {CauseCode.NO_NODES, CauseCode.SCHEDULER, CauseCode.GATHERING, CauseCode.PREEMPTION}

#: What no action on a node changes.
NEVER = {CauseCode.REQUEST, CauseCode.TOPOLOGY}


def headline(plan: Plan, job_id: int) -> str:
    """What it waits for in a sentence; "" when it starts."""
    if plan.start_of(job_id) is not None:
        return ""
    decision = plan.decision_of(job_id)
    return sentence(decision.reason, decision.facts)


def cause_of_job(plan: Plan, job_id: int) -> Cause:
    decision = plan.decision_of(job_id)
    return cause_of(decision.reason, decision.facts)


def policy_of(seed: int) -> Policy:
    dice = random.Random(f"{seed} policy")
    backfill = dice.choice(["none", "none", "easy", "conservative"])
    return Policy(
        name=dice.choice(["fifo", "priority", "sjf"]),
        placement=dice.choice(["best_fit", "spread", "balanced"]),
        backfill=backfill,
        strict_order=backfill == "none" and dice.random() < 0.3,
    )


def check_headlines(snapshot: Snapshot, policy: Policy) -> set[CauseCode]:
    """Assert it of every job that waits; answers what was named."""
    plan = plan_cycle(snapshot, policy)
    after, named = applied(snapshot, plan), set()
    for job_id in plan.reasons:
        decision = plan.decision_of(job_id)
        cause, said = cause_of(decision.reason, decision.facts), headline(plan, job_id)
        named.add(cause.code)
        if cause.code in NO_REMEDY:
            continue
        by_itself, own = (
            alone(after, job_id),
            replace(policy, backfill="none"),
        )  # nobody is there to be passed
        if cause.code is not CauseCode.TURN:
            assert cause_of_job(plan_cycle(by_itself, own), job_id) == cause, "the others are no part of it"
        done = plan_cycle(remedied(by_itself, cause), own)
        if headline(done, job_id):
            again = done.decision_of(job_id)
            assert (again.reason, cause_of_job(done, job_id)) != (decision.reason, cause), (said, decision)
        assert "can never start" not in said or cause.code in NEVER, said
    return named


def check_worlds(seeds: range) -> set[CauseCode]:
    named: set[CauseCode] = set()
    for seed in seeds:
        world = a_random_world(seed, node_count=1 + seed % 5, job_count=8)
        try:
            named |= check_headlines(world.snapshot, policy_of(seed))
        except Exception as error:
            raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}") from error
    return named


def test_who_does_what_the_headline_says_gets_on() -> None:
    named = check_worlds(range(60))

    assert len(named) >= 18  # the worlds meet most causes; `MUSTER_WORLDS=1000` meets them all


@pytest.mark.skipif(not os.environ.get("MUSTER_WORLDS"), reason="takes a minute; say MUSTER_WORLDS=1000")
def test_who_does_what_the_headline_says_gets_on_in_many_worlds() -> None:
    check_worlds(range(60, 60 + int(os.environ["MUSTER_WORLDS"])))


def _blind_to_what_is_closed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(shortfalls, "closed_now", lambda *_: None)


def _names_the_wrong_filter(patch: pytest.MonkeyPatch) -> None:
    real = closed_nodes.facts_of_opening
    patch.setattr(
        closed_nodes, "facts_of_opening", lambda *words: real(*words) | {"gates": "fault", "node": "nowhere"}
    )


def _names_the_first_amount(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        shortfalls,
        "too_little_free",
        lambda *_: (ReasonCode.WAITING_FOR_RESOURCES, {"resource": "storage_mib"}),
    )


MUTANTS = [_blind_to_what_is_closed, _names_the_wrong_filter, _names_the_first_amount]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__.removeprefix("_"))
def test_a_headline_that_names_what_does_not_matter_is_noticed(
    mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)

    with pytest.raises(AssertionError):
        check_worlds(range(60))
