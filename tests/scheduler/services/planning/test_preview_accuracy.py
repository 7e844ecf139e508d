"""Preview says what happens when the same request is submitted to the same cluster."""

from __future__ import annotations

import os
import random
from typing import Any

import pytest

from infra.errors import MusterError
from scheduler.core.lifecycle import JobState, TaskState
from scheduler.models import Attempt, Job, SchedulerProfile, Task
from scheduler.services.cluster.defaults import ensure_defaults
from scheduler.services.jobs.submit import submit_job
from scheduler.services.planning import shared_snapshot
from scheduler.services.planning.job_preview import preview_job
from scheduler.state.settle.settle import settle_many
from tests.scheduler.state.small import SmallWorld, a_queue

pytestmark = pytest.mark.django_db

#: More of them with MUSTER_PREVIEWS in the environment.
REQUESTS = int(os.environ.get("MUSTER_PREVIEWS", "24"))


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> SmallWorld:
    """Three nodes of different kinds, a quota, a queue with bounds; no picture of it is kept."""
    monkeypatch.setattr(shared_snapshot, "QUICK_SECONDS", 600.0)
    shared_snapshot.forget_snapshots()
    ensure_defaults()
    world = SmallWorld()
    for name, gpus in (("n1", 4), ("n2", 2), ("n3", 0)):
        world.node(name, gpus=gpus)
    world.node("n4", cordoned=True, gpus=8)
    world.quota("gpu_millis", 5000)
    a_queue(world.cluster, "narrow", max_concurrent_jobs=2, max_wall_seconds=3600)
    world.cluster.profile = SchedulerProfile.objects.create(name="t34", policy="priority", backfill="easy")
    world.cluster.save()
    world.job("old", gpus=3)
    world.plan()
    return world


def a_request(dice: random.Random, world: SmallWorld) -> dict[str, Any]:
    tasks = dice.choice([1, 1, 1, 2, 3])
    request: dict[str, Any] = {
        "command": "true",
        "project": world.project.slug,
        "queue": dice.choice(list(world.cluster.queues.order_by("pk"))).slug,
        "gpu_count": dice.choice([0, 1, 2, 2, 3, 4, 4, 6]),
        "tasks": tasks,
        "cpu_cores": dice.choice([1, 2, 8, 64]),
        "time_limit": dice.choice([600, 3600, 7200]),
    }
    if tasks > 1 and dice.random() < 0.4:
        request["min_tasks"] = 1
    if dice.random() < 0.15:
        request["hold"] = True
    return request


def what_happens(world: SmallWorld, request: dict[str, Any]) -> tuple[str, str]:
    """The verdict and reason in words of a preview, once it was submitted and a cycle has passed."""
    try:
        job = submit_job(payload=request, by=world.person)
    except MusterError:
        return "refused", ""
    world.plan()
    job = Job.objects.get(pk=job.pk)
    if job.state == JobState.SCHEDULED:
        return "starts_now", ""
    return ("never" if job.reason_category == "fix" else "would_wait"), job.reason_code


def time_passes(dice: random.Random) -> None:
    """Some of what runs ends, and some of what waits is given up."""
    for attempt in Attempt.objects.live():
        if dice.random() < 0.2:
            Task.objects.filter(attempt=attempt).update(state=TaskState.SUCCEEDED)
            settle_many([attempt.pk])
    for job in Job.objects.filter(state__in=[JobState.QUEUED, JobState.HELD]):
        if dice.random() < 0.5:
            job.delete()


def test_t34_a_preview_is_what_happens_when_it_is_submitted(world: SmallWorld) -> None:
    dice = random.Random(34)
    met: dict[str, int] = {}
    otherwise = []
    for number in range(REQUESTS):
        request = a_request(dice, world)
        told = preview_job(payload=request, by=world.person)
        said = (told.verdict, told.reason_code)
        found = what_happens(world, request)
        if found[0] == "refused" and said[0] in ("refused", "never"):
            found = said  # at the door already
        if said != found:
            otherwise.append(f"request {number}: {said} and then {found}: {request}")
        met[said[0]] = met.get(said[0], 0) + 1
        time_passes(dice)

    assert len(otherwise) <= REQUESTS // 100, "\n".join(otherwise)
    assert min(met["starts_now"], met["would_wait"]) > REQUESTS // 10
