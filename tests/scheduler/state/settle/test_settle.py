"""What an attempt held comes back once, whoever settles it and however often."""

from __future__ import annotations

import threading

import pytest
from django.db import connection
from django.test import Client
from django.utils import timezone

from quotas.models import QuotaResource
from scheduler import metrics
from scheduler.core.lifecycle import AttemptState, JobState, StopReason, TaskState
from scheduler.models import Attempt, Job, Node, Task
from scheduler.services.accounting import metric_counts
from scheduler.state.settle.settle import attempts_to_settle, end_attempt, settle_many
from tests.support.agents import World
from tests.support.factories import NodeFactory, QuotaFactory


@pytest.fixture
def world(db: None) -> World:
    world = World.make()
    NodeFactory(cluster=world.cluster, name="n1", gpus=4)
    return world


def a_started_job(world: World, **fields: object) -> tuple[Job, Attempt]:
    job = world.submit("true", **fields)
    world.plan()
    job.refresh_from_db()
    assert job.state == JobState.SCHEDULED, job.reason_text
    return job, job.attempts.get()


def end_tasks(attempt: Attempt, state: TaskState = TaskState.SUCCEEDED, exit_code: int = 0) -> None:
    Task.objects.filter(attempt=attempt).update(state=state, exit_code=exit_code)


def test_an_attempt_is_settled_when_all_its_tasks_have_ended(world: World) -> None:
    for resource in QuotaResource.values:
        QuotaFactory(project=world.project, resource=resource, hard=10**6)
    job, attempt = a_started_job(world, tasks=2, gpu_count=2)
    node = Node.objects.get()
    assert (node.used_cpu_millis, node.used_gpu_millis) == (2000, 4000)

    Task.objects.filter(attempt=attempt, rank=0).update(state=TaskState.SUCCEEDED)
    assert settle_many([attempt.pk]) == []
    end_tasks(attempt)
    assert attempts_to_settle() == [attempt.pk]
    settled = settle_many([attempt.pk])

    assert [(s.attempt_id, s.verdict.job) for s in settled] == [(attempt.pk, JobState.COMPLETED)]
    job.refresh_from_db()
    assert (job.state, job.exit_code) == ("completed", 0)
    world.assert_nothing_is_held()
    assert attempts_to_settle() == []


def test_a_failure_is_known_by_its_class_to_the_job_its_event_filters_and_metrics(
    world: World, client: Client
) -> None:
    metric_counts.count()
    grown, attempt = a_started_job(
        world, max_restarts=1, restart_rules=[{"on": "out-of-memory", "action": "restart"}]
    )
    end_tasks(attempt, TaskState.FAILED, exit_code=137)
    Task.objects.filter(attempt=attempt).update(failure_class="out-of-memory")
    wrong, other = a_started_job(world)
    end_tasks(other, TaskState.FAILED, exit_code=3)

    settle_many([attempt.pk, other.pk])

    grown.refresh_from_db()
    attempt.refresh_from_db()
    assert (grown.state, grown.failure_class, attempt.failure_class) == (
        "queued",
        "out-of-memory",
        "out-of-memory",
    )
    wrong.refresh_from_db()
    assert (wrong.state, wrong.failure_class) == ("failed", "user-error")
    assert wrong.events.get(kind="job.failed").details["failure_class"] == "user-error"
    client.force_login(world.user)
    found = {
        words: [job["number"] for job in client.get(f"/api/v1/jobs?failure_class={words}").json()["results"]]
        for words in ("out-of-memory", "user-error", "time-limit")
    }
    assert found == {"out-of-memory": [grown.number], "user-error": [wrong.number], "time-limit": []}
    metric_counts.count()
    [family] = [one for one in metrics.read_metrics() if one.name == "muster_attempts_failed"]
    counts = {sample.labels["failure_class"]: sample.value for sample in family.samples}
    assert (counts["out-of-memory"], counts["user-error"], counts["node-lost"]) == (1, 1, 0)


def test_settling_again_changes_nothing(world: World) -> None:
    job, attempt = a_started_job(world, gpu_count=1)
    end_tasks(attempt)
    settle_many([attempt.pk])
    job.refresh_from_db()
    generation, events = job.generation, job.events.count()

    assert settle_many([attempt.pk]) == []
    assert end_attempt(attempt_id=attempt.pk, epoch=1, lost_text="Too late.") is None

    job.refresh_from_db()
    assert (job.generation, job.events.count(), job.state) == (generation, events, "completed")
    world.assert_nothing_is_held()


@pytest.mark.parametrize(
    ("tasks", "state"),
    [
        (("assigned", "assigned"), "queued"),
        (("assigned", "starting"), "failed"),
        (("running", "assigned"), "failed"),
    ],
)
def test_one_that_runs_at_most_once_waits_again_only_where_no_node_was_given_any_of_it(
    world: World, tasks: tuple[str, str], state: str
) -> None:
    job, attempt = a_started_job(world, tasks=2, restart_policy="never")
    for rank, task in enumerate(tasks):
        Task.objects.filter(attempt=attempt, rank=rank).update(state=task)

    end_attempt(attempt_id=attempt.pk, epoch=1, lost_text="Node n1 stopped responding.")

    job.refresh_from_db()
    assert job.state == state
    world.assert_nothing_is_held()


def test_the_wrong_epoch_ends_nothing(world: World) -> None:
    job, attempt = a_started_job(world)

    assert end_attempt(attempt_id=attempt.pk, epoch=2, lost_text="No such epoch.") is None

    job.refresh_from_db()
    assert job.state == "scheduled"


def test_a_share_of_a_gpu_comes_back_as_a_share(world: World) -> None:
    _, first = a_started_job(world, gpu_count=1, gpu_share=0.25)
    _, second = a_started_job(world, gpu_count=1, gpu_share=0.5)
    node = Node.objects.get()
    assert node.used_gpu_millis == 750

    end_tasks(first)
    settle_many([first.pk])
    node.refresh_from_db()
    assert node.used_gpu_millis == 500
    assert sorted(device.used_millis for device in node.devices.all())[-1] == 500
    end_tasks(second)
    settle_many([second.pk])

    world.assert_nothing_is_held()


def test_many_end_in_few_statements(world: World, django_assert_max_num_queries: object) -> None:
    attempts = [a_started_job(world)[1] for _ in range(12)]
    for attempt in attempts:
        end_tasks(attempt)

    with django_assert_max_num_queries(7):  # type: ignore[operator]
        settled = settle_many([attempt.pk for attempt in attempts])

    assert len(settled) == 12
    world.assert_nothing_is_held()


def test_a_quota_line_made_meanwhile_does_not_go_below_nothing(world: World) -> None:
    _, attempt = a_started_job(world)
    line = QuotaFactory(project=world.project, resource=QuotaResource.CPU_MILLIS)
    end_tasks(attempt)

    settle_many([attempt.pk])

    line.refresh_from_db()
    assert line.used == 0


def test_a_lost_attempt_loses_its_live_tasks_only(world: World) -> None:
    job, attempt = a_started_job(world, tasks=2)
    Task.objects.filter(attempt=attempt, rank=0).update(state=TaskState.SUCCEEDED)
    Task.objects.filter(attempt=attempt, rank=1).update(state=TaskState.RUNNING)

    settled = end_attempt(attempt_id=attempt.pk, epoch=1, lost_text="Node n1 stopped responding.")

    assert settled is not None
    assert settled.verdict.attempt == AttemptState.LOST
    tasks = list(attempt.tasks.order_by("rank").values_list("state", "end_text"))
    assert tasks == [("succeeded", ""), ("lost", "Node n1 stopped responding.")]
    job.refresh_from_db()
    assert (job.state, job.reason_code) == ("queued", "Backoff")
    assert "Node n1 stopped responding." in job.reason_text


@pytest.mark.django_db(transaction=True)
def test_several_settle_the_same_at_once(transactional_db: None) -> None:
    world = World.make()
    NodeFactory(cluster=world.cluster, name="n1", gpus=4)
    attempts = [a_started_job(world, gpu_count=1)[1] for _ in range(4)]
    for attempt in attempts:
        end_tasks(attempt)
    ids = [attempt.pk for attempt in attempts]
    settled: list[int] = []
    problems: list[BaseException] = []

    def settle(order: list[int]) -> None:
        try:
            settled.extend(s.attempt_id for s in settle_many(order))
        except BaseException as error:
            problems.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=settle, args=[ids[n:] + ids[:n]]) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert problems == []
    assert sorted(settled) == ids
    world.assert_nothing_is_held()


def test_who_starts_again_at_once_waits_for_us_and_for_no_clock(world: World) -> None:
    job, attempt = a_started_job(world)
    Attempt.objects.filter(pk=attempt.pk).update(
        stop_reason=StopReason.PREEMPTED, stop_asked_at=timezone.now()
    )
    end_tasks(attempt)
    Task.objects.filter(attempt=attempt).update(state=TaskState.FAILED, exit_code=1)

    settle_many([attempt.pk])

    job.refresh_from_db()
    assert (job.state, job.reason_code, job.reason_category) == ("queued", "NotEvaluatedYet", "system")
