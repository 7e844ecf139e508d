"""Who may read results and who may remove them; how long they are kept, and what is said before they leave."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from accounts.models import AuditEvent, User
from infra.errors import NotAllowed, NotFound
from scheduler.models import JobEvent, KeptResult, NodeHeartbeat
from scheduler.services.results.kept import MIB, Reported, mark_fetched, take_kept
from scheduler.services.results.reading import folders_of
from scheduler.services.results.removal import remove_results
from tests.scheduler.portal import Portal, a_portal
from tests.support.factories import (
    AttemptFactory,
    JobFactory,
    TaskFactory,
    bearer,
)

pytestmark = pytest.mark.django_db


class Kept:
    """A portal with a node, and jobs that have run there."""

    def __init__(self) -> None:
        self.portal: Portal = a_portal()
        self.node = self.portal.n1

    def a_job(self, user: User | None = None, **fields: Any) -> Any:
        job = JobFactory(
            project=self.portal.cast.project, user=user or self.portal.cast.owner, queue=self.portal.queue,
            state="completed", completed_at=timezone.now(), epoch=1, **fields,
        )  # fmt: skip
        attempt = AttemptFactory(job=job, epoch=1, state="succeeded", ended_at=timezone.now())
        TaskFactory(attempt=attempt, rank=0, node=self.node, state="succeeded")
        return job

    def report(self, *folders: tuple[Any, int], node: Any = None) -> list[tuple[int, int, int]]:
        reported = [Reported(job.number, 1, 0, 1, mib * MIB, True) for job, mib in folders]
        return take_kept(node=node or self.node, first=0, last=2**62, reported=reported)


@pytest.fixture
def kept(db: None) -> Kept:
    return Kept()


def test_the_people_of_the_project_read_results_and_nobody_else_knows_of_them(kept: Kept) -> None:
    cast = kept.portal.cast
    job = kept.a_job()
    kept.report((job, 1))

    for user in (cast.owner, cast.colleague, cast.lead, cast.admin):
        assert [one.kept.job_id for one in folders_of(job, by=user) if one.kept] == [job.number]
    for user in (cast.viewer, cast.operator, cast.auditor):
        with pytest.raises(NotAllowed):
            folders_of(job, by=user)
    with pytest.raises(NotFound):
        folders_of(job, by=cast.stranger)
    for what in ("", "/files", "/file?path=a", "/archive"):
        address = f"/api/v1/jobs/{job.number}/results{what}"
        assert Client().get(address, headers=bearer(cast.stranger, "jobs:read")).status_code == 404
        assert Client().get(address, headers=bearer(cast.viewer, "jobs:read")).status_code == 403
    for what in ("file/?path=a", "archive/"):
        for user, status in ((cast.stranger, 404), (cast.viewer, 403)):
            client = Client()
            client.force_login(user, backend="accounts.backends.PasswordBackend")
            assert client.get(f"/jobs/{job.number}/results/{what}").status_code == status


def test_removal_is_the_owners_and_the_leads_and_is_audited(kept: Kept) -> None:
    job = kept.a_job()
    kept.report((job, 3))
    with pytest.raises(NotAllowed):
        remove_results(job=job, by=kept.portal.cast.colleague)

    assert remove_results(job=job, by=kept.portal.cast.owner, reason="disk") == 1

    row = AuditEvent.objects.get(action="job.remove_results")
    assert (row.before["folders"], row.before["bytes"], row.reason) == (1, 3 * MIB, "disk")
    assert kept.report((job, 3)) == [(job.number, 1, 0)]
    assert kept.report() == []
    assert KeptResult.objects.get().left_at is not None


def test_an_operator_removes_results_on_the_page_without_seeing_them(kept: Kept) -> None:
    """The API lets operators remove what fills a disk; the page shows how much, and no name of a file."""
    cast, job = kept.portal.cast, kept.a_job()
    kept.report((job, 3))
    address = f"/jobs/{job.number}/?tab=results"

    def page(user: User) -> str:
        client = Client()
        client.force_login(user, backend="accounts.backends.PasswordBackend")
        return client.get(address).content.decode()

    shown = page(cast.operator)
    assert "Kept on n1: 1 file, 3" in shown
    assert 'data-dialog="remove-results-dialog"' in shown
    assert "Only members of the project can read results" in shown
    assert "results/archive" not in shown
    for other in (cast.viewer, cast.auditor):
        assert "Kept on n1" not in page(other)
        assert "remove-results-dialog" not in page(other)

    client = Client()
    client.force_login(cast.operator, backend="accounts.backends.PasswordBackend")
    assert client.post(f"/jobs/{job.number}/results/remove/", {"reason": "disk full"}).status_code == 302

    assert AuditEvent.objects.get(action="job.remove_results").actor == cast.operator
    assert "remove-results-dialog" not in page(cast.operator)


def test_a_node_keeps_only_what_ran_there(kept: Kept) -> None:
    job = kept.a_job()

    assert kept.report((job, 1), node=kept.portal.n2) == [(job.number, 1, 0)]

    assert not KeptResult.objects.exists()


def test_the_queue_says_for_how_long_and_else_the_site(kept: Kept, settings: Any) -> None:
    settings.MUSTER_KEEP_RESULTS_DAYS = 0
    site = kept.a_job()
    kept.report((site, 1))
    kept.portal.queue.results_days = 2
    kept.portal.queue.save()
    queue = kept.a_job()
    kept.report((site, 1), (queue, 1))

    assert KeptResult.objects.get(job=site).leaves_at is None
    leaves_in = KeptResult.objects.get(job=queue).leaves_at - timezone.now()
    assert timedelta(days=1, hours=23) < leaves_in <= timedelta(days=2)


def test_the_oldest_beyond_a_limit_leave_after_a_notice_that_their_owner_can_read(
    kept: Kept, settings: Any
) -> None:
    settings.MUSTER_RESULTS_PERSON_MIB, settings.MUSTER_RESULTS_NODE_MIB = 100, 0
    first, second, third = (kept.a_job() for _ in range(3))
    elses = kept.a_job(user=kept.portal.cast.lead)
    kept.report((elses, 90))
    kept.report((elses, 90), (first, 60))
    kept.report((elses, 90), (first, 60), (second, 30))
    assert not JobEvent.objects.filter(kind="job.results_leaving").exists()

    kept.report((elses, 90), (first, 60), (second, 30), (third, 30))

    (event,) = JobEvent.objects.filter(kind="job.results_leaving")
    assert event.job_id == first.number
    assert "limit per person on the node exceeded" in event.because
    leaving = KeptResult.objects.get(job=first)
    assert timedelta(hours=23) < leaving.leaves_at - timezone.now() <= timedelta(hours=24)
    kept.report((elses, 90), (first, 60), (second, 30), (third, 30))
    assert JobEvent.objects.filter(kind="job.results_leaving").count() == 1  # said once


def test_one_job_that_left_too_much_is_told_so(kept: Kept) -> None:
    kept.portal.queue.results_job_mib = 10
    kept.portal.queue.save()
    job = kept.a_job()

    kept.report((job, 11))

    assert KeptResult.objects.get(job=job).leaves_because == "job_size"
    assert JobEvent.objects.filter(job=job, kind="job.results_leaving").exists()


def test_kept_until_fetched_leaves_once_all_of_it_was_downloaded(kept: Kept) -> None:
    kept.portal.queue.results_until_fetched, kept.portal.queue.results_days = True, 0
    kept.portal.queue.save()
    job = kept.a_job()
    kept.report((job, 1))
    row = KeptResult.objects.get()
    assert row.leaves_at is None

    mark_fetched(row.pk)

    row.refresh_from_db()
    assert (row.leaves_because, row.fetched_at is not None) == ("fetched", True)
    assert kept.report((job, 1)) == []  # not before the notice is over


def test_a_deleted_job_takes_its_results_along(kept: Kept) -> None:
    job = kept.a_job()
    kept.report((job, 1))
    KeptResult.objects.all().delete()
    number = job.number
    job.delete()

    assert kept.report((job, 1)) == [(number, 1, 0)]


def test_the_page_of_a_wide_job_leads_to_every_folder_and_says_where_there_is_none(kept: Kept) -> None:
    job = kept.a_job(tasks=43)
    attempt = job.attempts.get()
    for rank in range(1, 43):
        TaskFactory(attempt=attempt, rank=rank, node=kept.node, state="succeeded")
    reported = [Reported(job.number, 1, rank, 1, MIB, True) for rank in range(43)]
    assert take_kept(node=kept.node, first=0, last=2**62, reported=reported) == []
    NodeHeartbeat.objects.update(
        last_seen_at=timezone.now() - timedelta(hours=1)
    )  # no agent runs here, and no page is to wait for one
    client = Client()
    client.force_login(kept.portal.cast.owner, backend="accounts.backends.PasswordBackend")

    def page(**asked: Any) -> str:
        return client.get(f"/jobs/{job.number}/", {"tab": "results", **asked}).content.decode()

    assert "43 folders; the first 40 are above" in page()
    assert "attempt 1, task 42</span>" in page(attempt=1, rank=42)
    assert "There is no folder" not in page(attempt=1, rank=42)
    assert "There is no folder of that attempt and task; this is the first one." in page(attempt=1, rank=43)
    assert "There is no folder of that attempt and task" in page(attempt=7)
    for what in ("results/archive/?attempt=1&rank=0&kind=rar", "artifacts/archive/?kind=rar"):
        answer = client.get(f"/jobs/{job.number}/{what}")
        assert (answer.status_code, "Archives are tar or zip." in answer.content.decode()) == (422, True)
