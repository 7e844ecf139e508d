"""Submissions that are written together: each is accepted or refused by itself, with rows as if it were alone."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import DataError, connection, transaction
from django.test.utils import CaptureQueriesContext

from accounts.models import AuditEvent, User
from accounts.services.audit_check import verify
from infra.errors import TooMany
from infra.request_context import RequestContext
from quotas.models import Quota
from scheduler.models import Job, JobEvent, Queue
from scheduler.services.jobs.write_jobs import NewJobs, Submission, write_submissions
from scheduler.services.submission.parse_request import parse_job
from scheduler.services.submission.submitter import Catalogue, Catalogues
from tests.scheduler.portal import Portal, a_portal

pytestmark = pytest.mark.django_db


@pytest.fixture
def portal(db: None) -> Portal:
    return a_portal()


def submission(by: User, *payloads: dict[str, Any], via: str = "api", **known: Any) -> Submission:
    catalogue = Catalogue(by)
    specs = [parse_job({"command": "true", **payload}, by=by, catalogue=catalogue) for payload in payloads]
    return Submission(specs=specs, by=by, via=via, known=RequestContext(**known))


def test_each_of_several_people_gets_their_jobs_events_and_audit_row(portal: Portal) -> None:
    owner, colleague = portal.cast.owner, portal.cast.colleague
    outcomes = write_submissions(
        [
            submission(owner, {"name": "a"}, {"name": "b", "cpu_cores": 2}, request_id="first"),
            submission(colleague, {"name": "c", "hold": True}, request_id="second", address="10.0.0.9"),
            submission(owner, {"name": "d", "array": "1-3"}, via="web", request_id="third"),
        ]
    )

    assert [[job.name for job in jobs] for jobs in outcomes if isinstance(jobs, NewJobs)] == [
        ["a", "b"], ["c"], ["d", "d", "d"],
    ]  # fmt: skip
    rows = list(Job.objects.order_by("number"))
    written = [job for jobs in outcomes if isinstance(jobs, NewJobs) for job in jobs]
    assert [{f.attname: getattr(job, f.attname) for f in Job._meta.concrete_fields} for job in written] == [
        {f.attname: getattr(job, f.attname) for f in Job._meta.concrete_fields} for job in rows
    ]
    assert list(JobEvent.objects.order_by("job_id").values_list("job_id", "because", "actor", "details")) == [
        (job.number, f"submitted by {job.user.username}", job.user_id, {"via": job.submitted_via})
        for job in rows
    ]
    audited = AuditEvent.objects.filter(action="job.submit").order_by("id")
    assert {(row.actor_id, row.request_id, row.object_id) for row in audited} == {
        (owner.pk, "first", str(rows[0].number)),
        (colleague.pk, "second", str(rows[2].number)),
        (owner.pk, "third", str(rows[3].number)),
    }
    assert audited.get(request_id="second").address == "10.0.0.9"
    assert verify().ok


def test_a_full_queue_refuses_the_one_too_many_and_no_other(portal: Portal) -> None:
    Queue.objects.create(cluster=portal.cluster, name="small", slug="small", max_pending_jobs=3)
    owner, colleague = portal.cast.owner, portal.cast.colleague
    outcomes = write_submissions(
        [
            submission(owner, {"queue": "small"}, {"queue": "small"}),
            submission(colleague, {"queue": "small"}, {"queue": "small"}),
            submission(colleague, {"queue": "small"}),
            submission(owner, {}),
            submission(owner, {"queue": "small"}),
        ]
    )

    assert [type(outcome) for outcome in outcomes] == [NewJobs, TooMany, NewJobs, NewJobs, TooMany]
    assert Job.objects.filter(queue__slug="small").count() == 3
    assert Job.objects.count() == 4
    assert AuditEvent.objects.filter(action="job.submit").count() == 3


def test_a_line_counts_all_that_are_written_together(portal: Portal) -> None:
    Quota.objects.create(project=portal.cast.project, resource="pending_jobs", hard=2)
    outcomes = write_submissions([submission(portal.cast.owner, {}) for _ in range(3)])

    assert [type(outcome) for outcome in outcomes] == [NewJobs, NewJobs, TooMany]


def test_a_row_that_cannot_be_stored_takes_the_others_with_it(portal: Portal) -> None:
    """Who sent them together sends each by itself then."""
    bad = submission(portal.cast.owner, {})
    bad.specs[0].name = "x" * 300

    with pytest.raises(DataError), transaction.atomic():
        write_submissions([submission(portal.cast.owner, {}), bad])

    assert not Job.objects.exists()
    assert not AuditEvent.objects.filter(action="job.submit").exists()


def test_thirty_submissions_take_as_many_statements_as_one(portal: Portal) -> None:
    write_submissions([submission(portal.cast.owner, {}), submission(portal.cast.colleague, {})])
    counts = []
    for size in (1, 30):
        people = [portal.cast.owner, portal.cast.colleague]
        together = [submission(people[n % 2], {"name": f"n{n}"}) for n in range(size)]
        with CaptureQueriesContext(connection) as asked:
            write_submissions(together)
        counts.append([query["sql"].strip().split()[0] for query in asked])

    assert counts[0] == counts[1] == ["SAVEPOINT", "WITH", "WITH", "RELEASE"]


def test_a_catalogue_of_many_says_what_that_of_one_says(portal: Portal) -> None:
    people = [portal.cast.owner, portal.cast.viewer, portal.cast.lead]
    Quota.objects.create(project=portal.cast.project, resource="gpu_millis", hard=2)
    Quota.objects.create(user=portal.cast.lead, resource="gpu_millis", hard=1)

    for person, catalogue in zip(people, Catalogues().of(people), strict=True):
        assert catalogue._built == Catalogue(person)._built


def test_a_kept_catalogue_sees_every_change_at_once(portal: Portal) -> None:
    owner, kept = portal.cast.owner, Catalogues()
    (first,) = kept.of([owner])
    assert kept.of([owner]) == [first]

    Queue.objects.filter(pk=portal.queue.pk).update(max_wall_seconds=60)
    (second,) = kept.of([owner])
    owner.memberships.all().delete()
    (third,) = kept.of([owner])

    assert [queue.max_wall_seconds for queue in second._queues] == [60]
    assert third is not second
    assert third._projects == []
