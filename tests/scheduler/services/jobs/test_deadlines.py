"""Finding 23: a deadline that cannot be met is said when submitted, while the job waits, and after; it may end the job.

And a job that may wait for so long and no longer is ended with the reason.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from django.db import IntegrityError, transaction
from django.utils import timezone

from scheduler.core.lifecycle import FailureClass, JobState, StopReason
from scheduler.deadlines import DeadlineState, in_deadline_state, outlook
from scheduler.models import Job, JobRequest, StartForecast
from scheduler.services.execution.reconcile import reconcile_all
from scheduler.services.jobs.deadlines import check_limits
from scheduler.services.jobs.verbs import cancel_job, hold_job, release_job
from scheduler.services.submission.job_spec import JobSpec
from scheduler.state.lifecycle.transitions import move_job
from scheduler.state.lifecycle.verdicts import JobFacts, TaskEnd, judge
from tests.scheduler.portal import Portal, a_portal, problems, read
from tests.support.factories import AttemptFactory

pytestmark = pytest.mark.django_db


@pytest.fixture
def portal(db: None) -> Portal:
    return a_portal()


def within(**span: float) -> str:
    return (timezone.now() + timedelta(**span)).isoformat()


def at(job: Job, **after: float) -> datetime:
    """A moment after the deadline of a job."""
    assert job.deadline_at is not None
    return job.deadline_at + timedelta(**after)


def fresh(job: Job) -> Job:
    return Job.objects.get(pk=job.pk)


def run(job: Job) -> Job:
    move_job(job, JobState.SCHEDULED, because="planned", epoch=1)
    move_job(job, JobState.RUNNING, because="started", started_at=timezone.now())
    AttemptFactory.create(job=job, epoch=1)
    return job


def events(job: Job) -> list[str]:
    return list(job.events.values_list("kind", flat=True))


def state_of(job: Job) -> DeadlineState | None:
    """By the sentence, and checked against what the filter of lists finds."""
    found = outlook(Job.objects.select_related("forecast").get(pk=job.pk))
    listed = {
        state for state in DeadlineState if in_deadline_state(Job.objects.all(), state).filter(pk=job.pk)
    }
    assert listed == ({found.state} if found else set())
    return found.state if found else None


# ---------------------------------------------------------------- said before, while it waits, and after


def test_a_deadline_that_the_time_limit_passes_is_said_at_once(portal: Portal) -> None:
    late = portal.submit(deadline=within(minutes=5), time_limit="10m")
    fine = portal.submit(deadline=within(minutes=15), time_limit="10m")
    no_limit = portal.submit(deadline=within(minutes=5))

    assert [state_of(job) for job in (late, fine, no_limit, portal.submit())] == [
        "late",
        "on-time",
        "on-time",
        None,
    ]
    found = outlook(late)
    assert found is not None
    assert 299 <= found.seconds <= 301
    assert "its time limit of 10 min ends 5 min" in found.text or "ends 4 min 59 s" in found.text


def test_a_forecast_beyond_the_deadline_is_said_while_the_job_waits(portal: Portal) -> None:
    job = portal.submit(deadline=within(hours=1), time_limit="30m")
    start = timezone.now() + timedelta(minutes=45)
    StartForecast.objects.create(
        job=job, p10_at=start, p50_at=start, p90_at=start, computed_at=timezone.now()
    )

    assert state_of(job) == "late"
    found = outlook(Job.objects.select_related("forecast").get(pk=job.pk))
    assert found is not None
    assert "forecast start" in found.text

    StartForecast.objects.update(p50_at=start - timedelta(minutes=30))
    assert state_of(job) == "on-time"


def test_a_running_job_whose_limit_ends_after_its_deadline_is_late(portal: Portal) -> None:
    assert state_of(run(portal.submit(deadline=within(minutes=5), time_limit="10m"))) == "late"
    assert state_of(run(portal.submit(deadline=within(minutes=15), time_limit="10m"))) == "on-time"


def test_a_missed_deadline_is_one_event_and_the_job_goes_on(portal: Portal) -> None:
    job = run(portal.submit(deadline=within(minutes=5)))
    check_limits(at=at(job, seconds=-10))
    assert "job.deadline_missed" not in events(job)

    for seconds in (1, 2, 200):
        check_limits(at=at(job, seconds=seconds))

    assert events(job).count("job.deadline_missed") == 1
    assert fresh(job).state == JobState.RUNNING
    assert fresh(job).check_at is None


def test_a_job_that_ended_just_after_its_deadline_has_missed_it_by_so_much(portal: Portal) -> None:
    job = run(portal.submit(deadline=within(minutes=5)))
    move_job(job, JobState.COMPLETED, because="ended", at=at(job, minutes=3))

    check_limits(at=at(job, minutes=4))

    assert state_of(job) == "missed"
    event = job.events.get(kind="job.deadline_missed")
    assert (event.because, event.details["late_seconds"]) == ("Missed its deadline by 3 min.", 180)


def test_what_ended_before_its_deadline_is_met_or_failed_and_makes_no_event(portal: Portal) -> None:
    jobs = [run(portal.submit(deadline=within(minutes=5))) for _ in range(3)]
    for job, state in zip(jobs, (JobState.COMPLETED, JobState.FAILED, JobState.FAILED), strict=True):
        move_job(job, state, because="ended", at=at(job, minutes=-1))
    cancelled = portal.submit(deadline=within(minutes=5))
    cancel_job(job=cancelled, by=portal.cast.owner)
    check_limits(at=at(jobs[0], minutes=9))

    assert [state_of(job) for job in (*jobs, cancelled)] == ["met", "missed", "missed", None]
    assert not Job.objects.filter(check_at__isnull=False).exists()
    assert all("job.deadline_missed" not in events(job) for job in (*jobs, cancelled))


# ---------------------------------------------------------------- deadline_action end


def test_a_pending_job_that_can_no_longer_end_in_time_is_removed(portal: Portal) -> None:
    job = portal.submit(deadline=within(minutes=15), time_limit="10m", deadline_action="end")
    other = portal.submit(depends_on=[job.number])
    check_limits(at=at(job, minutes=-11))
    assert fresh(job).state == JobState.QUEUED

    check_limits(at=at(job, minutes=-10))

    job = fresh(job)
    assert (job.state, job.failure_class) == (JobState.FAILED, FailureClass.TIME_LIMIT)
    assert "with its time limit of 10 min it can no longer end before its deadline" in job.end_text
    assert state_of(job) == "missed"
    assert fresh(other).reason_code == "DependencyNeverSatisfied"


def test_a_held_job_is_removed_too(portal: Portal) -> None:
    job = portal.submit(deadline=within(minutes=15), time_limit="10m", deadline_action="end")
    hold_job(job=job, by=portal.cast.owner)

    check_limits(at=at(job))

    assert fresh(job).state == JobState.FAILED


def test_a_running_job_is_asked_to_end_at_its_deadline_and_fails_as_over_time(portal: Portal) -> None:
    job = run(portal.submit(deadline=within(minutes=15), time_limit="10m", deadline_action="end"))
    check_limits(at=at(job, seconds=-1))
    assert not job.attempts.filter(stop_asked_at__isnull=False).exists()

    for seconds in (0, 6, 12):
        check_limits(at=at(job, seconds=seconds))

    attempt = job.attempts.get()
    assert attempt.stop_reason == StopReason.DEADLINE
    assert events(job).count("job.deadline_stop") == 1
    assert fresh(job).check_at is not None  # until it has ended
    facts = JobFacts(state=JobState.RUNNING, restart_policy="always", max_restarts=9)
    verdict = judge(facts, StopReason.DEADLINE, [TaskEnd(0, "n1", "stopped", exit_code=0)])
    assert (verdict.job, verdict.failure, verdict.exit_code) == (
        JobState.FAILED,
        FailureClass.TIME_LIMIT,
        None,
    )
    assert verdict.text == "Stopped at its deadline (deadline_action end)."


def test_ending_at_a_deadline_needs_one_that_the_time_limit_leaves_time_for(portal: Portal) -> None:
    assert problems(portal, deadline_action="end") == {"deadline_action": "inconsistent"}
    asked = {"deadline": within(minutes=5), "time_limit": "10m"}
    assert problems(portal, **asked, deadline_action="end") == {"deadline": "deadline-too-early"}
    begins = {**asked, "deadline": within(minutes=15), "begin_at": within(minutes=6)}
    assert problems(portal, **begins, deadline_action="end") == {"deadline": "deadline-too-early"}
    assert isinstance(read(portal, **asked), JobSpec)
    with pytest.raises(IntegrityError), transaction.atomic():
        JobRequest.objects.create(command="true", name="x", deadline_action="end", created_at=timezone.now())


# ---------------------------------------------------------------- limits of waiting


def test_a_job_that_does_not_start_within_its_wait_limit_fails_with_its_last_reason(portal: Portal) -> None:
    job = portal.submit(wait_limit="10m")
    Job.objects.filter(pk=job.pk).update(reason_text="Needs 4 GPUs.")
    assert job.eligible_at is not None
    check_limits(at=job.eligible_at + timedelta(minutes=9))
    assert fresh(job).state == JobState.QUEUED

    check_limits(at=job.eligible_at + timedelta(minutes=10))

    job = fresh(job)
    assert (job.state, job.failure_class) == (JobState.FAILED, FailureClass.TIME_LIMIT)
    assert job.end_text == "Did not start within its wait limit of 10 min. The last reason: Needs 4 GPUs."


def test_time_on_hold_and_a_job_that_has_started_do_not_count(portal: Portal) -> None:
    held, started = portal.submit(wait_limit="10m"), portal.submit(wait_limit="10m")
    hold_job(job=held, by=portal.cast.owner)
    run(started)
    later = timezone.now() + timedelta(minutes=30)
    check_limits(at=later)
    assert (fresh(held).state, fresh(started).check_at) == (JobState.HELD, None)

    release_job(job=fresh(held), by=portal.cast.owner)
    check_limits(at=later + timedelta(minutes=11))

    assert (fresh(held).state, fresh(started).state) == (JobState.FAILED, JobState.RUNNING)


def test_the_queue_says_how_long_jobs_wait_that_do_not_say(portal: Portal) -> None:
    portal.queue.default_wait_seconds = 600
    portal.queue.save()

    assert (portal.submit().wait_limit_seconds, portal.submit(wait_limit="1h").wait_limit_seconds) == (
        600,
        3600,
    )


def test_the_reconciler_looks_and_a_job_without_limits_costs_no_look(portal: Portal) -> None:
    plain, due = portal.submit(), portal.submit(wait_limit="10m")
    Job.objects.filter(pk=due.pk).update(
        check_at=timezone.now(), eligible_at=timezone.now() - timedelta(minutes=11)
    )

    assert reconcile_all().checked_limits == 1
    assert (fresh(plain).check_at, fresh(due).state) == (None, JobState.FAILED)
