"""Forecasts in rows: every waiting job is told a range, starts are judged by the first, and the record is shown."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.db import DatabaseError, connection, transaction
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from scheduler.core.lifecycle import JobState
from scheduler.models import ForecastOutcome, ForecastRun, Job, RuntimePrediction, StartForecast
from scheduler.services.jobs.verbs import cancel_job
from scheduler.services.planning import forecasts
from scheduler.services.planning.explain import explain_job
from scheduler.services.planning.forecasts import forecast_all, forecast_cluster, record, run_times
from scheduler.services.planning.job_preview import preview_job
from scheduler.state.records import forecasts as rows
from tests.scheduler.state.small import SmallWorld
from tests.support.factories import AttemptFactory, MembershipFactory, ProjectFactory

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _no_history() -> None:
    forecasts.forget_history()


@pytest.fixture
def world() -> SmallWorld:
    """A node with 4 GPUs, taken by a job with an hour to go."""
    world = SmallWorld()
    world.node("n1", gpus=4)
    world.job("old", gpus=4, time_limit_seconds=3600)
    world.plan()
    return world


def hours(at: object) -> int:
    return round((at - timezone.now()).total_seconds() / 3600)  # type: ignore[operator]


def test_every_waiting_job_is_told_when_it_likely_starts(world: SmallWorld) -> None:
    first = world.job(gpus=4, time_limit_seconds=7200)
    second = world.job(gpus=4, time_limit_seconds=7200)
    never = world.job(gpus=99)

    assert forecast_all() == 3

    assert [hours(row.p90_at) for row in StartForecast.objects.filter(job__in=[first, second])] == [1, 3]
    told = StartForecast.objects.get(job=second)
    assert (told.ends_first, told.ahead_jobs, told.unknown) == (1, 1, "")
    assert told.p10_at < told.p50_at < told.p90_at
    assert told.first_p90_at == told.p90_at
    unknown = StartForecast.objects.get(job=never)
    assert (unknown.p90_at, unknown.first_told_at) == (None, None)
    assert unknown.unknown.endswith("The job can never start as written.")


def test_a_start_is_judged_by_the_first_range_that_was_told(world: SmallWorld) -> None:
    inside, early, late = (world.job(gpus=4, time_limit_seconds=60) for _ in range(3))
    forecast_cluster(cluster_id=world.cluster.pk)
    StartForecast.objects.filter(job=early).update(
        p90_at=timezone.now() + timedelta(days=9), first_p10_at=timezone.now() + timedelta(hours=9)
    )
    forecast_cluster(cluster_id=world.cluster.pk)  # a later range takes nothing back
    told = StartForecast.objects.get(job=inside)
    for job, at in (
        (inside, told.first_p90_at + timedelta(seconds=20)),  # within the minute that was shown
        (early, timezone.now() + timedelta(hours=1)),
        (late, timezone.now() + timedelta(hours=5)),
    ):
        Job.objects.filter(pk=job.pk).update(state=JobState.COMPLETED, scheduled_at=at, completed_at=at)

    forecast_all()

    missed = dict(ForecastOutcome.objects.values_list("job_number", "missed_seconds"))
    assert missed[inside.number] == 0
    assert missed[early.number] // 3600 == -8
    assert 3 * 3600 < missed[late.number] < 5 * 3600
    assert not StartForecast.objects.exists()
    Job.objects.filter(pk=inside.pk).update(completed_at=timezone.now())
    ForecastOutcome.objects.update(started_at=timezone.now())
    found = record(fresh=True)
    assert (found.starts, found.inside, found.earlier, found.later, found.inside_percent) == (3, 1, 1, 1, 33)


def test_a_job_that_was_cancelled_or_held_says_nothing_of_forecasts(world: SmallWorld) -> None:
    gone, held = world.job(gpus=4), world.job(gpus=4)
    forecast_all()
    cancel_job(job=gone, by=world.person)
    Job.objects.filter(pk=held.pk).update(state=JobState.HELD)

    forecast_all()

    assert not StartForecast.objects.exists()
    assert not ForecastOutcome.objects.exists()
    assert record(fresh=True).inside_percent is None


def test_a_large_cluster_is_left_alone_for_a_while(world: SmallWorld) -> None:
    world.job(gpus=4)
    forecast_all()
    run = ForecastRun.objects.get()
    assert (run.cluster_id, run.jobs) == (world.cluster.pk, 1)
    ForecastRun.objects.update(took_ms=60_000, ended_at=timezone.now())
    StartForecast.objects.all().delete()

    assert forecast_all() == 0
    ForecastRun.objects.update(ended_at=timezone.now() - timedelta(minutes=10))
    assert forecast_all() == 1


def test_run_times_are_learned_from_what_ended_by_itself(world: SmallWorld) -> None:
    now = timezone.now()
    for state, seconds in (("succeeded", 360), ("failed", 900), ("stopped", 3600), ("lost", 3600)):
        for _ in range(3):
            job = world.job(
                state=JobState.COMPLETED,
                time_limit_seconds=3600,
                epoch=1,
                completed_at=now,
                queue=world.queue,
            )
            AttemptFactory(
                job=job, state=state, epoch=1, started_at=now - timedelta(seconds=seconds), ended_at=now
            )

    found = run_times(world.cluster.pk)

    assert found.parts == (100, 100, 100, 250, 250, 250)
    assert found.parts_of_user == {world.person.pk: found.parts}
    assert found.length_ms(world.person.pk, 0, 1_000_000, 0.5) == 250_000


def test_why_and_preview_tell_the_range_and_the_record(world: SmallWorld) -> None:
    job = world.job(gpus=4, time_limit_seconds=3600)
    payload = {"command": "true", "queue": world.queue.slug, "project": world.project.slug, "gpu_count": 4}

    why = explain_job(job=job, by=world.person)
    found = preview_job(payload=payload | {"time_limit": 60}, by=world.person)

    assert why.start is not None
    assert (hours(why.start.p90_at), why.start.running_jobs) == (1, 1)
    assert found.start is not None
    assert (hours(found.start.p90_at), found.start.ahead_jobs) == (2, 1)
    assert found.record == record()
    assert preview_job(payload=payload | {"gpu_count": 0}, by=world.person).start is None


def test_a_change_that_starts_it_sooner_is_said_and_carried_to_a_copy(
    world: SmallWorld, client: Client
) -> None:
    world.node("n2", gpus=2)
    world.job("short", gpus=2, time_limit_seconds=600)  # goes there, for the other node is full
    world.plan()
    job = world.job(gpus=4, time_limit_seconds=7200)

    found = explain_job(job=job, by=world.person)

    assert found.change is not None
    assert (found.change.field, found.change.starts_now) == ("gpu_count", False)
    assert found.change.value == "2"
    assert found.change.gain_seconds > 2000
    client.force_login(world.person)
    page = client.get(f"/jobs/{job.number}/").content.decode()
    assert f"?copy={job.number}&amp;gpu_count=2" in page
    form = client.get(f"/submit/?copy={job.number}&gpu_count=2&name=evil").content.decode()
    assert re.search(r'name="gpu_count"[^>]*value="2"', form)
    assert "evil" not in form


def test_where_playing_on_takes_too_long_the_kept_range_is_shown(
    world: SmallWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = world.job(gpus=4, time_limit_seconds=3600)
    forecast_all()
    monkeypatch.setattr(forecasts, "LIVE_WORK", 0)

    found = explain_job(job=job, by=world.person).start

    assert found is not None
    assert found.p90_at == StartForecast.objects.get(job=job).p90_at


def test_pages_show_the_range_and_how_good_they_were(world: SmallWorld, client: Client) -> None:
    job = world.job("mine", gpus=4, time_limit_seconds=3600)
    forecast_all()
    now = timezone.now()
    ForecastOutcome.objects.create(
        cluster=world.cluster, job_number=job.number, told_at=now, p10_at=now, p90_at=now, started_at=now,
        missed_seconds=0,
    )  # fmt: skip
    client.force_login(world.person)

    listing = client.get("/jobs/").content.decode()
    why = client.get(f"/jobs/{job.number}/").content.decode()
    page = client.get("/forecasts/").content.decode()

    assert "Likely starts" in listing
    assert "Likely starts" in why
    assert "Based on the time limit of 1 running job; no jobs ahead" in " ".join(why.split())
    assert "100 % of 1 start were within the predicted range" in why
    assert "Started within the range" in page
    assert f"/jobs/{job.number}/" in page
    client.force_login(MembershipFactory(project=ProjectFactory()).user)
    stranger = client.get("/forecasts/").content.decode()
    assert "Started within the range" in stranger  # the sums are everybody's
    assert f"/jobs/{job.number}/" not in stranger  # the jobs are not


def test_the_list_costs_the_same_with_forecasts_and_without(world: SmallWorld, client: Client) -> None:
    client.force_login(world.person)
    world.job(gpus=4)
    client.get("/jobs/")
    with CaptureQueriesContext(connection) as before:
        client.get("/jobs/")
    for _ in range(3):
        world.job(gpus=4)
    forecast_all()

    with CaptureQueriesContext(connection) as after:
        client.get("/jobs/")

    assert len(after) == len(before)


def test_first_ranges_are_calibrated_by_judged_starts_and_the_accuracy_is_on_page_and_api(
    world: SmallWorld, client: Client
) -> None:
    told_at = timezone.now() - timedelta(days=1)
    ends = told_at + timedelta(hours=1), told_at + timedelta(hours=2)
    ForecastOutcome.objects.bulk_create(
        ForecastOutcome(
            cluster=world.cluster, job_number=number, told_at=told_at, p10_at=ends[0], p90_at=ends[1],
            started_at=told_at + timedelta(hours=4), missed_seconds=7200,
        )
        for number in range(30)
    )  # fmt: skip
    job = world.job(gpus=4, time_limit_seconds=7200)

    forecast_all()

    kept = StartForecast.objects.get(job=job)
    raw = (kept.first_raw_p90_at - kept.first_told_at).total_seconds()
    shown = (kept.first_p90_at - kept.first_told_at).total_seconds()
    assert 3500 < raw < 3601  # the time limit of the job that runs
    assert abs(shown / raw - 2) < 0.05  # all were twice as late as the ends of their ranges
    live = explain_job(job=job, by=world.person).start
    assert live is not None
    assert live.p90_at is not None
    assert abs((live.p90_at - kept.first_p90_at).total_seconds()) < 120
    Job.objects.filter(pk=job.pk).update(
        state=JobState.COMPLETED, scheduled_at=kept.first_p90_at, completed_at=kept.first_p90_at
    )
    forecasts.forget_history()
    forecast_all()
    judged = ForecastOutcome.objects.get(job_number=job.number)
    assert (judged.missed_seconds, judged.raw_p90_at) == (0, kept.first_raw_p90_at)
    client.force_login(world.person)
    page = client.get("/forecasts/").content.decode()
    row = re.sub(
        r"<[^>]+>", " ", page[page.index("data-accuracy") : page.index("</tr>", page.index("data-accuracy"))]
    )
    assert "31" in row
    assert "1h" in row.replace(" ", "")  # the median width
    [accuracy] = client.get("/api/v1/jobs/scheduler/info").json()["accuracy"]
    assert (accuracy["starts"], accuracy["inside_percent"], accuracy["runs"]) == (31, 3, 0)


def test_a_waiting_job_without_a_limit_counts_as_long_as_its_earlier_runs(world: SmallWorld) -> None:
    ahead = world.job("usual", gpus=4)
    behind = world.job(gpus=4, time_limit_seconds=60)
    RuntimePrediction.objects.create(
        cluster=world.cluster, user=world.person, name="usual", runs=9, usual_seconds=6000, planned_seconds=7200,
        updated_at=timezone.now(),
    )  # fmt: skip

    forecast_cluster(cluster_id=world.cluster.pk)

    kept = {row.job_id: hours(row.p90_at) for row in StartForecast.objects.all()}
    assert kept == {ahead.pk: 1, behind.pk: 3}  # by UNLIMITED_JOB_SECONDS it would be 25


def test_run_times_predicted_too_short_are_counted(world: SmallWorld) -> None:
    now = timezone.now()
    for predicted, runs in ((100, 3), (300, 3), (999, 0)):  # the last is the site's setting, not a prediction
        job = world.job(state=JobState.COMPLETED, epoch=1, completed_at=now, queue=world.queue)
        AttemptFactory(
            job=job, state="succeeded", epoch=1, started_at=now - timedelta(seconds=200), ended_at=now,
            predicted_seconds=predicted, predicted_from_runs=runs,
        )  # fmt: skip

    forecasts.predict_run_times(cluster_id=world.cluster.pk)

    [found] = forecasts.accuracies([world.cluster.pk])
    assert (found.runs, found.longer_percent, found.median_ratio) == (2, 50, 0.5)


# ---------------------------------------------------------------- a rule broken on purpose is noticed


def _without(words: str, instead: str) -> Callable[[pytest.MonkeyPatch], None]:
    """The statements of forecasts with some words of theirs replaced."""

    def broken(patch: pytest.MonkeyPatch) -> None:
        assert words in rows.STORE + rows.JUDGE
        real = rows.run
        patch.setattr(rows, "run", lambda text, parameters: real(text.replace(words, instead), parameters))

    return broken


def _nothing_judged(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rows, "settle_forecasts", lambda: 0)


def _nothing_stored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rows, "store_forecasts", lambda found, at: None)


@pytest.mark.parametrize(
    ("broken", "promise"),
    [
        (_nothing_judged, "judged"),
        (_nothing_stored, "told"),
        (_without("ELSE kept.first_p10_at", "ELSE excluded.p10_at"), "judged"),
        (_without("+ greatest(", "+ least("), "judged"),
        (_without("job.scheduled_at >= gone.first_told_at", "true"), "cancelled"),
        (_without("forecast.job_id AND job.state <> %s", "forecast.job_id AND job.state = %s"), "cancelled"),
    ],
    ids=[
        "nothing-judged",
        "nothing-stored",
        "last-told",
        "never-late",
        "cancelled-judged",
        "waiting-forgotten",
    ],
)
def test_a_broken_rule_of_storing_or_judging_is_noticed(
    world: SmallWorld,
    monkeypatch: pytest.MonkeyPatch,
    broken: Callable[[pytest.MonkeyPatch], None],
    promise: str,
) -> None:
    broken(monkeypatch)
    promises = {
        "told": test_every_waiting_job_is_told_when_it_likely_starts,
        "judged": test_a_start_is_judged_by_the_first_range_that_was_told,
        "cancelled": test_a_job_that_was_cancelled_or_held_says_nothing_of_forecasts,
    }

    with pytest.raises((AssertionError, KeyError, DatabaseError)), transaction.atomic():
        promises[promise](world)
