"""Jobs that cannot be considered, planned one for each kind: no decision and no reason is another."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduler.core.cycle import plan_cycle
from scheduler.core.placement.scoring import counts_gpu_requests
from scheduler.core.policy import Policy
from scheduler.core.snapshot.snapshot import JobGate, Snapshot
from scheduler.state.load.job_rows import OWN_NAMES, Moment
from scheduler.state.load.resident.folded import fold
from scheduler.state.load.resident.jobs import ResidentJobs
from tests.support.builders import World
from tests.support.strategies import policies, worlds


def crowded(world: World, seed: int) -> Snapshot:
    """The world with twins of its pending jobs, some of which wait for their time; and with paused queues."""
    snapshot, dice = world.snapshot, np.random.default_rng(seed)
    pending = snapshot.pending
    open_gates = np.where(pending.gate == JobGate.BACKOFF, JobGate.BACKOFF, JobGate.OPEN)
    pending = replace(pending, gate=np.where(pending.eligible_ms > snapshot.now_ms, open_gates, JobGate.OPEN))
    rows = np.sort(dice.integers(0, max(len(pending), 1), 4 * len(pending)))
    twins = pending.take(rows)
    twins = replace(
        twins,
        id=np.arange(1, len(rows) + 1) * 3,
        priority=np.clip(twins.priority + dice.integers(-5, 6, len(rows)), 0, 100),
        submitted_ms=twins.submitted_ms + dice.integers(0, 1000, len(rows)),
        assembling_until_ms=np.zeros(len(rows), dtype=np.int64),
    )
    paused = dice.random(len(snapshot.queues)) < 0.5
    texts = tuple(
        f"by olga: {name}" if one else "" for one, name in zip(paused, snapshot.queues.name, strict=True)
    )
    return replace(
        snapshot,
        pending=twins,
        queues=replace(snapshot.queues, paused=paused, paused_text=texts),
        reservations=snapshot.reservations.take(snapshot.reservations.id > 0),
    )


def own_rows(snapshot: Snapshot) -> dict[str, np.ndarray]:
    """What rows would say of these pending jobs."""
    pending, none = snapshot.pending, np.zeros(len(snapshot.pending), dtype=np.int64)
    backoff = pending.gate == JobGate.BACKOFF
    said = {
        "own_priority": pending.priority,
        "begin_ms": np.where(backoff, 0, pending.eligible_ms),
        "eligible_ms": np.where(backoff, pending.eligible_ms, 0),
    }
    return {
        name: np.asarray(said.get(name, getattr(pending, name, none)), dtype=np.int64) for name in OWN_NAMES
    }


@given(worlds(), policies(), st.integers(0, 2**32 - 1))
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
def test_every_job_has_the_decision_it_would_have_had(world: World, policy: Policy, seed: int) -> None:
    snapshot = crowded(world, seed)
    pending = snapshot.pending
    whole = plan_cycle(snapshot, policy)

    folded = fold(
        ResidentJobs(own_rows(snapshot)),
        snapshot.classes,
        Moment(snapshot.now_ms, awaited={(job, 0) for job in pending.id[pending.awaited].tolist()}),
        paused_queues=snapshot.queues.id[snapshot.queues.paused].tolist(),
        early_too=not policy.queues,
        counts_gpu_requests=counts_gpu_requests(policy),
    )
    smaller = replace(snapshot, pending=pending.take(folded.planned))
    plan = folded.unfolded(plan_cycle(smaller, policy))

    assert plan.starts == whole.starts
    assert (plan.preempts, plan.resizes, plan.resumes) == (whole.preempts, whole.resizes, whole.resumes)
    assert (plan.expected, plan.reserves, plan.given_back) == (
        whole.expected,
        whole.reserves,
        whole.given_back,
    )
    assert plan.waiting.job_id.tolist() == whole.waiting.job_id.tolist()
    for job in whole.waiting.job_id.tolist():
        assert plan.decision_of(job) == whole.decision_of(job), job
    paused = np.isin(pending.queue_id, snapshot.queues.id[snapshot.queues.paused])
    in_line = np.isin(whole.waiting.job_id, pending.id[~paused & (pending.eligible_ms <= snapshot.now_ms)])
    for name in ("ahead_jobs", "ahead_gpus"):
        assert getattr(plan.waiting, name)[in_line].tolist() == getattr(whole.waiting, name)[in_line].tolist()


def test_of_thousands_in_a_paused_queue_one_of_each_kind_is_planned() -> None:
    own = {name: np.zeros(1000, dtype=np.int64) for name in OWN_NAMES}
    own |= {"id": np.arange(1000), "tasks": np.arange(1000) % 4, "queue_id": np.arange(1000) // 500}

    folded = fold(ResidentJobs(own), (), Moment(0), paused_queues=[1])

    assert len(folded.planned) == 500 + 4
    assert len(folded.folded_ids) == 496
    assert folded.planned_for[:5].tolist() == [500, 501, 502, 503, 500]
