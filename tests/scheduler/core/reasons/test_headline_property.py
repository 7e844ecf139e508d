"""Who does what the headline says gets on: the job starts, or the headline is another."""

from __future__ import annotations

import random

import pytest

from scheduler.core.cycle import plan_cycle
from scheduler.core.plan import Plan
from scheduler.core.policy import Policy
from scheduler.core.reasons.causes import Cause, CauseCode, cause_of
from scheduler.core.reasons.messages import sentence
from scheduler.core.snapshot.snapshot import Snapshot
from tests.support.applied import applied
from tests.support.remedies import alone, remedied
from tests.support.strategies import a_random_world

#: What a person cannot take away in a world that stands still.
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
        cause, told = cause_of(decision.reason, decision.facts), headline(plan, job_id)
        named.add(cause.code)
        if cause.code in NO_REMEDY:
            continue
        by_itself = alone(after, job_id)
        if cause.code is not CauseCode.TURN:
            assert cause_of_job(plan_cycle(by_itself, policy), job_id) == cause, "the others are no part of it"
        done = plan_cycle(remedied(by_itself, cause), policy)
        if headline(done, job_id):
            assert cause_of_job(done, job_id) != cause, (cause, told, decision)
        assert "can never start" not in told or cause.code in NEVER, told
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
