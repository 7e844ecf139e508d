"""One task of a gang fails or its node dies: what becomes of the others, by the job's own rule."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db.models import Sum
from django.utils import timezone

from infra.errors import Conflict, InvalidInput
from quotas.models import LedgerEntry, Quota
from scheduler.agent.protocol import Report
from scheduler.core.lifecycle import AttemptState, TaskFailure, TaskState
from scheduler.models import Attempt, Job, JobEvent, Node, NodeHeartbeat, Task
from scheduler.services.cluster import heartbeats
from scheduler.services.execution.dispatch import Orders, orders_for
from scheduler.services.execution.reconcile import reconcile_all
from scheduler.services.execution.reports import apply_reports
from scheduler.services.jobs.datasets import report_checkpoint
from scheduler.services.jobs.resize import resize_job
from scheduler.state.lifecycle.verdicts import JobFacts, TaskEnd, judge
from scheduler.state.settle.release import attempts_with_ended_tasks, release_ended_tasks
from scheduler.state.settle.settle import settle_many
from tests.scheduler.state.small import broken_invariants
from tests.support.agents import World
from tests.support.factories import NodeFactory, QuotaFactory

pytestmark = pytest.mark.django_db


@pytest.fixture
def world(db: None, settings: Any) -> World:
    settings.MUSTER_NODE_SILENT_SECONDS, settings.MUSTER_NODE_LOST_SECONDS = 30, 60
    world = World.make()
    for name in ("n1", "n2"):
        NodeFactory(
            cluster=world.cluster, name=name, gpus=2, lease_expires_at=timezone.now() + timedelta(seconds=30)
        )
    QuotaFactory(project=world.project, resource="gpu_millis", hard=8000)
    heartbeats.keep_door_open()
    return world


@pytest.fixture(autouse=True)
def nothing_contradicts_itself(world: World) -> Iterator[None]:
    yield
    assert broken_invariants() == []


def a_running_gang(world: World, rule: str, **fields: Any) -> tuple[Job, list[Task]]:
    """Four tasks with a GPU each, two on each node."""
    job = world.submit(tasks=4, gpu_count=1, on_task_failure=rule, **fields)
    world.plan()
    for node in Node.objects.order_by("name"):
        given = orders_for(node, {}).assignments
        say(node, *(Task.objects.get(pk=one["task"]) for one in given), state="running")
    job.refresh_from_db()
    assert job.state == "running"
    return job, list(Task.objects.filter(attempt__job=job).order_by("rank"))


def say(node: Node, *tasks: Task, state: str, **words: Any) -> None:
    reports = [Report(task=task.pk, epoch=1, state=state, **words) for task in tasks]
    apply_reports(node=node, reports=reports)


def fail(task: Task) -> None:
    say(task.node, task, state="failed", exit_code=3)


def fresh(job: Job) -> Job:
    return Job.objects.get(pk=job.pk)


def test_by_itself_the_failure_of_one_ends_all(world: World) -> None:
    job, tasks = a_running_gang(world, "fail")

    fail(tasks[1])

    attempt = Attempt.objects.get(job=job)
    assert (attempt.state, attempt.stop_reason) == (AttemptState.STOPPING, "gang_member_failed")
    assert {stop["task"] for stop in orders_for(tasks[2].node, {t.pk: 1 for t in tasks}).stops} >= {
        tasks[2].pk,
        tasks[3].pk,
    }
    for task in (tasks[0], tasks[2], tasks[3]):
        say(task.node, task, state="stopped", exit_signal=15)
    assert (fresh(job).state, fresh(job).exit_code) == ("failed", 3)


def test_requeue_starts_it_again_whatever_its_restart_policy(world: World) -> None:
    job, tasks = a_running_gang(world, "requeue", max_restarts=1)

    fail(tasks[1])
    for task in (tasks[0], tasks[2], tasks[3]):
        say(task.node, task, state="stopped", exit_signal=15)

    assert (fresh(job).state, fresh(job).reason_code) == ("queued", "Backoff")
    facts = JobFacts("running", "never", 1, earlier_ended=1, on_task_failure=TaskFailure.REQUEUE)
    assert judge(facts, "", [TaskEnd(0, "n1", TaskState.FAILED, 3)]).job == "failed"  # not for ever


def test_continue_goes_on_with_enough_and_gives_back_the_rest(world: World) -> None:
    job, tasks = a_running_gang(world, "continue", min_tasks=3)
    quota = Quota.objects.get(resource="gpu_millis")

    fail(tasks[3])

    quota.refresh_from_db()
    attempt = Attempt.objects.get(job=job)
    assert (fresh(job).state, attempt.state, attempt.stop_asked_at) == ("running", "running", None)
    assert (quota.used, attempt.allocations.held().count()) == (3000, 3)
    assert JobEvent.objects.filter(job=job, kind="attempt.smaller").count() == 1
    # The GPU that came free is somebody else's now.
    other = world.submit(gpu_count=1)
    world.plan()
    assert fresh(other).state == "scheduled"
    for task in tasks[:3]:
        say(task.node, task, state="succeeded", exit_code=0)
    assert fresh(job).state == "completed"
    assert fresh(job).end_text == "1 of 4 tasks failed; the other 3 were enough."


def test_too_few_are_left_to_go_on(world: World) -> None:
    job, tasks = a_running_gang(world, "continue", min_tasks=3)

    fail(tasks[3])
    fail(tasks[2])

    attempt = Attempt.objects.get(job=job)
    assert (attempt.state, attempt.stop_reason) == (AttemptState.STOPPING, "gang_member_failed")
    for task in tasks[:2]:
        say(task.node, task, state="stopped", exit_signal=15)
    assert fresh(job).state == "failed"


def test_a_lost_node_takes_only_its_own_tasks_along(world: World) -> None:
    job, tasks = a_running_gang(world, "continue", min_tasks=2)
    dead = tasks[3].node
    NodeHeartbeat.objects.filter(node=dead).update(lease_expires_at=timezone.now() - timedelta(seconds=100))

    found = reconcile_all()

    assert (found.lost_attempts, fresh(job).state) == (0, "running")
    assert [t.state for t in Task.objects.filter(attempt__job=job).order_by("rank")] == [
        "running", "running", "lost", "lost",
    ]  # fmt: skip
    # Should it come back, it is told that nobody waits for those.
    assert all(stop["stale"] for stop in orders_for(dead, {t.pk: 1 for t in tasks[2:]}).stops)
    for task in tasks[:2]:
        say(task.node, task, state="succeeded", exit_code=0)
    assert fresh(job).state == "completed"


def test_what_a_crash_left_with_an_ended_task_is_given_back_once(world: World) -> None:
    job, tasks = a_running_gang(world, "continue", min_tasks=2)
    Task.objects.filter(pk=tasks[3].pk).update(state=TaskState.FAILED)  # and then the process was killed
    attempt = Attempt.objects.get(job=job)
    assert attempts_with_ended_tasks() == [attempt.pk]

    reconcile_all()

    assert attempts_with_ended_tasks() == []
    assert release_ended_tasks([attempt.pk]) == 0


def test_a_gang_pays_for_what_each_task_held(world: World) -> None:
    job, tasks = a_running_gang(world, "continue", min_tasks=2)
    attempt, begun = Attempt.objects.get(job=job), timezone.now()
    Task.objects.filter(pk=tasks[3].pk).update(state=TaskState.FAILED)
    release_ended_tasks([attempt.pk], at=begun + timedelta(minutes=30))

    Task.objects.filter(pk__in=[t.pk for t in tasks[:3]]).update(state=TaskState.SUCCEEDED)
    settle_many([attempt.pk], at=begun + timedelta(hours=1))

    entries = LedgerEntry.objects.filter(attempt_id=attempt.pk)
    used = sum(entry.gpu_millis * entry.charged_seconds for entry in entries)
    assert used == pytest.approx(1000 * (3 * 3600 + 1800), abs=8000)
    assert entries.aggregate(held=Sum("held_seconds"))["held"] == 0


# ---------------------------------------------------------------- elastic jobs change their size


def test_an_elastic_job_is_made_smaller_while_it_runs(world: World) -> None:
    job, tasks = a_running_gang(world, "fail", min_tasks=2, elastic=True)

    resize_job(job=job, tasks=2, by=world.user)

    far = tasks[3].node
    stops = orders_for(far, {t.pk: 1 for t in tasks[2:]}).stops
    assert {stop["task"] for stop in stops} == {tasks[2].pk, tasks[3].pk}
    left = orders_for(tasks[0].node, {t.pk: 1 for t in tasks[:2]})
    assert left == Orders(worlds=[[t.pk, 1, 2, "0-1"] for t in tasks[:2]])  # they go on, and hear their size
    for task in tasks[2:]:
        say(far, task, state="stopped", exit_signal=15)
    quota = Quota.objects.get(resource="gpu_millis")
    assert (fresh(job).state, quota.used) == ("running", 2000)
    for task in tasks[:2]:
        say(task.node, task, state="succeeded", exit_code=0)
    assert (fresh(job).state, fresh(job).exit_code) == ("completed", 0)


def test_an_elastic_job_grows_from_its_checkpoint_only(world: World) -> None:
    job, tasks = a_running_gang(world, "fail", min_tasks=2, elastic=True)
    resize_job(job=job, tasks=2, by=world.user)
    for task in tasks[2:]:
        say(task.node, task, state="stopped", exit_signal=15)
    with pytest.raises(Conflict, match="no checkpoint"):
        resize_job(job=fresh(job), tasks=4, by=world.user)
    report_checkpoint(job=fresh(job), by=world.user)

    resize_job(job=fresh(job), tasks=4, by=world.user)

    assert fresh(job).state == "preempting"
    for task in tasks[:2]:
        say(task.node, task, state="stopped", exit_signal=15)
    world.plan()
    assert Task.objects.filter(attempt__job=job, attempt__epoch=2).count() == 4


def test_a_size_has_to_be_one_that_the_job_allows(world: World) -> None:
    job, _ = a_running_gang(world, "fail", min_tasks=2, elastic=True)
    for tasks in (1, 5):
        with pytest.raises(InvalidInput):
            resize_job(job=job, tasks=tasks, by=world.user)
    stiff = world.submit(tasks=2)
    with pytest.raises(Conflict, match="not elastic"):
        resize_job(job=stiff, tasks=1, by=world.user)
    with pytest.raises(InvalidInput):
        world.submit(tasks=2, elastic=True)
