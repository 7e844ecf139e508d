"""What a scrape says is what the rows say, and a broken promise shows."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import OperationalError, connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from prometheus_client.metrics_core import Metric

from quotas.models import Budget
from scheduler import metrics
from scheduler.core.lifecycle import JobState
from scheduler.models import Attempt, Device, Job, Node, Task
from scheduler.services.accounting import metric_counts
from tests.scheduler.state.small import SmallWorld
from tests.support.factories import (
    AttemptFactory,
    JobEventFactory,
    JobFactory,
    QueueFactory,
    SchedulerProfileFactory,
)

pytestmark = pytest.mark.django_db


def scraped(collector: metrics.Collector | None = None) -> dict[tuple[str, ...], float]:
    """Every sample, by its name and label values."""
    return {
        (sample.name, *sample.labels.values()): sample.value
        for metric in (collector or metrics.Collector()).collect()
        for sample in metric.samples
    }


def a_busy_world() -> SmallWorld:
    world = SmallWorld()
    world.node("n1", gpus=2)
    world.node("n2", draining=True, gpus=1)
    world.quota("gpu_millis", 4000, soft=3000)
    world.job(gpus=1)
    world.job(gpus=8)
    world.job(state=JobState.COMPLETED, completed_at=timezone.now())
    world.plan()
    return world


def test_the_figures_are_those_of_the_rows() -> None:
    world = a_busy_world()
    queue, project = world.queue.slug, world.project.slug

    found = scraped()

    assert found["muster_jobs", "scheduled", queue] == found["muster_jobs", "queued", queue] == 1
    assert found["muster_jobs_pending", "fix", "InvalidSpec", queue] == 1
    assert found["muster_gpus", "used", "A100"] == found["muster_gpus", "free", "A100"] == 1
    assert found["muster_gpus", "unavailable", "A100"] == 1
    assert found["muster_nodes", "up"] == found["muster_nodes", "draining"] == 1
    assert found["muster_quota_limit", project, "gpu_millis", "hard"] == 4000
    assert found["muster_quota_used", project, "gpu_millis"] == 1000
    assert 0 <= found["muster_agent_heartbeat_age_seconds", "n1"] < 60
    assert 0 < found["muster_schedule_cycle_seconds", world.cluster.slug, "plan"] < 60
    assert found[("muster_rows_readable",)] == 1
    for name in metrics.INVARIANTS:
        assert found["muster_invariant_violations", name] == 0


def started(
    job: Job, *, epoch: int, came: datetime, placed: int, began: int, event: dict[str, Any]
) -> Attempt:
    """An attempt that got nodes and began these seconds after `came`, and the event that says it."""
    attempt = AttemptFactory(
        job=job, epoch=epoch, scheduled_at=came + timedelta(seconds=placed), state="failed",
        started_at=came + timedelta(seconds=began), ended_at=came + timedelta(seconds=began + 60),
    )  # fmt: skip
    JobEventFactory(job=job, epoch=epoch, **event)
    return attempt


def test_waits_ends_and_failures_are_counted_once_and_outlive_their_rows() -> None:
    came = timezone.now() - timedelta(hours=1)
    queue, empty = QueueFactory(slug="gpu"), QueueFactory(slug="empty")
    job = JobFactory(
        queue=queue, created_at=came, state=JobState.FAILED, epoch=2, completed_at=timezone.now()
    )
    JobEventFactory(job=job, kind="job.failed")  # before counting began
    metric_counts.count()

    started(
        job, epoch=1, came=came, placed=2, began=40, event={"kind": "job.running", "details": {"node": "n1"}}
    )
    failed = {"attempt": "failed", "failure_class": "out-of-memory"}
    JobEventFactory(job=job, epoch=1, kind="attempt.failed", details=failed)
    # The second attempt waits from the end of the first, and its start is written with its end.
    again = came + timedelta(seconds=100)
    ended = {"attempt": "failed", "failure_class": "node-lost", "node": "n1", "stop_reason": "drained"}
    started(job, epoch=2, came=again, placed=1, began=1, event={"kind": "job.failed", "details": ended})
    metric_counts.count()
    metric_counts.add_one(metric_counts.CYCLES_FAILED, str(queue.cluster_id))
    metric_counts.add_by_queue(metric_counts.BACKFILLED, [queue.pk, queue.pk])
    counted = scraped()
    Job.objects.all().delete()
    metric_counts.count()
    found = scraped()

    assert found == counted | {key: value for key, value in found.items() if key[0] == "muster_jobs"}
    wait = "muster_queue_wait_seconds"
    assert [found[f"{wait}_bucket", "gpu", bound] for bound in ("1.0", "30.0", "60.0", "+Inf")] == [
        1,
        1,
        2,
        2,
    ]
    assert (found[f"{wait}_count", "gpu"], found[f"{wait}_sum", "gpu"]) == (2, 41)
    latency = "muster_scheduling_latency_seconds"
    assert [found[f"{latency}_bucket", "gpu", bound] for bound in ("1.0", "2.0")] == [1, 2]
    assert found["muster_jobs_ended_total", "gpu", "failed"] == 1
    for failure in ("out-of-memory", "node-lost"):
        assert found["muster_attempts_failed_total", "gpu", failure] == 1
    assert found["muster_preemptions_total", "gpu", "drain"] == 1
    assert found["muster_schedule_cycles_failed_total", queue.cluster.slug] == 1
    assert found["muster_backfilled_starts_total", "gpu"] == 2
    assert found["muster_backfilled_starts_total", "empty"] == 0
    # A queue without jobs has its series.
    assert found[f"{wait}_count", empty.slug] == found["muster_jobs_ended_total", empty.slug, "failed"] == 0
    assert found["muster_jobs", "queued", empty.slug] == found["muster_jobs", "running", empty.slug] == 0


def test_finding_40_a_start_by_backfill_is_counted_by_its_queue() -> None:
    """Four GPUs run on for an hour, the head wants eight, and what is over in five minutes starts before it."""
    world = SmallWorld()
    world.cluster.profile = SchedulerProfileFactory(backfill="easy")
    world.cluster.save()
    world.node("n1", gpus=8)
    world.job(gpus=4, time_limit_seconds=3600)
    world.plan()
    world.job(gpus=8, time_limit_seconds=3600)
    world.job(gpus=4, time_limit_seconds=300)

    assert world.plan().started == 1

    assert scraped()["muster_backfilled_starts_total", world.queue.slug] == 1


def test_what_nodes_have_given_and_how_much_of_the_idle_gpus_is_fragmented() -> None:
    world = a_busy_world()
    Device.objects.filter(node__name="n1", used_millis__gt=0).update(utilisation_percent=80)

    found = scraped()

    each = {what: found["muster_node_gpus", "n1", what] for what in ("total", "allocated", "active")}
    assert each == {"total": 2, "allocated": 1, "active": 1}
    node = Node.objects.get(name="n1")
    assert found["muster_node_cpu_cores", "n1", "allocated"] == node.used_cpu_millis / 1000 > 0
    assert found["muster_node_memory_bytes", "n1", "total"] == node.memory_mib_capacity * 2**20
    # One of the two GPUs of n1 is idle, beside one that is used; n2 is draining.
    assert found["muster_gpu_fragmentation_ratio", world.cluster.slug] == 1


BREAKS: dict[str, tuple[str, Callable[[], Any]]] = {
    "one GPU held twice": ("I1", lambda: hold_again()),
    "a counter that is off": ("I2", lambda: Node.objects.filter(name="n1").update(used_cpu_millis=7)),
    "a live attempt of another epoch": ("I5", lambda: Attempt.objects.update(epoch=9)),
    "a job that runs without an attempt": (
        "I5", lambda: Job.objects.filter(state="queued").update(state=JobState.RUNNING)
    ),
    "something held by what is over": ("I6", lambda: Attempt.objects.update(state="failed")),
    "a run on a budget without a hold": ("I8", lambda: a_budget_that_was_there()),
}  # fmt: skip


def a_budget_that_was_there() -> None:
    """And counted nothing when the attempt began, an hour ago."""
    now = timezone.now()
    budget = Budget.objects.create(
        name="GPUs", project=Job.objects.first().project, resource="gpu_milli_seconds", amount=1, period="month",
        starts_at=now,
    )  # fmt: skip
    Budget.objects.filter(pk=budget.pk).update(created_at=now - timedelta(hours=2))
    Attempt.objects.update(scheduled_at=now - timedelta(hours=1))


def hold_again() -> None:
    task = Task.objects.get()
    task.pk, task.rank = None, 1
    task.save()


@pytest.mark.parametrize("how", BREAKS)
def test_a_broken_promise_is_counted(how: str) -> None:
    a_busy_world()
    name, break_it = BREAKS[how]

    break_it()

    assert scraped()["muster_invariant_violations", name] == 1


def test_a_start_that_only_a_constraint_stopped_is_counted() -> None:
    world = a_busy_world()
    cycle = world.cluster.cycles.get()
    cycle.refused_count, cycle.refused = 1, [{"job": 1, "code": "RefusedByConstraint", "message": "…"}]
    cycle.save()

    assert scraped()["muster_invariant_violations", "refused_by_constraint"] == 1


def test_scrapes_within_five_seconds_read_the_rows_once() -> None:
    a_busy_world()
    collector = metrics.Collector()
    with CaptureQueriesContext(connection) as first:
        list(collector.collect())
    with CaptureQueriesContext(connection) as second:
        list(collector.collect())

    assert (len(first) > 5, len(second)) == (True, 0)


def test_without_the_database_a_scrape_still_answers() -> None:
    def away() -> list[Metric]:
        raise OperationalError("the server is away")

    assert scraped(metrics.Collector(read=away)) == {("muster_rows_readable",): 0}


def test_the_page_shows_them(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "FRESH_SECONDS", 0)
    a_busy_world()
    settings.MUSTER_METRICS_TOKEN = "a-token"

    text = Client().get("/metrics", headers={"Authorization": "Bearer a-token"}).content.decode()

    assert 'muster_nodes{state="draining"} 1.0' in text
    assert 'muster_invariant_violations{name="I1"} 0.0' in text
