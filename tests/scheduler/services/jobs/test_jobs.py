"""Submit, cancel, hold, release, requeue: one verb, one transaction, one event, however many try at once."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.db import transaction
from django.utils import timezone

from accounts.models import AuditEvent, User
from infra import notifications as accounts_hints
from infra.errors import Conflict, InvalidInput, MusterError, NotAllowed, NotFound, TooMany
from scheduler import outbox
from scheduler.core.lifecycle import AttemptState, JobState, StopReason
from scheduler.models import Attempt, Job, JobDependency, JobEvent, Queue
from scheduler.services.jobs.submit import submit_job
from scheduler.services.jobs.verbs import cancel_job, hold_job, release_job, requeue_job
from scheduler.state.lifecycle.dependencies import resolve_dependants
from scheduler.state.lifecycle.transitions import move_job
from tests.scheduler.portal import Portal, a_portal, submit_many
from tests.support.at_once import at_once
from tests.support.factories import AllocationFactory, AttemptFactory

pytestmark = pytest.mark.django_db


@pytest.fixture
def portal(db: None) -> Portal:
    return a_portal()


@pytest.fixture
def hints(monkeypatch: pytest.MonkeyPatch, django_capture_on_commit_callbacks: Any) -> list[Any]:
    """What would be told to whom after commit."""
    told: list[Any] = []
    for module in (outbox, accounts_hints):
        monkeypatch.setattr(module, "announce_many", lambda topics: told.extend(topics))
    monkeypatch.setattr(
        outbox, "wake_planner", lambda cluster_id, *, trigger: told.append((cluster_id, trigger))
    )
    return told


def running(portal: Portal, job: Job) -> Attempt:
    """The job as it is once the planner and the agent have had it."""
    move_job(job, JobState.SCHEDULED, because="planned", epoch=1)
    move_job(job, JobState.RUNNING, because="started", started_at=timezone.now())
    attempt = AttemptFactory(job=job, epoch=1, state=AttemptState.RUNNING)
    AllocationFactory(attempt=attempt, node=portal.n1)
    return attempt


def ended(job: Job, state: JobState) -> None:
    at = timezone.now()
    move_job(job, state, because="ended", at=at)
    resolve_dependants([job], at=at)


# ---------------------------------------------------------------- submit


def test_a_submission_writes_job_event_and_audit_and_wakes_the_planner(
    portal: Portal, hints: list[Any]
) -> None:
    job = portal.submit(name="train", gpu_count=1)

    fresh = Job.objects.get()
    assert (fresh.number, fresh.uuid, fresh.state) == (job.number, job.uuid, JobState.QUEUED)
    assert job.uuid.version == 7  # new ones are beside each other in their index
    assert fresh.eligible_at == fresh.created_at
    assert list(JobEvent.objects.values_list("job_id", "kind", "actor")) == [
        (job.number, "job.submitted", portal.cast.owner.pk)
    ]
    audited = AuditEvent.objects.get(action="job.submit")
    assert (audited.object_id, audited.project, audited.after["gpus"]) == (
        str(job.number),
        portal.cast.project,
        1,
    )
    assert (portal.cluster.pk, "submit") in hints
    assert outbox.user_topic(portal.cast.owner.pk) in hints


def test_the_job_that_comes_back_is_the_row(portal: Portal) -> None:
    job = portal.submit(
        name="x", env={"A": "1"}, labels={"k": "v"}, array="3-4", begin_at="2030-01-01T00:00:00Z"
    )

    fresh = Job.objects.get(pk=job.pk)
    for field in Job._meta.concrete_fields:
        assert getattr(job, field.attname) == getattr(fresh, field.attname), field.attname


def test_nothing_is_written_when_a_request_is_refused(portal: Portal) -> None:
    with pytest.raises(InvalidInput):
        portal.submit(cpu_cores=-1)

    assert (Job.objects.count(), JobEvent.objects.count(), AuditEvent.objects.count()) == (0, 0, 0)


def test_an_array_becomes_one_job_for_each_index(portal: Portal) -> None:
    first = portal.submit(name="sweep", array="0-9%3")

    jobs = list(Job.objects.order_by("number"))
    assert jobs[0] == first
    assert [job.array_index for job in jobs] == list(range(10))
    assert {job.array_id for job in jobs} == {first.array_id}
    assert {job.array_max_running for job in jobs} == {3}
    assert JobEvent.objects.count() == 10
    assert AuditEvent.objects.count() == 1


def test_many_are_taken_in_the_order_they_came(portal: Portal) -> None:
    jobs = submit_many(
        payloads=[{"command": f"echo {n}", "cpu_cores": n % 3 + 1} for n in range(50)], by=portal.cast.owner
    )

    assert [job.command for job in Job.objects.order_by("number")] == [f"echo {n}" for n in range(50)]
    assert [job.number for job in jobs] == sorted(job.number for job in jobs)
    assert JobEvent.objects.count() == 50


def test_many_cost_as_many_statements_as_two(portal: Portal, django_assert_max_num_queries: Any) -> None:
    def take(count: int) -> int:
        with django_assert_max_num_queries(20) as queries:
            submit_many(payloads=[{"command": "true"}] * count, by=portal.cast.owner)
        return len(queries)

    portal.submit()  # the audit chain begins, the cluster's shapes are read

    assert take(2) == take(300) == 5


def test_one_bad_request_refuses_all_of_a_batch_and_says_which(portal: Portal) -> None:
    with pytest.raises(InvalidInput) as refused:
        submit_many(
            payloads=[{"command": "true"}, {"command": "true", "tasks": 0}, {"comand": "true"}],
            by=portal.cast.owner,
        )

    assert [p.field for p in refused.value.problems] == ["jobs/1/tasks", "jobs/2/comand", "jobs/2/command"]
    assert Job.objects.count() == 0


def test_a_job_that_begins_later_is_queued_and_not_yet_eligible(portal: Portal) -> None:
    begin_at = timezone.now() + timedelta(hours=2)

    job = portal.submit(begin_at=begin_at.isoformat())

    assert (job.state, job.eligible_at) == (JobState.QUEUED, begin_at)


def test_a_held_submission_waits_for_its_release(portal: Portal) -> None:
    job = portal.submit(hold=True)

    assert (job.state, job.reason_code, job.held_by) == (JobState.HELD, "HeldByUser", "user")
    assert release_job(job=job, by=portal.cast.owner).state == JobState.QUEUED


def test_a_full_queue_takes_no_more_and_says_how_many_it_takes(portal: Portal) -> None:
    Queue.objects.update(max_pending_jobs=3)
    portal.submit(array="0-1")

    with pytest.raises(TooMany, match="has 2 pending jobs of at most 3; 2 more"):
        portal.submit(array="0-1")
    portal.submit()

    assert Job.objects.count() == 3


# ---------------------------------------------------------------- dependencies


def test_a_job_waits_for_another_and_is_let_go_when_that_completes(portal: Portal) -> None:
    first = portal.submit(name="prep")
    second = portal.submit(depends_on=[first.number])
    assert (second.state, second.reason_code) == (JobState.BLOCKED, "Dependency")
    assert second.reason_text == f"Depends on job {first.number} (prep)."

    running(portal, first)
    ended(first, JobState.COMPLETED)

    second.refresh_from_db()
    assert (second.state, second.reason_code) == (JobState.QUEUED, "NotEvaluatedYet")
    assert second.eligible_at is not None


def test_a_job_whose_dependency_fails_says_that_it_can_never_start(portal: Portal) -> None:
    first = portal.submit(name="prep")
    second = portal.submit(depends_on=[first.number])

    cancel_job(job=first, by=portal.cast.owner)

    second.refresh_from_db()
    assert (second.state, second.reason_code) == (JobState.BLOCKED, "DependencyNeverSatisfied")
    assert "was cancelled" in second.reason_text


def test_a_dependency_that_holds_already_blocks_nothing(portal: Portal) -> None:
    first = portal.submit()
    running(portal, first)
    ended(first, JobState.COMPLETED)

    second = portal.submit(depends_on=[first.number])

    assert second.state == JobState.QUEUED
    assert JobDependency.objects.get(job=second).satisfied is True


def test_all_dependencies_have_to_hold(portal: Portal) -> None:
    first, second = portal.submit(), portal.submit()
    third = portal.submit(depends_on=[first.number, second.number])
    for job, expected in ((first, JobState.BLOCKED), (second, JobState.QUEUED)):
        running(portal, job)
        ended(job, JobState.COMPLETED)
        third.refresh_from_db()

        assert third.state == expected


def test_a_released_job_goes_on_waiting_for_others(portal: Portal) -> None:
    first = portal.submit()
    second = hold_job(job=portal.submit(depends_on=[first.number]), by=portal.cast.owner)

    released = release_job(job=second, by=portal.cast.owner, reason="done looking")
    assert released.state == JobState.BLOCKED
    assert AuditEvent.objects.get(action="job.release").reason == "done looking"


# ---------------------------------------------------------------- cancel


def test_a_pending_job_is_over_at_once(portal: Portal) -> None:
    job = cancel_job(job=portal.submit(), by=portal.cast.owner, reason="wrong data")

    job.refresh_from_db()
    assert (job.state, job.reason_code) == (JobState.CANCELLED, "")
    assert job.completed_at is not None
    assert job.end_text == "cancelled by owner: wrong data"
    assert AuditEvent.objects.get(action="job.cancel").reason == "wrong data"


def test_a_running_job_is_told_to_stop_and_its_node_is_woken(portal: Portal, hints: list[Any]) -> None:
    job = portal.submit()
    attempt = running(portal, job)

    cancel_job(job=job, by=portal.cast.owner)

    attempt.refresh_from_db()
    job.refresh_from_db()
    assert job.state == JobState.STOPPING
    assert attempt.stop_reason == StopReason.CANCELLED
    assert attempt.stop_asked_at is not None
    assert outbox.node_topic(portal.n1.pk) in hints


def test_cancelling_twice_changes_nothing(portal: Portal) -> None:
    job = cancel_job(job=portal.submit(), by=portal.cast.owner)
    events = JobEvent.objects.count()

    cancel_job(job=job, by=portal.cast.owner)

    assert JobEvent.objects.count() == events
    assert AuditEvent.objects.filter(action="job.cancel").count() == 1


def test_a_finished_job_cannot_be_cancelled(portal: Portal) -> None:
    job = portal.submit()
    running(portal, job)
    ended(job, JobState.COMPLETED)

    with pytest.raises(Conflict, match="completed already"):
        cancel_job(job=job, by=portal.cast.owner)


def test_a_job_that_moved_meanwhile_is_looked_at_again(portal: Portal) -> None:
    job = portal.submit()
    stale = Job.objects.select_related("project", "queue").get(pk=job.pk)
    attempt = running(portal, job)

    cancel_job(job=stale, by=portal.cast.owner)

    attempt.refresh_from_db()
    assert stale.state == JobState.STOPPING
    assert attempt.stop_reason == StopReason.CANCELLED


def test_an_earlier_reason_to_stop_is_kept(portal: Portal) -> None:
    job = portal.submit()
    attempt = running(portal, job)
    asked_at = timezone.now()
    Attempt.objects.update(stop_reason=StopReason.TIME_LIMIT, stop_asked_at=asked_at)

    cancel_job(job=job, by=portal.cast.owner)

    attempt.refresh_from_db()
    assert (attempt.stop_reason, attempt.stop_asked_at) == (StopReason.TIME_LIMIT, asked_at)


@pytest.mark.parametrize(
    ("who", "expected"),
    [
        ("owner", None), ("lead", None), ("operator", None), ("admin", None),
        ("colleague", NotAllowed), ("viewer", NotAllowed), ("auditor", NotAllowed), ("stranger", NotFound),
    ],
)  # fmt: skip
@pytest.mark.parametrize("verb", [cancel_job, hold_job])
def test_who_may_stop_a_job(
    portal: Portal, verb: Callable[..., Job], who: str, expected: type[MusterError] | None
) -> None:
    job, by = portal.submit(), getattr(portal.cast, who)

    if expected is None:
        verb(job=job, by=by)
    else:
        with pytest.raises(expected):
            verb(job=job, by=by)

    job.refresh_from_db()
    assert (job.state == JobState.QUEUED) == (expected is not None)


# ---------------------------------------------------------------- hold, release, requeue


def test_what_an_operator_held_only_an_operator_releases(portal: Portal) -> None:
    job = hold_job(job=portal.submit(), by=portal.cast.operator, reason="looks wrong")

    assert job.reason_code == "HeldByAdmin"
    with pytest.raises(NotAllowed):
        release_job(job=job, by=portal.cast.owner)
    assert release_job(job=job, by=portal.cast.operator).state == JobState.QUEUED


def test_an_operators_hold_takes_the_place_of_the_owners(portal: Portal) -> None:
    job = hold_job(job=portal.submit(), by=portal.cast.owner)
    hold_job(job=job, by=portal.cast.operator, reason="looks wrong")
    hold_job(job=job, by=portal.cast.owner)  # changes nothing

    job.refresh_from_db()
    assert (job.held_by, job.reason_code) == ("admin", "HeldByAdmin")
    assert "looks wrong" in job.reason_text
    assert [event.actor for event in job.events.filter(kind="job.held").order_by("id")] == [
        portal.cast.owner,
        portal.cast.operator,
    ]
    assert AuditEvent.objects.filter(action="job.hold").count() == 2
    with pytest.raises(NotAllowed, match="by an operator"):
        release_job(job=job, by=portal.cast.owner)


def test_what_a_lead_held_a_lead_releases_and_not_the_owner(portal: Portal) -> None:
    job = hold_job(job=portal.submit(), by=portal.cast.lead, reason="wrong data")

    with pytest.raises(NotAllowed, match="by a lead"):
        release_job(job=job, by=portal.cast.owner)
    assert release_job(job=job, by=portal.cast.lead).state == JobState.QUEUED
    hold_job(job=job, by=portal.cast.operator)
    with pytest.raises(NotAllowed, match="by an operator"):
        release_job(job=job, by=portal.cast.lead)


def test_a_running_job_cannot_be_held(portal: Portal) -> None:
    job = portal.submit()
    running(portal, job)

    with pytest.raises(Conflict, match="only a pending job"):
        hold_job(job=job, by=portal.cast.owner)


def test_a_requeued_job_is_told_to_stop_as_if_preempted(portal: Portal) -> None:
    job = portal.submit()
    attempt = running(portal, job)

    requeue_job(job=job, by=portal.cast.owner)

    attempt.refresh_from_db()
    assert job.state == JobState.PREEMPTING
    assert attempt.stop_reason == StopReason.PREEMPTED


def test_a_job_that_runs_at_most_once_is_not_requeued(portal: Portal) -> None:
    job = portal.submit(restart_policy="never")
    running(portal, job)

    with pytest.raises(Conflict, match="runs at most once") as refused:
        requeue_job(job=job, by=portal.cast.owner)

    assert "submit it again" in refused.value.way_out
    job.refresh_from_db()
    assert job.state == JobState.RUNNING


def test_a_pending_job_is_not_requeued(portal: Portal) -> None:
    job = portal.submit()
    with pytest.raises(Conflict, match="not running"):
        requeue_job(job=job, by=portal.cast.owner)


# ---------------------------------------------------------------- several at once


def all_at_once(count: int, do: Callable[[int], Any]) -> list[Any]:
    """What each number led to: what was returned, or the refusal."""
    return at_once(*[partial(do, number) for number in range(count)], refusals=MusterError)


@pytest.mark.django_db(transaction=True)
def test_parallel_submissions_at_the_edge_of_a_full_queue_fill_it_exactly() -> None:
    portal = a_portal()
    Queue.objects.update(max_pending_jobs=10)

    results = all_at_once(16, lambda _: submit_job(payload={"command": "true"}, by=portal.cast.owner))

    assert Job.objects.count() == 10
    assert sum(isinstance(result, TooMany) for result in results) == 6


@pytest.mark.django_db(transaction=True)
def test_parallel_cancels_of_one_job_make_one_event() -> None:
    portal = a_portal()
    job = portal.submit()

    def cancel(_: int) -> Job:
        own = Job.objects.select_related("project", "queue").get(pk=job.pk)
        return cancel_job(job=own, by=User.objects.get(pk=portal.cast.owner.pk))

    results = all_at_once(8, cancel)

    assert {result.state for result in results} == {JobState.CANCELLED}
    assert JobEvent.objects.filter(job=job, kind="job.cancelled").count() == 1
    assert AuditEvent.objects.filter(action="job.cancel").count() == 1


@pytest.mark.django_db(transaction=True)
def test_no_wait_is_lost_when_a_job_ends_while_another_is_submitted_after_it() -> None:
    portal = a_portal()
    first = portal.submit()
    running(portal, first)
    after: list[Job] = []

    def race(number: int) -> None:
        if number == 0:
            with transaction.atomic():
                ended(Job.objects.get(pk=first.pk), JobState.COMPLETED)
        else:
            after.append(
                submit_job(payload={"command": "true", "depends_on": [first.number]}, by=portal.cast.owner)
            )

    all_at_once(6, race)

    assert len(after) == 5
    assert set(Job.objects.filter(dependencies__on=first).values_list("state", flat=True)) == {
        JobState.QUEUED
    }
