"""Events of jobs become notifications of their owners: once, together, and nobody else's."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.db import connection, transaction
from django.utils import timezone

from infra.db.commit_order import settled_up_to
from notifications.core.kinds import Kind
from notifications.models import Cursor, Notification
from notifications.selectors import own_notifications, unread_count
from notifications.services import follow as follow_module
from notifications.services.follow import follow
from notifications.services.links import link_of, title_of
from notifications.services.preferences import change_preferences, mark_all_read, mark_read
from scheduler.models import Job, JobEvent
from scheduler.services.jobs.verbs import cancel_job, hold_job
from tests.notifications.conftest import events
from tests.support.factories import Cast, JobEventFactory, MembershipFactory, the_cast
from tests.support.patience import patience

Happen = Callable[..., list[Job]]


def found() -> list[tuple[str, int, str]]:
    return [(row.kind, row.count, row.user.username) for row in Notification.objects.order_by("id")]


def test_a_failed_job_is_notified_to_its_owner_once(cast: Cast, jobs_that: Happen) -> None:
    (job,) = jobs_that("job.failed", because="exit code 3")

    follow()
    follow()

    row = Notification.objects.get()
    assert (row.kind, row.user, row.jobs, row.text) == (Kind.FAILED, cast.owner, [job.number], "exit code 3")
    assert unread_count(cast.owner) == 1
    assert [unread_count(person) for person in (cast.colleague, cast.lead, cast.operator, cast.stranger)] == [
        0
    ] * 4


def test_jobs_that_nobody_asked_about_write_nothing(cast: Cast, jobs_that: Happen) -> None:
    for kind in ("job.queued", "job.running", "job.completed", "job.cancelled", "job.starting"):
        jobs_that(kind, event={"details": {"node": "alpha"}})

    assert follow() == 0


def test_completed_jobs_are_notified_to_who_asked(cast: Cast, jobs_that: Happen) -> None:
    change_preferences(user=cast.owner, by=cast.owner, changes={"job.ended": {"portal": True}})
    jobs_that("job.completed")
    jobs_that("job.completed", user=cast.colleague)

    follow()

    assert found() == [("job.ended", 1, "owner")]


def test_an_array_is_one_notification_that_counts_on(cast: Cast, jobs_that: Happen) -> None:
    array = uuid.uuid4()
    jobs = jobs_that("job.failed", count=25, array_id=array)
    follow()
    Notification.objects.update(last_at=timezone.now() - timedelta(hours=3))
    events(jobs[:5], "job.failed")

    follow()

    row = Notification.objects.get()
    assert (row.count, row.jobs) == (30, [job.number for job in jobs[:20]])


def test_one_element_of_an_array_is_named_as_at_every_door(cast: Cast, jobs_that: Happen) -> None:
    (job,) = jobs_that("job.failed", array_id=uuid.uuid4())
    follow()

    row = Notification.objects.get()
    assert title_of(row) == f"Job {job.number}_0 train failed"
    assert link_of(row) == f"/jobs/{job.number}/"
    jobs_that("job.failed", array_id=uuid.uuid4(), count=2)
    follow()
    several = Notification.objects.latest("id")
    assert (several.count, link_of(several)) == (2, f"/arrays/{several.jobs[0]}/")


def test_a_burst_is_one_notification_and_what_comes_later_is_another(cast: Cast, jobs_that: Happen) -> None:
    jobs_that("job.failed", count=3)
    follow()
    jobs_that("job.failed", count=2)
    follow()
    assert found() == [("job.failed", 5, "owner")]

    Notification.objects.update(last_at=timezone.now() - timedelta(minutes=10))
    jobs_that("job.failed")
    follow()

    assert [row[1] for row in found()] == [5, 1]


def test_what_was_read_does_not_count_on(cast: Cast, jobs_that: Happen) -> None:
    jobs_that("job.failed", count=2)
    follow()
    assert mark_all_read(by=cast.owner) == 1
    jobs_that("job.failed")

    follow()

    assert [row[1] for row in found()] == [2, 1]
    assert unread_count(cast.owner) == 1


def test_an_attempt_that_is_tried_again_is_a_requeue(cast: Cast, jobs_that: Happen) -> None:
    jobs_that(
        "attempt.lost", because="Node alpha stopped responding.", event={"details": {"retry_seconds": 0}}
    )
    jobs_that("attempt.stopping", because="one task has failed, so the others are stopped")

    follow()

    assert found() == [("job.requeued", 1, "owner")]
    assert Notification.objects.get().text == "Node alpha stopped responding."


def test_preemption_by_the_planner_is_notified_and_ones_own_requeue_is_not(
    cast: Cast, jobs_that: Happen
) -> None:
    jobs_that("job.preempting", because="preempted for job 7")
    jobs_that("job.preempting", because="requeued by owner", event={"actor": cast.owner})
    jobs_that("job.preempting", because="requeued by operator", event={"actor": cast.operator})

    follow()

    assert found() == [("job.preempted", 1, "owner"), ("job.requeued", 1, "owner")]


def test_who_cancels_or_holds_the_job_of_another_makes_a_notification(cast: Cast, jobs_that: Happen) -> None:
    own, others, held = jobs_that("job.queued", count=3)
    cancel_job(job=own, by=cast.owner)
    cancel_job(job=others, by=cast.lead, reason="wrong data")
    hold_job(job=held, by=cast.operator)

    follow()

    assert found() == [("job.cancelled", 1, "owner"), ("job.held", 1, "owner")]
    assert Notification.objects.get(kind=Kind.CANCELLED).text == "cancelled by lead: wrong data"


def test_who_has_left_the_project_is_not_notified_of_its_jobs(cast: Cast, jobs_that: Happen) -> None:
    jobs_that("job.failed")
    follow()
    assert own_notifications(cast.owner).count() == 1

    cast.owner.memberships.update(expires_at=timezone.now())
    jobs_that("job.failed")
    follow()

    assert own_notifications(cast.owner).count() == 0
    assert Notification.objects.count() == 1


def test_what_was_turned_off_is_not_written(cast: Cast, jobs_that: Happen) -> None:
    change_preferences(
        user=cast.owner, by=cast.owner, changes={"job.failed": {"portal": False, "mail": False}}
    )
    jobs_that("job.failed")

    assert follow() == 0


def test_a_run_that_is_killed_in_the_middle_loses_nothing_and_repeats_nothing(
    cast: Cast, jobs_that: Happen, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs_that("job.failed", count=3)
    real = follow_module.take_in

    def killed(*given: object, **named: object) -> int:
        real(*given, **named)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(follow_module, "take_in", killed)
        with pytest.raises(KeyboardInterrupt):
            follow()
    assert not Notification.objects.exists()

    follow()
    assert found() == [("job.failed", 3, "owner")]


def test_a_cursor_that_was_set_back_counts_nothing_twice(cast: Cast, jobs_that: Happen) -> None:
    before = Cursor.objects.get(source="jobs").position
    jobs_that("job.failed", count=3)
    follow()

    Cursor.objects.filter(source="jobs").update(position=before)
    assert follow() == 0
    mark_read(number=Notification.objects.get().pk, by=cast.owner)
    Cursor.objects.filter(source="jobs").update(position=before)
    follow()

    assert found() == [("job.failed", 3, "owner")]


def test_many_events_are_read_in_batches(
    cast: Cast, jobs_that: Happen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("notifications.services.job_events.BATCH", 2)
    jobs_that("job.failed", count=7)

    follow()

    assert found() == [("job.failed", 7, "owner")]
    assert Cursor.objects.get(source="jobs").position == JobEvent.objects.latest("id").pk


def test_a_run_asks_as_many_questions_for_many_events_as_for_one(
    cast: Cast, jobs_that: Happen, django_assert_num_queries: Callable[..., object]
) -> None:
    jobs_that("job.failed", count=1)
    with django_assert_num_queries(26):
        follow()
    mark_all_read(by=cast.owner)
    jobs_that("job.failed", count=20)
    with django_assert_num_queries(26):
        follow()


@pytest.mark.django_db(transaction=True)
def test_an_event_that_commits_late_is_not_passed_over() -> None:
    """The smaller number is seen after the larger one; the cursor waits for it."""
    the_cast()
    MembershipFactory()
    first = JobEventFactory(kind="job.failed")
    follow()
    inserted, commit = threading.Event(), threading.Event()

    def late() -> None:
        with transaction.atomic():
            JobEvent.objects.create(job=first.job, at=timezone.now(), kind="job.failed", because="late")
            inserted.set()
            commit.wait(patience(10))
        connection.close()

    writer = threading.Thread(target=late)
    writer.start()
    try:
        assert inserted.wait(patience(10))
        JobEvent.objects.create(job=first.job, at=timezone.now(), kind="job.failed", because="early")
        assert settled_up_to("scheduler_jobevent", patience_seconds=0.1) is None
    finally:
        commit.set()
        writer.join()

    follow()

    assert Notification.objects.get().count == 2
