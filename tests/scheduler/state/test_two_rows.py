"""What a job runs stays as it was written; its moves write no index; and what waits and runs has a row."""

from __future__ import annotations

import re
from uuid import uuid4

import pytest
from django.db import IntegrityError, connection, transaction
from django.utils import timezone

from scheduler.models import Job, JobRequest, UnfinishedJob
from scheduler.models.job import OVER
from tests.support.factories import JobFactory, QueueFactory
from tests.support.roles import as_owner

pytestmark = pytest.mark.django_db


def updates() -> tuple[int, int]:
    """Updates of jobs in this transaction, and how many of them left the indexes alone."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_stat_get_xact_tuples_updated(oid), pg_stat_get_xact_tuples_hot_updated(oid)"
            " FROM pg_class WHERE oid = 'scheduler_job'::regclass"
        )
        updated, hot = cursor.fetchone()
    return updated, hot


def test_what_was_submitted_to_run_stays_and_the_rest_of_a_request_changes() -> None:
    job = JobFactory(priority=50)
    request = JobRequest.objects.filter(pk=job.pk)
    submitted = {
        "uuid": uuid4(), "command": "rm -r /", "script": "rm -r /", "env": {"A": "1"}, "secrets": ["token"],
        "upload": 7, "job_type": "other", "array_id": uuid4(), "array_index": 3, "created_at": timezone.now(),
        "submitted_via": "other",
    }  # fmt: skip

    for name, value in submitted.items():
        with pytest.raises(IntegrityError, match=f"job {job.pk}: what was submitted"), transaction.atomic():
            request.update(**{name: value})
    request.update(priority=100)

    assert Job.objects.get(pk=job.pk).priority == 100


def unfinished() -> dict[int, int]:
    """The queue of each job that has a row of `UnfinishedJob`."""
    return dict(UnfinishedJob.objects.values_list("number", "queue_id"))


def test_moves_of_a_job_that_completes_write_no_index() -> None:
    job = Job.objects.filter(pk=JobFactory(state="queued").pk)
    before = updates()

    job.update(reason_code="BudgetExceeded", reason_text="Waits.", reason_at=timezone.now())
    job.update(state="scheduled", epoch=1, scheduled_at=timezone.now(), reason_code="", reason_text="")
    job.update(state="starting", generation=3)
    job.update(state="running", started_at=timezone.now(), boost=5, boost_until_at=timezone.now())
    job.update(state="completed", completed_at=timezone.now(), exit_code=0)
    after = updates()

    assert (after[0] - before[0], after[1] - before[1]) == (5, 5)
    assert job.get().outcome == "completed"


@pytest.mark.parametrize("end", ["completed", "failed", "cancelled"])
def test_what_waits_or_runs_is_unfinished_whoever_writes_its_state(end: str) -> None:
    made = JobFactory(state="queued")
    over = JobFactory(state=end, completed_at=timezone.now())
    job, other = Job.objects.filter(pk=made.pk), QueueFactory()
    steps = [unfinished()]

    for change in ({"state": "running"}, {"state": end, "completed_at": timezone.now()}, {"state": "queued"}):
        job.update(**change)
        steps.append(unfinished())
    job.update(queue=other)
    steps.append(unfinished())
    job.delete()

    waits = {made.pk: made.queue_id}
    assert steps == [waits, waits, {}, waits, {made.pk: other.pk}]
    assert unfinished() == {}
    assert over.pk not in unfinished()


@pytest.mark.parametrize("end", ["completed", "failed", "cancelled"])
def test_unsuccessful_is_the_state_of_what_failed_or_was_cancelled(end: str) -> None:
    expected = None if end == "completed" else end
    born = JobFactory(state=end, completed_at=timezone.now())
    job = Job.objects.filter(pk=JobFactory(state="running").pk)
    seen = [Job.objects.get(pk=born.pk).unsuccessful, job.get().unsuccessful]

    job.update(state=end, completed_at=timezone.now())
    seen.append(job.get().unsuccessful)
    job.update(unsuccessful="cancelled" if end == "failed" else "failed")
    seen.append(job.get().unsuccessful)
    job.update(state="queued")

    assert seen == [expected, None, expected, expected]
    assert job.get().unsuccessful is None


def test_the_end_of_a_job_writes_its_row_once() -> None:
    job, before = Job.objects.filter(pk=JobFactory(state="held").pk), updates()

    job.update(state="cancelled", completed_at=timezone.now())

    assert updates()[0] - before[0] == 1
    assert job.get().unsuccessful == "cancelled"


def test_rows_of_unfinished_jobs_are_found_by_their_key_however_few_there_were_at_first() -> None:
    """A session keeps the plan of a trigger: one for a small table made the cancel of a large array take seconds."""
    first = JobFactory(state="queued")
    with as_owner(), connection.cursor() as cursor:
        cursor.execute("ANALYZE scheduler_unfinishedjob")
    Job.objects.filter(pk=first.pk).update(state="cancelled", completed_at=timezone.now())
    numbers = [JobFactory(state="queued", queue=first.queue).pk for _ in range(10)]
    before = rows_scanned()

    Job.objects.filter(pk__in=numbers).update(state="cancelled", completed_at=timezone.now())

    assert rows_scanned() == before


def rows_scanned() -> int:
    """Rows that sequential scans of unfinished jobs have read in this transaction."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT seq_tup_read FROM pg_stat_xact_user_tables WHERE relname = 'scheduler_unfinishedjob'"
        )
        (read,) = cursor.fetchone()
    return int(read)


@pytest.mark.parametrize(
    "states", [["failed"], ["completed"], ["queued", "running"], ["running", "failed"], [*OVER], []]
)
def test_jobs_in_states_are_those_whose_state_that_is(states: list[str]) -> None:
    ended = timezone.now()
    for state in ("queued", "running", "completed", "failed", "cancelled"):
        JobFactory(state=state, completed_at=ended if state in OVER else None)

    assert sorted(job.state for job in Job.objects.in_states(states)) == sorted(states)
    assert sorted(job.state for job in Job.objects.not_over()) == ["queued", "running"]


def test_the_newest_jobs_that_run_are_read_by_their_keys_and_no_others() -> None:
    JobFactory(state="running")
    newest = Job.objects.in_states(["running"]).order_by("-number").values("number")[:50]
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")
        cursor.execute("SET LOCAL enable_bitmapscan = off")
    plan = newest.explain()

    assert re.search(r"Index Cond: \(number = ANY \(\(?InitPlan", plan) or "= ANY ($0)" in plan, plan
    assert len(newest) == 1
