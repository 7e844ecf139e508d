"""What a scrape says is what the rows say, and a broken promise shows."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
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
from scheduler.models import Attempt, Job, Node, Task
from tests.scheduler.state.small import SmallWorld

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
        assert found["muster_invariant_violations_total", name] == 0


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

    assert scraped()["muster_invariant_violations_total", name] == 1


def test_a_start_that_only_a_constraint_stopped_is_counted() -> None:
    world = a_busy_world()
    cycle = world.cluster.cycles.get()
    cycle.refused_count, cycle.refused = 1, [{"job": 1, "code": "RefusedByConstraint", "message": "…"}]
    cycle.save()

    assert scraped()["muster_invariant_violations_total", "refused_by_constraint"] == 1


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
    assert 'muster_invariant_violations_total{name="I1"} 0.0' in text
