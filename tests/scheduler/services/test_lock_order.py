"""Whoever takes several locks takes them in one order, so that no two wait for each other in a circle."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.db import connection, transaction
from django.utils import timezone

from scheduler.core.lifecycle import JobState
from scheduler.models import Attempt, Job, Node, SchedulerProfile, Task
from scheduler.services.accounting import holds
from scheduler.services.execution.reconcile import reconcile_all
from scheduler.services.jobs.datasets import declare_dataset
from scheduler.services.jobs.resize import resize_job
from scheduler.services.jobs.submit import submit_job
from scheduler.state.lifecycle.dependencies import lock_data
from scheduler.state.settle.locked_attempts import lock_and_read
from tests.scheduler.portal import a_portal
from tests.scheduler.state.settle.test_release import a_running_gang
from tests.scheduler.state.settle.test_release import world as _world
from tests.scheduler.state.small import SmallWorld
from tests.support.agents import World
from tests.support.locks import Apart

pytestmark = pytest.mark.django_db(transaction=True)

world = _world
__all__ = ["world"]


def test_a_job_that_waits_for_data_can_be_submitted_while_they_are_declared() -> None:
    portal = a_portal()
    first = portal.submit(depends_on=[{"data": "faces"}])
    after = {"command": "true", "depends_on": [first.number, {"data": "faces"}]}

    with transaction.atomic():
        lock_data({first.project_id: {"faces"}})  # whoever declares them has come so far
        other = Apart(lambda: submit_job(payload=after, by=portal.cast.owner))
        other.until_it_waits()
        declare_dataset(payload={"name": "faces", "project": first.project.slug}, by=portal.cast.owner)
    other.end()

    assert Job.objects.get(pk=first.pk).state == JobState.QUEUED
    assert list(Job.objects.exclude(pk=first.pk).values_list("state", flat=True)) == [JobState.BLOCKED]


def an_old_sweep(world: World) -> Job:
    """Four tasks, two would be enough; it has run for an hour, and the agent has not fetched the last one."""
    job, tasks = a_running_gang(world, "fail", min_tasks=2, elastic=True, priority=10)
    Attempt.objects.filter(job=job).update(started_at=timezone.now() - timedelta(hours=1))
    Task.objects.filter(pk=tasks[3].pk).update(state="assigned")
    return job


def nobody_else_holds(job: Job) -> None:
    Job.objects.select_for_update(nowait=True, of=("self",)).get(pk=job.pk)


def still_holding(job: Job) -> list[int]:
    return list(Attempt.objects.get(job=job).allocations.held().values_list("rank", flat=True))


def test_a_plan_that_makes_a_job_smaller_holds_no_job_while_it_waits_for_a_node(world: World) -> None:
    SchedulerProfile.objects.update(
        preemption_enabled=True, preemption={"protected_seconds": 0}, options={"resize_seconds": 600}
    )
    sweep = an_old_sweep(world)
    world.submit(gpu_count=2, priority=90)

    with transaction.atomic():
        list(Node.objects.select_for_update())  # whoever settles has come so far
        planner = Apart(world.plan)
        planner.until_it_waits()
        nobody_else_holds(sweep)
    planner.end()

    assert Task.objects.filter(attempt__job=sweep, state__in=["stopping", "stopped"]).count() == 2
    assert still_holding(sweep) == [0, 1, 2]


def test_nor_does_a_person_who_makes_it_smaller(world: World) -> None:
    sweep = an_old_sweep(world)

    def resize() -> None:
        with transaction.atomic():  # as with an Idempotency-Key
            resize_job(job=Job.objects.get(pk=sweep.pk), tasks=3, by=world.user)

    with transaction.atomic():
        list(Node.objects.select_for_update())
        person = Apart(resize)
        person.until_it_waits()
        nobody_else_holds(sweep)
    person.end()

    assert still_holding(sweep) == [0, 1, 2]


def impatient(do: Callable[[], object]) -> Callable[[], None]:
    """The same, but whoever has to wait for a lock fails."""

    def asked() -> None:
        with connection.cursor() as cursor:
            cursor.execute("SET lock_timeout = '2s'")
        do()

    return asked


def test_a_plan_never_waits_for_a_gang_that_somebody_else_is_changing() -> None:
    small = SmallWorld()
    small.node("n1", gpus=2)
    small.node("n2", gpus=2)
    small.job("old", gpus=2)
    small.plan()
    gang = small.job("gang", tasks=2, gpus=2, assembly_timeout_seconds=600)

    with transaction.atomic():
        Job.objects.select_for_update(of=("self",)).get(pk=gang.pk)
        Apart(impatient(small.plan)).end()
    gang.refresh_from_db()
    assert gang.state == JobState.QUEUED

    small.plan()
    gang.refresh_from_db()
    assert gang.state == JobState.RESERVED
    Job.objects.filter(pk=gang.pk).update(assembly_until_at=timezone.now() - timedelta(seconds=1))
    with transaction.atomic():
        Job.objects.select_for_update(of=("self",)).get(pk=gang.pk)
        Apart(impatient(small.plan)).end()
    gang.refresh_from_db()
    assert gang.state == JobState.RESERVED
    small.plan()
    gang.refresh_from_db()
    assert (gang.state, gang.assemblies_failed) == (JobState.QUEUED, 1)


def test_nor_does_whoever_stops_what_is_over_its_time(world: World) -> None:
    job, _ = a_running_gang(world, "fail", time_limit=60)
    Attempt.objects.update(started_at=timezone.now() - timedelta(hours=1))

    with transaction.atomic():
        Job.objects.select_for_update(of=("self",)).get(pk=job.pk)  # as one that stops it for another
        Apart(impatient(reconcile_all)).end()

    assert reconcile_all().overdue_attempts == 1


def test_who_writes_lines_of_the_ledger_waits_for_the_lock_of_the_job(world: World) -> None:
    """An attempt has no lock of its own: that of its job stands for it."""
    job, _ = a_running_gang(world, "fail")
    attempt = Attempt.objects.get(job=job)
    found: list[set[int]] = []

    def hold() -> None:
        with transaction.atomic():
            found.append(holds.lock([attempt.pk]))

    with transaction.atomic():
        nobody_else_holds(job)
        other = Apart(hold)
        other.until_it_waits()
        Attempt.objects.filter(pk=attempt.pk).update(state="failed", ended_at=timezone.now())
    other.end()

    assert found == [set()]


def test_who_settles_locks_the_job_and_no_row_of_the_attempt(world: World) -> None:
    job, _ = a_running_gang(world, "fail")
    attempt = Attempt.objects.get(job=job)

    def lock_attempt() -> None:
        with transaction.atomic():
            Attempt.objects.select_for_update(nowait=True, of=("self",)).get(pk=attempt.pk)

    with transaction.atomic():
        lock_and_read([attempt.pk])
        Apart(lock_attempt).end()
        other = Apart(transaction.atomic(lambda: lock_and_read([attempt.pk])))
        other.until_it_waits()
        assert other.is_alive()
    other.end()
