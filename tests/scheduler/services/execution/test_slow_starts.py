"""Starts that take long become starting, with an event; those of a moment do not."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from infra.errors import Conflict
from scheduler.agent.protocol import Report
from scheduler.models import Attempt, Job, JobEvent, Node, Task
from scheduler.services.cluster import heartbeats
from scheduler.services.execution.dispatch import orders_for
from scheduler.services.execution.reconcile import reconcile_all
from scheduler.services.execution.reports import apply_reports
from scheduler.services.jobs.verbs import cancel_job, requeue_job
from tests.support.agents import World
from tests.support.factories import NodeFactory

pytestmark = pytest.mark.django_db


@pytest.fixture
def world(db: None) -> World:
    world = World.make()
    NodeFactory(cluster=world.cluster, name="n1", lease_expires_at=timezone.now() + timedelta(hours=1))
    heartbeats.keep_door_open()
    return world


def a_fetched_job(world: World, *, seconds_ago: float, **fields: Any) -> Job:
    """Its agent has accepted it, and was given its nodes so long ago."""
    job = world.submit("true", **fields)
    world.plan()
    assert len(orders_for(Node.objects.get(), {}).assignments) == 1
    Attempt.objects.update(scheduled_at=timezone.now() - timedelta(seconds=seconds_ago))
    job.refresh_from_db()
    return job


def kinds_of(job: Job) -> list[str]:
    return list(JobEvent.objects.filter(job=job).order_by("id").values_list("kind", flat=True))


def states_of(job: Job) -> tuple[str, str, str]:
    job.refresh_from_db()
    return job.state, job.attempts.get().state, Task.objects.get(attempt__job=job).state


def test_a_start_that_takes_long_is_said_once(world: World) -> None:
    job = a_fetched_job(world, seconds_ago=3)

    assert reconcile_all().slow_starts == 1
    assert reconcile_all().slow_starts == 0

    assert states_of(job) == ("starting", "starting", "starting")
    event = JobEvent.objects.get(job=job, kind="job.starting")
    assert (event.because, event.epoch, event.details) == ("accepted by n1", 1, {})


def test_a_start_of_a_moment_is_not(world: World) -> None:
    job = a_fetched_job(world, seconds_ago=0)

    assert reconcile_all().slow_starts == 0

    assert states_of(job) == ("scheduled", "assigned", "starting")
    assert "job.starting" not in kinds_of(job)


def test_what_no_agent_has_fetched_is_not_starting(world: World) -> None:
    job = world.submit("true")
    world.plan()
    Attempt.objects.update(scheduled_at=timezone.now() - timedelta(minutes=5))

    assert reconcile_all().slow_starts == 0

    assert states_of(job) == ("scheduled", "assigned", "assigned")


def test_what_is_to_stop_is_not_starting(world: World) -> None:
    job = a_fetched_job(world, seconds_ago=3)
    cancel_job(job=job, by=world.user)

    assert reconcile_all().slow_starts == 0

    assert states_of(job) == ("stopping", "assigned", "starting")


@pytest.mark.parametrize("seconds_ago", [0, 3])
def test_either_runs_and_ends_as_ever(world: World, seconds_ago: float) -> None:
    job = a_fetched_job(world, seconds_ago=seconds_ago)
    reconcile_all()
    task = Task.objects.get()

    apply_reports(node=task.node, reports=[Report(task=task.pk, epoch=1, state="running", pid=7)])
    assert states_of(job) == ("running", "running", "running")
    apply_reports(
        node=task.node, reports=[Report(task=task.pk, epoch=1, state="succeeded", pid=7, exit_code=0)]
    )

    assert states_of(job) == ("completed", "succeeded", "succeeded")
    kinds = kinds_of(job)
    assert [kind for kind in kinds if kind != "job.starting"] == [
        "job.submitted", "job.scheduled", "job.running", "job.completed",
    ]  # fmt: skip
    assert kinds.count("job.starting") == int(seconds_ago > 2)
    world.assert_nothing_is_held()


def test_what_an_agent_has_fetched_may_have_begun(world: World) -> None:
    job = a_fetched_job(world, seconds_ago=0, restart_policy="never")

    with pytest.raises(Conflict, match="runs at most once"):
        requeue_job(job=job, by=world.user)

    assert states_of(job) == ("scheduled", "assigned", "starting")


def test_what_no_agent_has_fetched_is_requeued_though_it_runs_at_most_once(world: World) -> None:
    job = world.submit("true", restart_policy="never")
    world.plan()
    job.refresh_from_db()

    requeue_job(job=job, by=world.user)
    orders_for(Node.objects.get(), {})

    job.refresh_from_db()
    assert (job.state, job.epoch) == ("queued", 1)
    world.assert_nothing_is_held()
