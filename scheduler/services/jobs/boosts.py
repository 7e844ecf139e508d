"""Boosts: an operator raises a job's effective priority for a time, with a reason that all can read."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from accounts import permissions
from accounts.models import User
from accounts.services import audit
from infra.errors import Conflict, FieldProblem, InvalidInput
from infra.times_in_text import written
from scheduler import outbox
from scheduler.core.lifecycle import HOW_ENDED
from scheduler.models import Job
from scheduler.state.lifecycle.transitions import record_event

DAY_SECONDS: Final = 24 * 3600
LONGEST_SECONDS: Final = 30 * DAY_SECONDS
SHORTEST_SECONDS: Final = 60


def boost_job(*, job: Job, by: User, points: int, reason: str, seconds: int = DAY_SECONDS) -> Job:
    """Add points to a job's effective priority for `seconds`; 0 points end its boost.

    The job's own priority, which its owner's ceiling bounds, stays as it is. Another boost replaces the first.
    Raises InvalidInput for more than PRIORITY_BOOST_CAP allows, Conflict for a job that has ended.
    """
    permissions.require(by, "boost", job)
    reason = reason.strip()
    _check(job, points, seconds, reason)
    now = timezone.now()
    until = now + timedelta(seconds=seconds) if points else None
    with transaction.atomic():
        row = Job.objects.select_for_update(of=("self",), no_key=True).select_related("queue").get(pk=job.pk)
        if row.is_terminal:
            raise Conflict(
                message=f"Job {job.said_number} {HOW_ENDED[row.state]} and cannot be boosted.",
                way_out="Only pending and running jobs can be boosted.",
            )
        before = {
            "boost": row.boost_now,
            "until": row.boost_until_at.isoformat() if row.boost_now and row.boost_until_at else None,
        }
        row.boost, row.boost_until_at = points, until
        row.save(update_fields=["boost", "boost_until_at"])
        text = (
            f"boosted by {points} to {row.priority + points} until {written(until)} by {by.username}"
            if until
            else f"boost ended by {by.username}"
        )
        record_event(
            row, "job.boosted", because=f"{text}: {reason}", by=by, at=now,
            details={"points": points, "until": until.isoformat() if until else None, "reason": reason},
        )  # fmt: skip
        outbox.wake_planner(row.queue.cluster_id, trigger="boost")
        audit.record(
            by=by, action="job.boost", thing=row, before=before,
            after={"boost": points, "until": until.isoformat() if until else None},
            reason=reason, project=row.project,
        )  # fmt: skip
    job.boost, job.boost_until_at = points, until
    return job


def _check(job: Job, points: int, seconds: int, reason: str) -> None:
    problems = []
    most = max(settings.PRIORITY_BOOST_CAP - job.priority, 0)
    if not 0 <= points <= most:
        text = f"Must be from 0 to {most}: a boost cannot raise the priority above {settings.PRIORITY_BOOST_CAP}."
        problems.append(FieldProblem("points", text, "out-of-range"))
    if not SHORTEST_SECONDS <= seconds <= LONGEST_SECONDS:
        problems.append(FieldProblem("seconds", "Must be from a minute to 30 days.", "out-of-range"))
    if not reason:
        problems.append(
            FieldProblem("reason", "Required: shown to the owners of jobs that are passed.", "required")
        )
    if problems:
        raise InvalidInput(message=problems[0].message, problems=problems)
