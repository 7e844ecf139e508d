"""Names of jobs: each is kept once, is found by a part of it, and goes after the last job that has it."""

from __future__ import annotations

from uuid import uuid4

import pytest
from django.db import connection, transaction
from django.utils import timezone

from scheduler.models import Job, JobName, JobRequest
from scheduler.services import retention
from tests.support.factories import JobFactory
from tests.support.locks import Apart

pytestmark = pytest.mark.django_db


def names() -> list[str]:
    return list(JobName.objects.values_list("name", flat=True))


def test_a_name_is_kept_once_and_goes_after_the_last_job_that_has_it() -> None:
    first, second, other = JobFactory(name="train"), JobFactory(name="train"), JobFactory(name="eval")
    assert names() == ["eval", "train"]

    other.delete()
    first.delete()
    assert retention.NAMES.count(timezone.now()) == 1
    assert retention.NAMES.carry_out(timezone.now()) == 1

    assert names() == ["train"]
    assert list(Job.objects.called("RAI")) == [second]
    assert list(Job.objects.called("eval")) == []


@pytest.mark.django_db(transaction=True)
def test_a_name_that_a_new_job_has_stays_however_late_its_submission_is_committed() -> None:
    JobFactory(name="train").delete()
    with transaction.atomic():
        job = JobFactory(name="train")
        cleaning = Apart(lambda: retention.NAMES.carry_out(timezone.now()))
        cleaning.until_it_waits()
    cleaning.end()

    assert names() == ["train"]
    assert list(Job.objects.called("train")) == [job]


def test_jobs_of_a_name_are_found_by_an_index() -> None:
    """Among rows enough that no statistics of an empty table make the other index look as cheap."""
    same = {name: value for name, value in vars(JobFactory(name="train").request).items() if name[0] != "_"}
    JobRequest.objects.bulk_create(JobRequest(**same | {"number": None, "uuid": uuid4()}) for _ in range(500))
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")
    plan = JobRequest.objects.filter(name__one_of=["train", "eval"]).order_by().explain()

    assert "request_by_whole_name" in plan
