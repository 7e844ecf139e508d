"""The guarded update behind every move along a job's life cycle."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.db import transaction
from django.db.models import F
from django.utils import timezone

from accounts.models import User
from scheduler import outbox
from scheduler.core.lifecycle import MOVES, PUBLIC, TERMINAL, JobState
from scheduler.models import Job, JobEvent


class ImpossibleMove(Exception):
    """The life cycle has no such move: a mistake in the caller."""

    def __init__(self, job_number: int, now: str, to: JobState) -> None:
        super().__init__(f"job {job_number} is {now} and cannot become {to}")


class StaleJob(Exception):
    """Another process moved the job first; the caller decides what that means."""

    def __init__(self, job_number: int) -> None:
        super().__init__(f"job {job_number} has changed since it was read")
        self.job_number = job_number


#: A job that is no longer pending has no pending reason: an old one must never be shown.
NO_REASON: dict[str, Any] = {
    "reason_code": "",
    "reason_category": "",
    "reason_text": "",
    "reason_details": {},
    "reason_at": None,
    "expected_start_at": None,
}


@transaction.atomic
def move_job(
    job: Job,
    to: JobState,
    *,
    because: str,
    by: User | None = None,
    at: datetime | None = None,
    details: dict[str, Any] | None = None,
    **changes: Any,
) -> JobEvent:
    """Move a job once, however many processes try, and write the event; `job` is brought up to date.

    `changes` are further columns written in the same update. Raises ImpossibleMove or StaleJob.
    """
    if to not in MOVES[JobState(job.state)]:
        raise ImpossibleMove(job.number, job.state, to)
    at = at or timezone.now()
    if to in TERMINAL:
        changes.setdefault("completed_at", at)
    if to not in (JobState.QUEUED, JobState.BLOCKED, JobState.HELD):
        changes = NO_REASON | changes
    updated = Job.objects.filter(pk=job.pk, state=job.state, generation=job.generation).update(
        state=to, generation=F("generation") + 1, **changes
    )
    if updated != 1:
        raise StaleJob(job.number)
    job.state, job.generation = to, job.generation + 1
    for name, value in changes.items():
        setattr(job, name, value)
    return record_event(job, f"job.{to}", because=because, by=by, at=at, details=details)


def record_event(
    job: Job,
    kind: str,
    *,
    because: str,
    by: User | None = None,
    at: datetime | None = None,
    details: dict[str, Any] | None = None,
) -> JobEvent:
    """Write one event of a job, and announce it after commit."""
    event = JobEvent.objects.create(
        job=job,
        at=at or timezone.now(),
        kind=kind,
        because=because[:300],
        epoch=job.epoch or None,
        actor=by,
        details=details or {},
    )
    announce_job(job)
    return event


def announce_job(job: Job) -> None:
    """Everybody who may be looking at this job or a list with it."""
    outbox.announce(
        outbox.job_topic(job.number),
        outbox.user_topic(job.user_id),
        outbox.project_topic(job.project_id),
        outbox.QUEUES_TOPIC,
    )


def public(state: str) -> str:
    return PUBLIC[JobState(state)].value
