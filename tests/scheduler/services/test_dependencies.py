"""Jobs that wait for jobs: no circle can be made, because nobody can wait for what was submitted later."""

from __future__ import annotations

import pytest
from django.db import IntegrityError, transaction
from django.test import Client

from infra.errors import InvalidInput
from scheduler.models import Job, JobDependency
from tests.support.agents import World
from tests.support.factories import bearer

pytestmark = pytest.mark.django_db


def test_a_job_waits_only_for_jobs_that_were_there_before_it() -> None:
    world = World.make()
    first = world.submit()
    second = world.submit(depends_on=[first.number])
    world.submit(depends_on=[first.number, second.number])

    for dependency in JobDependency.objects.all():
        assert dependency.on_id < dependency.job_id
    last = Job.objects.order_by("-number").first()
    assert last is not None
    with pytest.raises(InvalidInput, match=str(last.number + 1)):
        world.submit(depends_on=[last.number + 1])  # the number it would get itself


def test_no_job_waits_for_itself_and_no_change_makes_a_circle(client: Client) -> None:
    world = World.make()
    first = world.submit()
    second = world.submit(depends_on=[first.number])

    with pytest.raises(IntegrityError), transaction.atomic():
        JobDependency.objects.create(job=first, on=first)
    third = world.submit(depends_on=[second.number])
    for named in (first, second, third):
        answer = client.patch(
            f"/api/v1/jobs/{first.number}", {"depends_on": [named.number]}, "application/json",
            headers=bearer(world.user, "jobs:write"),
        )  # fmt: skip
        assert (answer.status_code, answer.json()["errors"][0]["code"]) == (422, "circle")
    third.dependencies.all().delete()
    assert list(JobDependency.objects.values_list("job_id", "on_id")) == [(second.number, first.number)]
