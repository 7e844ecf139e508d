"""Reasons of pending jobs: written where they report another one, in turns when only numbers change."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from django.db import connections, transaction

from scheduler.core.lifecycle import JobState
from scheduler.core.plan import Plan
from scheduler.models import Job, Node
from scheduler.state.apply import pending_reasons
from scheduler.state.apply.pending_reasons import write_pending_reasons
from scheduler.state.lease.leases import HeldLease
from scheduler.state.load.snapshots import Loaded
from tests.scheduler.state.apply.planned import a_lease, applied, seen_and_planned
from tests.scheduler.state.small import SmallWorld

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def world() -> SmallWorld:
    return SmallWorld()


def written(plan: Plan, loaded: Loaded, lease: HeldLease, at: datetime | None = None) -> int:
    """How many reasons were written."""
    snapshot = loaded.snapshot
    reasons = write_pending_reasons(
        plan, pending_ids=snapshot.pending.id, reported=loaded.reported_reasons, now_ms=snapshot.now_ms,
        lease=lease, at=at or datetime.now(UTC),
    )  # fmt: skip
    return len(reasons.numbers)


def test_every_waiting_job_gets_its_reason_and_keeps_it_unwritten_while_it_holds(
    world: SmallWorld,
) -> None:
    world.node("n1", gpus=2)
    world.job(gpus=2)
    waits = [world.job(gpus=2) for _ in range(3)]
    too_large = world.job(cpu_millis=1_000_000)
    loaded, plan = seen_and_planned(world)
    lease = a_lease(world)
    applied(world, loaded, plan, lease)

    at = datetime.now(UTC)
    assert written(plan, loaded, lease, at) == 4

    for job in waits:
        job.refresh_from_db()
        assert (job.reason_code, job.reason_category) == ("WaitingForResources", "wait")
        assert job.reason_text == "Needs 2 GPUs; 0 of 2 free."
        assert job.reason_details["needs"] == 2
        assert job.generation == 1
        assert job.reason_at == at
    too_large.refresh_from_db()
    assert too_large.reason_category == "fix"
    again, plan = seen_and_planned(world)
    assert written(plan, again, lease, at) == 0


def test_a_reason_that_no_longer_holds_is_replaced_and_cleared_at_the_start(world: SmallWorld) -> None:
    world.job()
    world.plan()
    job = Job.objects.get()
    assert job.reason_text == "The cluster has no nodes."

    node = world.node("n1", cordoned=True)
    world.plan()
    job.refresh_from_db()
    assert job.reason_text == (
        "The only node that could hold the job (n1) is cordoned. Wait until an operator uncordons it."
    )

    Node.objects.filter(pk=node.pk).update(cordoned=False)
    world.plan()
    job.refresh_from_db()
    assert job.state == JobState.SCHEDULED
    assert (job.reason_code, job.reason_category, job.reason_text, job.reason_details, job.reason_at) == (
        "", "", "", {}, None,
    )  # fmt: skip


def test_a_job_that_somebody_is_changing_is_told_in_the_next_cycle(world: SmallWorld) -> None:
    """A reason is never worth waiting for: the row is skipped, and nobody is blocked."""
    busy, free = world.job(), world.job()
    loaded, plan = seen_and_planned(world)
    lease = a_lease(world)
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        try:
            with transaction.atomic():
                Job.objects.select_for_update(of=("self",)).get(pk=busy.pk)
                held.set()
                done.wait(10)
        finally:
            connections.close_all()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(10)
    try:
        changed = written(plan, loaded, lease)
    finally:
        done.set()
        thread.join()

    assert changed == 1
    free.refresh_from_db()
    assert free.reason_code
    busy.refresh_from_db()
    assert not busy.reason_code


def test_reworded_reasons_are_written_in_turns(world: SmallWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending_reasons, "MAX_REWORDED", 10)
    monkeypatch.setattr(pending_reasons, "FIRST_JOBS", 5)
    world.node("n1", cordoned=True)
    jobs = [
        world.job(reason_code="WaitingForResources", reason_category="wait", reason_text="something older")
        for _ in range(64)
    ]
    new = world.job()
    lease = a_lease(world)

    rounds = 0
    while Job.objects.filter(reason_text="something older").exists():
        loaded, plan = seen_and_planned(world)
        changed = written(plan, moved(loaded, rounds), lease)
        assert changed < 20
        rounds += 1
        if rounds == 1:
            new.refresh_from_db()
            assert new.reason_code == "WaitingForResources"
    assert 3 < rounds <= pending_reasons.REWORDING_TURNS
    assert len(jobs) == 64


def moved(loaded: Loaded, seconds: int) -> Loaded:
    """The same picture, so many seconds into the turns."""
    snapshot = loaded.snapshot
    now_ms = snapshot.now_ms // 16_000 * 16_000 + seconds * 1000
    return replace(loaded, snapshot=replace(snapshot, now_ms=now_ms))
