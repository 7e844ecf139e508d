"""Requeue of jobs that have ended: the same job waits again, unless results would be lost or no start could follow."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from accounts.models import AuditEvent, Membership
from infra.errors import Conflict
from scheduler.core.lifecycle import AttemptState, JobState
from scheduler.models import Job, JobElements, KeptResult, UnfinishedJob
from scheduler.models.results.artifact import ArtifactUpload
from scheduler.services.jobs.verbs import cancel_job, requeue_job
from scheduler.services.planning import cycles
from tests.scheduler.api.conftest import Api
from tests.scheduler.portal import Portal
from tests.support.factories import AttemptFactory, FolderUploadFactory, JobFactory


def ended(portal: Portal, state: JobState = JobState.FAILED, **fields: Any) -> Job:
    """A job of the owner that ran once and is over."""
    now = timezone.now()
    fields = {
        "project": portal.cast.project, "user": portal.cast.owner, "queue": portal.queue, "epoch": 1,
        "started_at": now, "completed_at": now, "exit_code": 3, "end_text": "Ended with exit code 3.",
    } | fields  # fmt: skip
    job: Job = JobFactory(state=state, **fields)
    over = AttemptState.SUCCEEDED if state == JobState.COMPLETED else AttemptState.FAILED
    AttemptFactory(job=job, state=over, ended_at=now, exit_code=3)
    return job


def test_the_same_job_waits_again_and_gets_a_second_attempt(portal: Portal) -> None:
    job = ended(portal, failure_class="user-error")

    requeue_job(job=job, by=portal.cast.owner, reason="the disk is free")

    job = Job.objects.get(pk=job.pk)
    assert (job.state, job.outcome, job.unsuccessful, job.completed_at, job.exit_code, job.end_text) == (
        "queued", None, None, None, None, ""
    )  # fmt: skip
    assert job.eligible_at is not None
    assert UnfinishedJob.objects.filter(number=job.number).exists()
    event = job.events.latest("id")
    assert (event.kind, event.because) == ("job.queued", "requeued by owner: the disk is free")
    row = AuditEvent.objects.get(action="job.requeue")
    assert (row.before, row.after) == ({"state": "failed"}, {"state": "queued"})
    cycles.run_cycle(cluster_id=portal.cluster.pk, trigger="test")
    job.refresh_from_db()
    assert (job.state, job.epoch, list(job.attempts.order_by("epoch").values_list("epoch", "exit_code"))) == (
        "scheduled", 2, [(1, 3), (2, None)]
    )  # fmt: skip


def test_a_cancelled_job_waits_for_what_it_waited_for(portal: Portal) -> None:
    first = portal.submit()
    job = portal.submit(depends_on=[first.number])
    cancel_job(job=job, by=portal.cast.owner)

    requeue_job(job=job, by=portal.cast.owner)

    assert Job.objects.get(pk=job.pk).state == JobState.BLOCKED


def lost_result(portal: Portal, job: Job) -> None:
    now = timezone.now()
    KeptResult.objects.create(
        job=job, epoch=1, rank=0, node=portal.n1, user=job.user, files=1, size_bytes=7, kept_at=now
    )


#: Why a job is refused, the state that it ended in, its fields, and what else there is.
REFUSED: Any = {
    "over its results": (JobState.COMPLETED, {}, lost_result),
    "empty its output file": (JobState.COMPLETED, {"output_path": "/tmp/out"}, None),
    "artefacts are being stored": (
        JobState.FAILED, {},
        lambda _, job: ArtifactUpload.objects.create(
            job=job, epoch=1, rank=0, state="waiting", created_at=timezone.now(), next_try_at=timezone.now()
        ),
    ),
    "runs at most once": (JobState.FAILED, {"restart_policy": "never"}, None),
    "has passed": (
        JobState.FAILED, {"deadline_at": timezone.now() - timedelta(hours=1), "deadline_action": "end"}, None
    ),
    "several elements": (
        JobState.FAILED, {}, lambda _, job: JobElements.objects.create(job=job, indices=[1, 2], limit_seconds=None)
    ),
    "no longer submit jobs": (JobState.FAILED, {}, lambda _, job: Membership.objects.filter(user=job.user).delete()),
}  # fmt: skip


@pytest.mark.parametrize("why", REFUSED)
def test_what_would_be_lost_or_could_not_start_is_refused_with_the_reason(portal: Portal, why: str) -> None:
    state, fields, more = REFUSED[why]
    job = ended(portal, state, **fields)
    if more is not None:
        more(portal, job)

    with pytest.raises(Conflict, match=why) as refused:
        requeue_job(job=job, by=portal.cast.admin)

    assert refused.value.way_out
    assert Job.objects.get(pk=job.pk).state == state


def test_an_upload_that_was_removed_is_missed(portal: Portal) -> None:
    upload = FolderUploadFactory(user=portal.cast.owner, state="removed")
    job = ended(portal, upload=upload.pk)

    with pytest.raises(Conflict, match="uploaded folder"):
        requeue_job(job=job, by=portal.cast.owner)


def test_a_filter_has_to_name_the_state_of_jobs_that_are_over(api: Api, portal: Portal) -> None:
    failed, done = ended(portal), ended(portal, JobState.COMPLETED)
    client = api(portal.cast.owner)

    def asked(**filters: str) -> int:
        answer = client.post("/api/v1/jobs:act", {"verb": "requeue", "filter": filters})
        assert answer.status_code == 200, answer.content
        return int(answer.json()["done"])

    assert (asked(user="me"), asked(user="me", state="failed"), asked(state="failed")) == (0, 1, 0)
    states = dict(Job.objects.values_list("pk", "state"))
    assert (states[failed.pk], states[done.pk]) == ("queued", "completed")


@pytest.mark.parametrize(
    ("who", "status"),
    [("owner", 200), ("lead", 200), ("operator", 200), ("colleague", 403), ("stranger", 404)],
)
def test_who_may_requeue_an_ended_job(api: Api, portal: Portal, who: str, status: int) -> None:
    job = ended(portal)

    answer = api(getattr(portal.cast, who)).post(f"/api/v1/jobs/{job.number}/requeue", {})

    assert answer.status_code == status, answer.content
