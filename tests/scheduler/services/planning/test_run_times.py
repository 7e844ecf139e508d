"""Jobs without a time limit through the doors: their runs are predicted, and heads behind them keep their promise."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone
from rest_framework.test import APIClient

from scheduler.core.forecast.runtimes import Prediction, predict
from scheduler.core.lifecycle import AttemptState, JobState
from scheduler.models import Attempt, Job, Node, Queue, RuntimePrediction, SchedulerProfile
from scheduler.services.cluster.defaults import ensure_defaults
from scheduler.services.planning import forecasts
from scheduler.services.planning.cycles import run_cycle
from scheduler.services.planning.forecasts import predict_run_times
from scheduler.state.load.snapshots import load_snapshot
from tests.scheduler.portal import Portal, a_portal
from tests.support.factories import AttemptFactory, JobFactory, NodeFactory, a_token

pytestmark = pytest.mark.django_db

DAY = 86_400


@pytest.fixture(autouse=True)
def _no_history() -> None:
    forecasts.forget_history()


@pytest.fixture
def portal(db: None) -> Portal:
    """A portal as it is installed, and one node with 8 GPUs."""
    portal = a_portal()
    Node.objects.update(cordoned=True)
    NodeFactory(cluster=portal.cluster, name="n3", partition=portal.queue.cluster.partitions.get(), gpus=8)
    return portal


@pytest.fixture
def ask(portal: Portal) -> Callable[..., Any]:
    client = APIClient(raise_request_exception=False)
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {a_token(portal.cast.owner, 'admin')}")

    def call(method: str, path: str, body: Any = None) -> Any:
        answer = getattr(client, method)(f"/api/v1{path}", body, format="json")
        assert answer.status_code < 300, answer.json()
        return answer.json()

    return call


def ran(portal: Portal, name: str, *seconds: int) -> None:
    """Earlier runs of the owner, the last one the latest."""
    at = timezone.now() - timedelta(hours=5)
    for one in seconds:
        job = JobFactory(
            name=name, queue=portal.queue, user=portal.cast.owner, state=JobState.COMPLETED, completed_at=at
        )
        AttemptFactory(
            job=job, state=AttemptState.SUCCEEDED, started_at=at, ended_at=at + timedelta(seconds=one)
        )


def plan(portal: Portal) -> None:
    run_cycle(cluster_id=portal.cluster.pk, trigger="test")


def the_scenario(portal: Portal, ask: Callable[..., Any]) -> tuple[Any, Any, Any]:
    """Finding 15: four of eight GPUs run without a limit, a head wants all, a later job wants four for 300 seconds."""
    body = {"command": "true", "gpu_count": 4}
    numbers = [ask("post", "/jobs", body | {"name": "open"})["number"]]
    plan(portal)
    numbers.append(ask("post", "/jobs", body | {"name": "head", "gpu_count": 8, "time_limit": 600})["number"])
    numbers.append(ask("post", "/jobs", body | {"name": "later", "time_limit": 300})["number"])
    plan(portal)
    opened, head, later = (ask("get", f"/jobs/{number}") for number in numbers)
    assert opened["state"] == "running" or opened["state_detail"] == "scheduled"
    return opened, head, later


def due_in(head: dict[str, Any]) -> float:
    assert head["expected_start"] is not None
    at = timezone.datetime.fromisoformat(head["expected_start"])  # type: ignore[attr-defined]
    return float((at - timezone.now()).total_seconds())


def test_finding_15_a_head_behind_a_job_without_a_limit_is_not_delayed(portal: Portal, ask: Any) -> None:
    ran(portal, "open", 100, 110, 120)
    predict_run_times(cluster_id=portal.cluster.pk)

    opened, head, later = the_scenario(portal, ask)

    assert opened["expected_runtime"] == {
        "seconds": 120, "planned_seconds": 120, "runs": 3, "version": None, "source": "from 3 earlier runs",
    }  # fmt: skip
    assert 90 < due_in(head) <= 120
    assert later["state"] == "queued"
    assert f"job {head['number']} ahead is expected to start" in later["reason"]["text"]


def test_a_job_without_earlier_runs_counts_as_long(portal: Portal, ask: Any) -> None:
    opened, head, later = the_scenario(portal, ask)

    assert opened["expected_runtime"]["planned_seconds"] == DAY
    assert opened["expected_runtime"]["source"] == "site default, no earlier runs"
    assert DAY - 60 < due_in(head) <= DAY
    assert later["state_detail"] == "scheduled"  # it is over long before


def test_how_long_it_counts_is_a_setting(portal: Portal, ask: Any, settings: Any) -> None:
    settings.UNLIMITED_JOB_SECONDS = 200

    _, head, later = the_scenario(portal, ask)

    assert 150 < due_in(head) <= 200
    assert later["state"] == "queued"


def test_a_queues_default_comes_before_every_prediction(portal: Portal, ask: Any) -> None:
    ran(portal, "open", 100, 110, 120)
    predict_run_times(cluster_id=portal.cluster.pk)
    Queue.objects.filter(pk=portal.queue.pk).update(default_wall_seconds=1000)

    opened, head, _ = the_scenario(portal, ask)

    assert (opened["time_limit"], opened["expected_runtime"]) == (1000, None)
    assert 900 < due_in(head) <= 1000


def test_a_prediction_stops_no_job_and_stays_as_it_was_at_the_start(portal: Portal, ask: Any) -> None:
    ran(portal, "open", 10, 10)
    predict_run_times(cluster_id=portal.cluster.pk)
    opened, _, _ = the_scenario(portal, ask)
    attempt = Attempt.objects.get(job=opened["number"])
    Attempt.objects.filter(pk=attempt.pk).update(
        state=AttemptState.RUNNING, started_at=timezone.now() - timedelta(seconds=25)
    )
    Job.objects.filter(pk=opened["number"]).update(state=JobState.RUNNING, started_at=timezone.now())
    RuntimePrediction.objects.update(planned_seconds=5, usual_seconds=5)

    plan(portal)

    attempt.refresh_from_db()
    running = load_snapshot(cluster_id=portal.cluster.pk).snapshot.running
    assert running.predicted_seconds.tolist() == [10]
    assert (attempt.stop_asked_at, attempt.predicted_from_runs) == (None, 2)
    # It has run for 25 seconds: 10 were doubled twice.
    assert 10 < due_in(ask("get", f"/jobs/{Job.objects.get(request__name='head').number}")) <= 15


def test_a_waiting_job_shows_what_is_expected_of_it(portal: Portal, ask: Any) -> None:
    ran(portal, "train", 600, 700, 720, 740, 900, 700, 720, 730)
    predict_run_times(cluster_id=portal.cluster.pk)
    ran(portal, "train", 5000)
    assert predict_run_times(cluster_id=portal.cluster.pk) == 1
    number = ask("post", "/jobs", {"command": "true", "name": "train", "gpu_count": 8})["number"]

    found = ask("get", f"/jobs/{number}")["expected_runtime"]

    assert (found["seconds"], found["runs"], found["version"]) == (720, 9, 2)
    assert found["planned_seconds"] == 5000


def test_runs_of_others_and_of_other_names_say_nothing(portal: Portal, ask: Any) -> None:
    ran(portal, "train", 600, 700)
    predict_run_times(cluster_id=portal.cluster.pk)
    Job.objects.filter(request__name="train").update(user=portal.cast.stranger)

    assert predict_run_times(cluster_id=portal.cluster.pk) == 1

    number = ask("post", "/jobs", {"command": "true", "name": "train", "gpu_count": 8})["number"]
    assert ask("get", f"/jobs/{number}")["expected_runtime"]["runs"] == 0
    assert list(RuntimePrediction.objects.values_list("user_id", flat=True)) == [portal.cast.stranger.pk]


def test_equal_runs_write_nothing_again(portal: Portal) -> None:
    ran(portal, "train", 600, 700)

    assert [predict_run_times(cluster_id=portal.cluster.pk) for _ in range(2)] == [1, 0]
    assert RuntimePrediction.objects.get().version == 1


def test_easy_is_the_default_of_a_new_installation_and_an_old_one_keeps_its_own(
    db: None, settings: Any
) -> None:
    ensure_defaults()
    assert SchedulerProfile.objects.get(name="default").backfill == "easy"

    SchedulerProfile.objects.update(backfill="none")
    ensure_defaults()
    assert SchedulerProfile.objects.get(name="default").backfill == "none"

    SchedulerProfile.objects.all().delete()
    settings.SCHEDULING_BACKFILL = "conservative"
    ensure_defaults()
    assert SchedulerProfile.objects.get(name="default").backfill == "conservative"


@pytest.mark.parametrize(
    ("seconds", "found"),
    [
        ([], None),
        ([60], None),
        ([60, 40], Prediction(2, 40, 60)),
        ([10] * 19 + [500], Prediction(20, 10, 11)),  # one long run long ago
        ([500, *[10] * 19], Prediction(20, 10, 157)),  # it was the last one: the average has moved
        ([0.2, 0.4], Prediction(2, 1, 1)),
    ],
)
def test_predictions_by_hand(seconds: list[float], found: Prediction | None) -> None:
    assert predict(seconds) == found
