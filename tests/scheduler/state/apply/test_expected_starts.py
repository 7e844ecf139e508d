"""Promises in rows: an expected start is kept, moves and goes; and what fair share counts as used."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from quotas.services.shares import recount_shares
from scheduler.core.lifecycle import JobState
from scheduler.state.apply.expected_starts import expect_starts
from scheduler.state.load.snapshots import load_snapshot
from tests.scheduler.state.small import SmallWorld
from tests.support.factories import AllocationFactory, AttemptFactory, SchedulerProfileFactory

pytestmark = pytest.mark.django_db


def test_an_expected_start_is_kept_and_forgotten() -> None:
    world = SmallWorld()
    job = world.job()
    at_ms = 1_900_000_000_000

    assert expect_starts({job.number: at_ms}) == [job.number]
    assert load_snapshot(cluster_id=world.cluster.pk).snapshot.pending.promised_ms.tolist() == [at_ms]

    expect_starts({job.number: 0})
    job.refresh_from_db()
    assert job.expected_start_at is None


def test_a_job_that_has_started_meanwhile_is_left_alone() -> None:
    world = SmallWorld()
    job = world.job(state=JobState.RUNNING, epoch=1)

    assert expect_starts({job.number: 1_900_000_000_000}) == []


def test_a_profile_says_how_to_backfill() -> None:
    world = SmallWorld()
    world.cluster.profile = SchedulerProfileFactory(
        policy="priority", backfill="easy", options={"factors": {"age": 2}, "backfill_scan": 5}
    )
    world.cluster.save()

    policy = load_snapshot(cluster_id=world.cluster.pk).policy

    assert (policy.name, policy.backfill, policy.factors, policy.backfill_scan) == (
        "priority", "easy", (("age", 2),), 5
    )  # fmt: skip


def test_use_of_a_day_ago_counts_half_and_of_eight_days_ago_not_at_all() -> None:
    world = SmallWorld()
    world.cluster.profile = SchedulerProfileFactory(policy="fairshare")
    world.cluster.save()
    node, job, now = world.node("n1", gpus=2), world.job(), timezone.now()
    for days in (0, 1, 8):
        ended = now - timedelta(days=days)
        done = world.job(project=job.project, queue=job.queue, state=JobState.COMPLETED, epoch=1,
                         completed_at=ended)  # fmt: skip
        AllocationFactory(
            attempt=AttemptFactory(job=done, state="succeeded", ended_at=ended), node=node, gpu_millis=2000,
            device_ids=[], held_at=ended - timedelta(seconds=600), released_at=ended,
        )  # fmt: skip

    assert recount_shares() > 0
    projects = load_snapshot(cluster_id=world.cluster.pk).snapshot.projects

    used = projects.used_gpu_seconds[projects.id.tolist().index(job.project_id)]
    assert used == pytest.approx(1200 * 1.5, rel=0.01)
