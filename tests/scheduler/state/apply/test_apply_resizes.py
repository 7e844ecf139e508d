"""Changes of size in rows: tasks are asked to end for others, and a job starts again larger."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from quotas.models import Quota
from scheduler.core.plan import Plan, Resize
from scheduler.models import Attempt, Cycle, Job, JobEvent, Node, SchedulerProfile, Task
from scheduler.services.execution.dispatch import orders_for
from scheduler.services.jobs.datasets import report_checkpoint
from scheduler.services.planning.replay import replay
from scheduler.state.apply import apply_plan, apply_resizes
from scheduler.state.apply.apply_context import ApplyContext
from scheduler.state.apply.apply_plan import Applied
from scheduler.state.apply.refusals import VICTIM_CHANGED
from tests.scheduler.state.settle.test_release import (
    a_running_gang,
    fresh,
    nothing_contradicts_itself,
    say,
)
from tests.scheduler.state.settle.test_release import world as _world
from tests.support.agents import World
from tests.support.roles import had_asked

pytestmark = pytest.mark.django_db

world = _world
__all__ = ["nothing_contradicts_itself", "world"]


@pytest.fixture(autouse=True)
def rules(world: World) -> None:
    SchedulerProfile.objects.update(
        preemption_enabled=True,
        preemption={"protected_seconds": 0, "grace_seconds": 7},
        options={"resize_seconds": 600},
    )


def an_old_sweep(world: World, **fields: object) -> tuple[Job, list[Task]]:
    """Four tasks with a GPU each on all GPUs there are, two would be enough; it has run for an hour."""
    job, tasks = a_running_gang(world, "fail", min_tasks=2, elastic=True, priority=10, **fields)
    Attempt.objects.filter(job=job).update(started_at=timezone.now() - timedelta(hours=1))
    return job, tasks


def test_the_last_tasks_end_for_a_higher_job_and_the_others_go_on(world: World) -> None:
    sweep, tasks = an_old_sweep(world)
    urgent = world.submit(gpu_count=2, priority=90)

    world.plan()

    assert [task.state for task in Task.objects.filter(attempt__job=sweep).order_by("rank")] == [
        "running", "running", "stopping", "stopping",
    ]  # fmt: skip
    receipt = JobEvent.objects.get(job=sweep, kind="job.smaller")
    assert receipt.because == (
        f"releases 2 of 4 tasks and continues with 2, for job {urgent.number} of project {world.project.slug}: "
        "its priority is 90, this job's 10"
    )
    assert receipt.details["ranks"] == [2, 3]
    assert (fresh(urgent).reason_code, fresh(sweep).state) == ("WaitingForPreemption", "running")
    assert fresh(urgent).reason_text.startswith(
        f"Job {sweep.number} releases tasks for this job and has until "
    )
    stops = orders_for(tasks[3].node, {task.pk: 1 for task in tasks[2:]}).stops
    assert {(stop["task"], stop["grace_seconds"]) for stop in stops} == {(tasks[2].pk, 7), (tasks[3].pk, 7)}

    Task.objects.filter(pk=tasks[2].pk).update(state="stopped")
    world.plan()  # it has ended and what it held is about to be given back: that is still on its way
    assert fresh(sweep).state == "running"
    Task.objects.filter(pk=tasks[2].pk).update(state="stopping")

    early = world.submit(gpu_count=1, priority=10)
    had_asked(early, created_at=timezone.now() - timedelta(hours=2))
    say(tasks[2].node, tasks[2], state="stopped", exit_signal=15)
    world.plan()  # nobody more is disturbed, and what is free already is kept
    assert JobEvent.objects.filter(kind__in=["job.smaller", "job.preempting"]).count() == 1
    assert (fresh(early).state, fresh(urgent).state) == ("queued", "queued")

    say(tasks[3].node, tasks[3], state="stopped", exit_signal=15)
    world.plan()
    assert (fresh(urgent).state, fresh(sweep).state, fresh(early).state) == ("scheduled", "running", "queued")
    assert Quota.objects.get(resource="gpu_millis").used == 4000
    for task in tasks[:2]:
        say(task.node, task, state="succeeded", exit_code=0)
    assert fresh(sweep).state == "completed"


def test_it_is_left_alone_so_soon_after_its_last_change(world: World) -> None:
    sweep, _ = an_old_sweep(world)
    Attempt.objects.filter(job=sweep).update(resized_at=timezone.now() - timedelta(minutes=5))
    world.submit(gpu_count=2, priority=90)

    world.plan()

    assert fresh(sweep).state == "preempting"  # stopped whole, as without the option


def test_room_that_nobody_wants_is_used_once_its_work_is_saved(world: World) -> None:
    other = world.submit(gpu_count=2)
    world.plan()
    sweep = world.submit(tasks=4, min_tasks=1, gpu_count=1, elastic=True)
    world.plan()
    tasks = list(Task.objects.filter(attempt__job=sweep))
    assert len(tasks) == 2
    for task in Task.objects.filter(attempt__job__in=[other, sweep]):
        orders_for(task.node, {})
        say(task.node, task, state="running")
    Attempt.objects.filter(job=sweep).update(started_at=timezone.now() - timedelta(hours=1))
    report_checkpoint(job=fresh(sweep), by=world.user)
    world.plan()
    assert fresh(sweep).state == "running"  # no room
    one = Task.objects.get(attempt__job=other)
    say(one.node, one, state="succeeded", exit_code=0)

    world.plan()

    assert fresh(sweep).state == "preempting"
    assert replay(cycle_id=Cycle.objects.latest("id").pk).identical
    said = JobEvent.objects.filter(job=sweep, kind="job.preempting").latest("id")
    assert said.because.startswith("stopped to start again with 4 tasks instead of 2: resources are idle")
    for task in tasks:
        say(task.node, task, state="stopped", exit_signal=15)
    late = world.submit(gpu_count=1, priority=10)
    had_asked(late, created_at=timezone.now() - timedelta(hours=2))
    world.plan()
    assert Task.objects.filter(attempt__job=sweep, attempt__epoch=2).count() == 4
    assert fresh(late).state == "queued"  # what was given up for more is its own
    assert Attempt.objects.get(job=sweep, epoch=1).stopped_for is None  # nobody counts it as preempted


def test_what_has_changed_meanwhile_is_left_alone(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep, tasks = an_old_sweep(world)
    urgent = world.submit(gpu_count=2, priority=90)
    real = apply_plan.apply_plan

    def one_has_ended(plan: Plan, context: ApplyContext) -> Applied:
        Task.objects.filter(pk=tasks[0].pk).update(state="succeeded")
        return real(plan, context)

    monkeypatch.setattr(apply_plan, "apply_plan", one_has_ended)
    world.plan()

    assert fresh(urgent).state == "queued"
    assert not Task.objects.filter(attempt__job=sweep, state="stopping").exists()
    Task.objects.filter(pk=tasks[0].pk).update(state="running")


def test_nodes_hear_of_it(world: World) -> None:
    _, tasks = an_old_sweep(world)
    node = Node.objects.get(pk=tasks[3].node_id)
    world.submit(gpu_count=1, priority=90)

    world.plan()

    assert [stop["task"] for stop in orders_for(node, {task.pk: 1 for task in tasks[2:]}).stops] == [
        tasks[3].pk
    ]


def a_sweep_and_a_rigid_job(world: World) -> tuple[Job, Job, Job]:
    """Three GPUs and one; whoever asks for two on one node needs the last task of the one, and all of the other."""
    sweep = world.submit(tasks=3, gpu_count=1, min_tasks=2, elastic=True, priority=10)
    world.plan()
    rigid = world.submit(gpu_count=1, priority=10)
    world.plan()
    for task in Task.objects.filter(attempt__job__in=[sweep, rigid]):
        orders_for(task.node, {})
        say(task.node, task, state="running")
    Attempt.objects.update(started_at=timezone.now() - timedelta(hours=1))
    return sweep, rigid, world.submit(gpu_count=2, priority=90)


def test_one_gives_up_a_task_and_the_other_is_stopped_for_one_that_needs_both(world: World) -> None:
    sweep, rigid, urgent = a_sweep_and_a_rigid_job(world)

    world.plan()

    assert (fresh(sweep).state, fresh(rigid).state) == ("running", "preempting")
    assert Task.objects.get(attempt__job=sweep, state="stopping").rank == 2
    assert fresh(urgent).reason_text.endswith(f"to end. Job {sweep.number} also releases tasks.")
    assert replay(cycle_id=Cycle.objects.latest("id").pk).identical
    for task in Task.objects.filter(attempt__job__in=[sweep, rigid]).exclude(rank__lt=2, attempt__job=sweep):
        say(task.node, task, state="stopped", exit_signal=15)
    world.plan()
    assert (fresh(urgent).state, fresh(rigid).state) == ("scheduled", "queued")


@pytest.mark.parametrize("whose", ["sweep", "rigid"])
def test_where_one_cannot_do_its_part_any_more_the_other_is_left_alone(
    world: World, monkeypatch: pytest.MonkeyPatch, whose: str
) -> None:
    sweep, rigid, urgent = a_sweep_and_a_rigid_job(world)
    gone = {"sweep": sweep, "rigid": rigid}[whose]
    real = apply_plan.apply_plan

    def one_has_changed(plan: Plan, context: ApplyContext) -> Applied:
        Job.objects.filter(pk=gone.pk).update(state="stopping")
        return real(plan, context)

    monkeypatch.setattr(apply_plan, "apply_plan", one_has_changed)
    world.plan()

    assert {fresh(job).state for job in (sweep, rigid) if job != gone} == {"running"}
    assert not Task.objects.filter(state="stopping").exists()
    assert fresh(urgent).state == "queued"
    Job.objects.filter(pk=gone.pk).update(state="running")


# ------------------------------------------------------------------ check


def a_resize(sweep: Job, urgent: Job, ranks: tuple[int, ...]) -> Resize:
    return Resize(
        job_id=sweep.number, attempt_id=Attempt.objects.get(job=sweep).pk, before=4, tasks=4 - len(ranks),
        ranks=ranks, for_job_id=urgent.number, for_generation=urgent.generation,
    )  # fmt: skip


def test_a_job_is_not_made_smaller_than_its_minimum(world: World) -> None:
    (sweep, _), urgent = an_old_sweep(world), fresh(world.submit(gpu_count=2, priority=90))
    fits, too_many = a_resize(sweep, urgent, (2, 3)), a_resize(sweep, urgent, (1, 2, 3))

    assert apply_resizes.check([fits]).accepted == (fits,)
    found = apply_resizes.check([fits, too_many])

    assert found.accepted == ()
    (refusal,) = found.refused.values()
    assert (refusal.job, refusal.code) == (urgent.number, VICTIM_CHANGED)
    assert refusal.message == f"Job {sweep.number} has changed and is not resized."


def test_no_job_gives_up_tasks_for_one_that_has_changed_or_was_refused_elsewhere(world: World) -> None:
    (sweep, _), urgent = an_old_sweep(world), fresh(world.submit(gpu_count=2, priority=90))
    planned = a_resize(sweep, urgent, (2, 3))

    assert apply_resizes.check([planned]).without({urgent.number}).accepted == ()
    Job.objects.filter(pk=urgent.pk).update(generation=urgent.generation + 1)
    found = apply_resizes.check([planned])

    assert found.refused[urgent.number].message == (
        f"Job {urgent.number} has changed: no job releases tasks for it."
    )
