"""What a job asked for stays as it was written, and its moves write no index before the last one."""

from __future__ import annotations

import pytest
from django.db import ProgrammingError, connection, transaction
from django.utils import timezone

from scheduler.models import Job, JobRequest
from tests.support.factories import JobFactory

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


def test_the_application_cannot_change_what_was_asked_for() -> None:
    job = JobFactory(priority=50)

    for change in ({"priority": 100}, {"command": "rm -r /"}, {"created_at": timezone.now()}):
        with pytest.raises(ProgrammingError, match="permission denied"), transaction.atomic():
            JobRequest.objects.filter(pk=job.pk).update(**change)

    assert Job.objects.get(pk=job.pk).priority == 50


def test_moves_write_no_index_before_the_job_is_over() -> None:
    job = Job.objects.filter(pk=JobFactory(state="queued").pk)
    before = updates()

    job.update(reason_code="BudgetExceeded", reason_text="Waits.", reason_at=timezone.now())
    job.update(state="scheduled", epoch=1, scheduled_at=timezone.now(), reason_code="", reason_text="")
    job.update(state="starting", generation=3)
    job.update(state="running", started_at=timezone.now(), boost=5, boost_until_at=timezone.now())
    moves = updates()
    job.update(state="completed", completed_at=timezone.now(), exit_code=0)
    end = updates()

    assert (moves[0] - before[0], moves[1] - before[1]) == (4, 4)
    assert (end[0] - moves[0], end[1] - moves[1]) == (1, 0)
    assert job.get().outcome == "completed"
