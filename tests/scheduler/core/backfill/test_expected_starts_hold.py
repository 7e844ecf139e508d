"""What the first of a line is promised comes true: time is played on, and nobody behind it was let into its way."""

from __future__ import annotations

import os
import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduler.core.backfill import cluster_backfill, reserved_limits
from scheduler.core.cluster.index import ClusterIndex
from scheduler.core.cycle import plan_cycle
from scheduler.core.forecast.forecast import Course, RunTimes, play_forward
from scheduler.core.ordering.ordering import order_jobs
from scheduler.core.placement.plugins import resolve
from scheduler.core.policy import Policy
from scheduler.core.snapshot.snapshot import Snapshot
from tests.support.builders import JobSpec, World, a_world
from tests.support.strategies import (
    QUOTAS,
    a_random_job,
    a_random_node,
    a_random_tree,
    random_running,
    strangers,
)


def a_mixed_world(seed: int) -> World:
    """Limits, arrays, models and jobs that stand still: all that may get in somebody's way."""
    dice = random.Random(seed)
    nodes = [a_random_node(random.Random(f"{seed} n{number}"), f"n{number}") for number in range(4)]
    nodes = [replace(node, cpus=8, memory_gib=16, overcommit=1) for node in nodes]
    jobs: list[JobSpec] = []
    for number in range(9):
        job = a_random_job(random.Random(f"{seed} j{number}"), f"j{number}")
        jobs.append(replace(job, minutes=job.minutes or 30, gate=jobs[0].gate if jobs else job.gate))
    running = [
        replace(one, ends_in=one.ends_in or 40, pause="suspended") if dice.random() < 0.3 else one
        for one in random_running(dice, nodes, 6)
        if not one.domains
    ]
    quotas = dice.choice([(), (), dice.choice(QUOTAS), a_random_tree(random.Random(f"{seed} lines"))])
    return strangers(a_world(nodes=nodes, running=running, pending=jobs, quotas=quotas))


def broken_promise(snapshot: Snapshot, policy: Policy) -> str:
    """Who was promised the first start and did not get it, although nobody who was ahead of it came in between."""
    plan = plan_cycle(snapshot, policy)
    gather = {one.job_id for one in plan.reserves}
    first = next((one for one in plan.expected if one.job_id not in gather), None)
    if first is None or plan.expected[0] is not first:
        return ""
    going_on = {one.job_id for one in plan.resumes}
    if any(pause and number not in going_on for number, pause in
           zip(snapshot.running.id.tolist(), snapshot.running.pause.tolist(), strict=True)):  # fmt: skip
        return ""  # when that is over nobody knows
    order = order_jobs(ClusterIndex(snapshot), policy, resolve(policy))
    line = snapshot.pending.id[order].tolist()
    ahead = line[: line.index(first.job_id)]
    future = play_forward(snapshot, policy, RunTimes(), Course.LIMITS, [first.job_id, *ahead])
    if any(snapshot.now_ms < future.started_ms.get(other, 0) for other in ahead):
        return ""  # it waited for a limit, and its turn came again
    at_ms = future.started_ms.get(first.job_id)
    if at_ms is not None and at_ms <= first.at_ms + 1000:
        return ""
    return f"job {first.job_id} by {first.at_ms - snapshot.now_ms}, got {at_ms and at_ms - snapshot.now_ms}"


def a_policy(seed: int) -> Policy:
    return Policy(
        name=("fifo", "priority")[seed % 2],
        backfill=("easy", "conservative")[seed // 2 % 2],
        backfill_order=("queue", "shortest")[seed // 4 % 2],
    )


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_what_the_first_is_promised_comes_true(seed: int) -> None:
    assert broken_promise(a_mixed_world(seed).snapshot, a_policy(seed)) == ""


@pytest.mark.skipif(not os.environ.get("MUSTER_WORLDS"), reason="takes minutes; say MUSTER_WORLDS=1000")
def test_what_the_first_is_promised_comes_true_in_many_worlds() -> None:
    worlds = range(int(os.environ["MUSTER_WORLDS"]))
    assert [seed for seed in worlds if broken_promise(a_mixed_world(seed).snapshot, a_policy(seed))] == []


def _break_array(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reserved_limits.ReservedLimits, "admits_in_array", lambda self, row: True)


def _break_models(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(cluster_backfill, "open_now", lambda context, group: group)


MUTANTS = [(_break_array, 79), (_break_array, 312), (_break_models, 329), (_break_models, 586)]


@pytest.mark.parametrize(("mutant", "seed"), MUTANTS, ids=lambda one: getattr(one, "__name__", one))
def test_a_broken_rule_is_noticed(mutant: Any, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    world = a_mixed_world(seed)
    assert broken_promise(world.snapshot, a_policy(seed)) == ""
    mutant(monkeypatch)

    assert broken_promise(world.snapshot, a_policy(seed)) != ""
