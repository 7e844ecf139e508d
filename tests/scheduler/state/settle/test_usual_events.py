"""What a run of one moment writes as events, and what they say when they are read."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone
from rest_framework.test import APIClient

from notifications.core.kinds import Kind
from notifications.models import Notification
from notifications.services.follow import follow
from notifications.services.preferences import change_preferences
from scheduler.agent.protocol import Report
from scheduler.models import Job, JobEvent, Node, Task
from scheduler.services.execution.dispatch import orders_for
from scheduler.services.execution.reports import apply_reports
from tests.support.agents import World
from tests.support.factories import NodeFactory

pytestmark = pytest.mark.django_db


@pytest.fixture
def world(db: None) -> World:
    world = World.make()
    NodeFactory(cluster=world.cluster, name="n1", lease_expires_at=timezone.now() + timedelta(hours=1))
    follow()  # the first run begins with what happens after it
    return world


def a_short_run(world: World, state: str, **fields: Any) -> Job:
    """Its beginning and its end come in one report."""
    job = world.submit("true", **fields)
    world.plan()
    orders_for(Node.objects.get(), {})
    task = Task.objects.get()
    end = Report(task=task.pk, epoch=1, state=state, pid=7, started_ago_ms=900, ended_ago_ms=3,
                 exit_code=0 if state == "succeeded" else 3)  # fmt: skip
    apply_reports(node=task.node, reports=[end])
    job.refresh_from_db()
    return job


def stored(job: Job) -> list[tuple[str, str, str]]:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT kind, because, details::text FROM scheduler_jobevent WHERE job_id = %s ORDER BY id",
            [job.pk],
        )
        return cursor.fetchall()[1:]


def test_a_completed_run_stores_what_does_not_follow_from_anything(world: World) -> None:
    job = a_short_run(world, "succeeded")

    (scheduled, because, details), ended = stored(job)
    assert (scheduled, because) == ("job.scheduled", "")
    assert '"nodes": ["n1"]' in details
    assert ended == ("job.completed", "", '{"node": "n1"}')
    read = list(JobEvent.objects.filter(job=job).order_by("id"))
    assert [event.because for event in read[1:]] == ["placed on n1", "every task ended with exit code 0"]
    assert read[-1].details == {"attempt": "succeeded", "exit_code": 0, "node": "n1"}


def test_the_api_says_all_of_it(world: World) -> None:
    job = a_short_run(world, "succeeded")
    client = APIClient()
    client.force_authenticate(world.user)

    found = client.get(f"/api/v1/jobs/{job.number}/events").json()["results"]

    assert [(row["kind"], row["because"]) for row in sorted(found, key=lambda row: row["id"])[1:]] == [
        ("job.scheduled", "placed on n1"), ("job.completed", "every task ended with exit code 0"),
    ]  # fmt: skip


def test_a_failed_run_says_how_it_ended_and_where(world: World) -> None:
    job = a_short_run(world, "failed")

    event = JobEvent.objects.get(job=job, kind="job.failed")
    assert event.because == "Ended with exit code 3."
    assert event.details["node"] == "n1"
    assert not JobEvent.objects.filter(job=job, kind="job.running").exists()


def test_a_run_that_is_tried_again_has_an_event_of_its_beginning(world: World) -> None:
    job = a_short_run(world, "failed", restart_policy="on_failure")

    kinds = [kind for kind, _, _ in stored(job)]
    assert kinds == ["job.scheduled", "job.running", "attempt.failed", "job.queued"]


@pytest.mark.parametrize(("state", "end"), [("succeeded", Kind.ENDED), ("failed", Kind.FAILED)])
def test_its_owner_is_notified_of_both_the_beginning_and_the_end(world: World, state: str, end: Kind) -> None:
    change_preferences(
        user=world.user, by=world.user, changes={"job.began": {"portal": True}, "job.ended": {"portal": True}}
    )
    job = a_short_run(world, state)

    follow()

    rows = {row.kind: row for row in Notification.objects.all()}
    assert set(rows) == {Kind.BEGAN, end}
    assert rows[Kind.BEGAN].text == "started on n1"
    assert rows[Kind.BEGAN].first_at == job.started_at
    assert rows[end].text == JobEvent.objects.filter(job=job).latest("id").because


def test_nobody_is_notified_of_a_beginning_who_did_not_ask(world: World) -> None:
    a_short_run(world, "succeeded")

    follow()

    assert not Notification.objects.exists()
