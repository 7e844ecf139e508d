"""The usage of running jobs: points that get coarser, whose samples count, what the database refuses."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import IntegrityError, connection
from django.utils import timezone

from scheduler.core.lifecycle import JobState
from scheduler.models import USAGE_POINTS, Attempt, AttemptUsage, Task
from scheduler.services.jobs.usage import STEP_SECONDS, Sample, Series, take_usage, usage_of
from tests.support.factories import AllocationFactory, AttemptFactory, JobFactory, NodeFactory, TaskFactory

START = timezone.now()


def a_run(*, tasks: int = 1, **fields) -> Attempt:
    """A running attempt with a task on a node of its own for each of `tasks`."""
    job = JobFactory(state=JobState.RUNNING, epoch=1, tasks=tasks, cpu_millis=4000, memory_mib=8192)
    attempt = AttemptFactory(job=job, started_at=START, **fields)
    for rank in range(tasks):
        node = NodeFactory()
        AllocationFactory(attempt=attempt, rank=rank, node=node, cpu_millis=4000, memory_mib=8192)
        TaskFactory(attempt=attempt, rank=rank, node=node, state="running")
    return attempt


def take(task: Task, cpu: int, memory: int, *gpu: int, after: float, epoch: int = 1) -> None:
    sample = Sample(task.pk, epoch, cpu, memory, *gpu)
    take_usage(node=task.node, samples=[sample], at=START + timedelta(seconds=after))


def test_points_become_twice_as_long_when_there_is_no_room() -> None:
    series = Series()
    for number in range(USAGE_POINTS):
        series.add(Sample(1, 1, 100 * number, number, 50, 7), at_seconds=10 * number + 5)
    assert (series.step_seconds, len(series.samples)) == (STEP_SECONDS, USAGE_POINTS)

    series.add(Sample(1, 1, 0, 1, 50, 7), at_seconds=10 * USAGE_POINTS)

    assert (series.step_seconds, len(series.samples)) == (2 * STEP_SECONDS, USAGE_POINTS // 2 + 1)
    assert (series.samples[0], series.cpu_millis[0], series.memory_mib[0]) == (2, 100, 1)
    assert (series.cpu_millis[59], series.memory_mib[59], series.gpu_percent[59]) == (23_700, 119, 100)
    assert sum(series.samples) == USAGE_POINTS + 1


def test_a_series_stays_small_however_long_the_attempt_runs() -> None:
    series = Series()
    for day in range(1, 400):
        series.add(Sample(1, 1, 1000, 10), at_seconds=86_400 * day)
    assert len(series.samples) <= USAGE_POINTS
    assert sum(series.samples) == 399


@pytest.mark.django_db
def test_a_sample_is_a_point_beside_what_was_given() -> None:
    task = a_run().tasks.get()

    take(task, 3200, 4096, after=12)
    take(task, 1000, 1024, 80, 500, after=25)

    used = usage_of(task.attempt.job)
    assert used is not None
    assert [tuple(point) for point in used.points] == [
        (10, 3200, 4096, None, None),
        (20, 1000, 1024, 80, 500),
    ]
    assert (used.cpu_millis, used.memory_mib, used.tasks, used.step_seconds) == (4000, 8192, 1, 10)
    assert used.measures_gpus


@pytest.mark.django_db
def test_tasks_of_a_gang_are_a_mean_and_memory_is_of_the_largest() -> None:
    one, two = a_run(tasks=2).tasks.order_by("rank")

    take(one, 4000, 100, after=11)
    take(two, 1000, 900, after=14)

    used = usage_of(one.attempt.job)
    assert used is not None
    assert [tuple(point) for point in used.points] == [(10, 2500, 900, None, None)]


@pytest.mark.django_db
def test_samples_of_other_nodes_epochs_and_ended_attempts_are_dropped() -> None:
    live, ended = a_run().tasks.get(), a_run(state="succeeded", ended_at=START).tasks.get()
    stranger = Task(pk=live.pk, node=NodeFactory())

    take(live, 1, 1, after=20, epoch=2)
    take(stranger, 1, 1, after=20)
    take(ended, 1, 1, after=20)

    assert not AttemptUsage.objects.exists()


@pytest.mark.django_db
def test_samples_of_many_tasks_need_no_more_statements(django_assert_num_queries) -> None:
    tasks = [a_run().tasks.get() for _ in range(5)]
    node = tasks[0].node
    Task.objects.update(node=node)
    samples = [Sample(task.pk, 1, 1000, 10) for task in tasks]

    with django_assert_num_queries(6):  # four, and the savepoint of this test
        take_usage(node=node, samples=samples, at=START + timedelta(seconds=20))

    assert AttemptUsage.objects.count() == 5


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("samples", [1] * (USAGE_POINTS + 1)),
        ("cpu_millis", [1, 2]),
        ("gpu_samples", [1, 1]),
        ("step_seconds", 0),
    ],
)
def test_the_database_keeps_a_series_small_and_whole(column: str, value: object) -> None:
    task = a_run().tasks.get()
    take(task, 1, 1, after=5)
    with pytest.raises(IntegrityError), connection.cursor():
        AttemptUsage.objects.update(**{column: value})
