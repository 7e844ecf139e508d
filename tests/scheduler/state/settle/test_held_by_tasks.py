"""A task has what it holds in its own row: written once at each end, read as an allocation, taken over from before."""

from __future__ import annotations

from datetime import timedelta
from importlib import import_module

import pytest
from django.db import IntegrityError, connection, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from infra.db.references import add_references
from scheduler.agent.protocol import Report
from scheduler.core.lifecycle import TaskState
from scheduler.models import Allocation, Attempt, Job, Node, Task
from scheduler.services.execution.reports import apply_reports
from scheduler.state.settle.locked_attempts import lock_and_read
from scheduler.state.settle.release import ReleasedRow
from scheduler.state.settle.settle import settle_locked
from tests.scheduler.state.small import SmallWorld, broken_invariants
from tests.support.factories import AllocationFactory, TaskFactory
from tests.support.roles import as_owner

migration = import_module("scheduler.migrations.0060_tasks_have_what_they_hold")
pytestmark = pytest.mark.django_db


@pytest.fixture
def world() -> SmallWorld:
    world = SmallWorld()
    world.node("n1", cpu_millis=8000, gpus=2)
    return world


def a_started_job(world: SmallWorld, **words: object) -> list[Task]:
    job = world.job(gpus=1, **words)
    world.plan()
    return list(Task.objects.filter(attempt__job=job).order_by("rank"))


def test_the_only_task_of_an_attempt_ends_and_releases_in_one_write(world: SmallWorld) -> None:
    (task,) = a_started_job(world)

    with CaptureQueriesContext(connection) as captured:
        apply_reports(node=task.node, reports=[Report(task=task.pk, epoch=1, state="succeeded", exit_code=0)])

    text = " ".join(query["sql"] for query in captured)
    allocation = Allocation.objects.get()
    assert text.count("UPDATE scheduler_task") == 2  # that, and the release of what has not ended alone
    assert (allocation.pk, allocation.released_at is not None, Job.objects.get().state) == (
        task.pk,
        True,
        "completed",
    )
    assert Node.objects.get().used_gpu_millis == 0
    assert broken_invariants() == []


def test_a_second_report_of_the_same_end_gives_nothing_back_twice(world: SmallWorld) -> None:
    (task,) = a_started_job(world)
    (other,) = a_started_job(world)
    report = Report(task=task.pk, epoch=1, state="failed", exit_code=3)

    apply_reports(node=task.node, reports=[report, report])
    apply_reports(node=task.node, reports=[report])

    assert Node.objects.get().used_gpu_millis == 1000
    assert list(Allocation.objects.held()) == [Allocation.objects.get(pk=other.pk)]
    assert broken_invariants() == []


def test_tasks_that_are_not_alone_keep_what_they_hold_until_the_attempt_ends(world: SmallWorld) -> None:
    first, second = a_started_job(world, tasks=2)

    apply_reports(node=first.node, reports=[Report(task=first.pk, epoch=1, state="succeeded", exit_code=0)])
    assert (Allocation.objects.held().count(), Node.objects.get().used_gpu_millis) == (2, 2000)
    apply_reports(node=second.node, reports=[Report(task=second.pk, epoch=1, state="succeeded", exit_code=0)])

    assert (Allocation.objects.held().count(), Node.objects.get().used_gpu_millis) == (0, 0)
    assert broken_invariants() == []


def test_what_was_released_of_an_attempt_that_goes_on_is_an_error(world: SmallWorld) -> None:
    (task,) = a_started_job(world)
    row = ReleasedRow(task.attempt_id, task.node_id, 1000, 0, 0, 1000, [], 0.0, 1.0, 0)

    with transaction.atomic(), pytest.raises(RuntimeError, match="goes on"):
        settle_locked(lock_and_read([task.attempt_id]), at=timezone.now(), released=[row])


def test_a_program_of_the_version_before_writes_by_the_view() -> None:
    task = TaskFactory()
    held = AllocationFactory(attempt=task.attempt, node=task.node, cpu_millis=3000, device_ids=[7])
    at = held.held_at + timedelta(seconds=5)
    Allocation.objects.filter(attempt=task.attempt).update(released_at=at)

    task.refresh_from_db()
    assert (held.pk, task.cpu_millis, task.device_ids, task.released_at) == (task.pk, 3000, [7], at)
    with pytest.raises(IntegrityError, match="allocation_ends_after_start"), transaction.atomic():
        Allocation.objects.update(released_at=held.held_at - timedelta(seconds=1))
    nobodys = Allocation(attempt=task.attempt, rank=1, node=task.node, cpu_millis=1, memory_mib=1, held_at=at)
    with pytest.raises(IntegrityError, match="there is no task of rank 1"), transaction.atomic():
        nobodys.save()


_BEFORE = f"""
CREATE TABLE before_the_swap AS SELECT id + 1000 AS id, attempt_id, rank, node_id, {", ".join(migration.NAMES)}
    FROM scheduler_allocation;
DROP VIEW scheduler_allocation;
DROP FUNCTION scheduler_allocation_added();
ALTER TABLE scheduler_task DROP CONSTRAINT allocation_not_negative, DROP CONSTRAINT allocation_ends_after_start;
UPDATE scheduler_task SET cpu_millis = 0, device_ids = '{{}}', held_at = NULL, released_at = NULL;
ALTER TABLE before_the_swap RENAME TO scheduler_allocation;
"""


def test_allocations_of_before_are_taken_over_and_one_without_a_task_stops_the_upgrade() -> None:
    now = timezone.now()
    ended = AllocationFactory(
        cpu_millis=2000, released_at=now, held_at=now - timedelta(hours=1), device_ids=[4]
    )
    running = AllocationFactory(cpu_millis=3000)
    with as_owner(), connection.cursor() as cursor:
        cursor.execute(_BEFORE)
        cursor.execute(add_references("scheduler_allocation", migration.REFERENCES))
        task = Task.objects.get(attempt=running.attempt)
        Task.objects.filter(pk=task.pk).update(rank=5)
        with pytest.raises(RuntimeError, match="1 allocations have no task"), transaction.atomic():
            migration.swap(None, None)
        Task.objects.filter(pk=task.pk).update(rank=0)

        migration.copy_ended(None, None)
        migration.swap(None, None)
        migration.swap(None, None)  # once more changes nothing

    taken = {a.attempt_id: (a.cpu_millis, a.device_ids, a.released_at) for a in Allocation.objects.all()}
    assert taken == {ended.attempt_id: (2000, [4], now), running.attempt_id: (3000, [], None)}
    assert set(Task.objects.values_list("state", flat=True)) == {TaskState.SUCCEEDED, TaskState.RUNNING}
    assert Attempt.objects.count() == 2
