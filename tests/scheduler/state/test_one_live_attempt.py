"""A job has at most one live attempt, whichever program adds it and when; and the end of an attempt writes no index."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.db import IntegrityError, OperationalError, connection, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils import timezone

from scheduler.models import Attempt, Job
from tests.support.factories import AttemptFactory, JobFactory, TaskFactory

ADD = """
INSERT INTO scheduler_attempt (job_id, epoch, backend, state, stop_reason, backend_ref, scheduled_at, end_text)
VALUES (%s, %s, 'agents', %s, '', '', now(), '')
"""


def add(epoch: int, *, job: Job, state: str = "running", by: BaseDatabaseWrapper = connection) -> None:
    with by.cursor() as cursor:
        cursor.execute(ADD, [job.pk, epoch, state])


@pytest.mark.django_db
def test_a_second_live_attempt_of_a_job_is_refused_with_the_jobs_number() -> None:
    job, other = JobFactory(state="running"), JobFactory(state="running")
    add(1, job=job)

    for epoch in (2, 7):
        with pytest.raises(IntegrityError, match=rf"attempt_one_live\): {job.pk}\n"), transaction.atomic():
            add(epoch, job=job)
    add(1, job=other)
    add(2, job=job, state="lost")
    Attempt.objects.filter(job=job).update(state="failed")
    add(3, job=job)

    assert Attempt.objects.live().filter(job=job).values_list("epoch", flat=True).get() == 3


@pytest.mark.django_db
def test_two_live_attempts_of_a_job_in_one_statement_are_refused() -> None:
    job = JobFactory(state="running")
    rows = [Attempt(job=job, epoch=epoch, backend="agents", scheduled_at=timezone.now()) for epoch in (1, 2)]

    with pytest.raises(IntegrityError, match="attempt_one_live"), transaction.atomic():
        Attempt.objects.bulk_create(rows)


@pytest.mark.django_db
def test_what_has_ended_does_not_live_again_nor_become_another_jobs() -> None:
    ended, live = AttemptFactory(state="succeeded"), AttemptFactory()

    for attempt, change in ((ended, {"state": "running"}), (live, {"job": ended.job, "epoch": 2})):
        with pytest.raises(IntegrityError, match="attempt_one_live"), transaction.atomic():
            Attempt.objects.filter(pk=attempt.pk).update(**change)


@pytest.fixture
def elsewhere(transactional_db: None) -> Iterator[BaseDatabaseWrapper]:
    """A connection of another process, in a transaction that is rolled back at the end."""
    another = connection.copy()
    another.set_autocommit(False)
    yield another
    another.rollback()
    another.close()


@pytest.mark.parametrize(("there", "here"), [(1, 2), (5, 1), (2, 1), (3, 2)])
def test_who_adds_an_attempt_waits_for_another_that_is_added_and_not_committed(
    elsewhere: BaseDatabaseWrapper, there: int, here: int
) -> None:
    job = JobFactory(state="running")
    add(there, job=job, by=elsewhere)

    with transaction.atomic():
        connection.cursor().execute("SET LOCAL lock_timeout = '50ms'")
        with pytest.raises(OperationalError, match="lock timeout"), transaction.atomic():
            add(here, job=job)


@pytest.mark.django_db
def test_the_end_of_an_attempt_that_succeeds_writes_no_index() -> None:
    attempt = TaskFactory().attempt
    counts = (
        "SELECT pg_stat_get_xact_tuples_updated(oid) - pg_stat_get_xact_tuples_hot_updated(oid) FROM pg_class"
    )
    with connection.cursor() as cursor:
        cursor.execute(counts + " WHERE oid = 'scheduler_attempt'::regclass")
        before = cursor.fetchone()

        Attempt.objects.filter(pk=attempt.pk).update(state="succeeded", ended_at=timezone.now(), exit_code=0)
        cursor.execute(counts + " WHERE oid = 'scheduler_attempt'::regclass")

        assert cursor.fetchone() == before
    assert not Attempt.objects.all_live().exists()
