"""The guarded update behind every move along a job's life cycle."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any, Final

from django.db import transaction
from django.db.models import F
from django.utils import timezone
from psycopg.types.json import Jsonb

from accounts.models import User
from scheduler import outbox
from scheduler.core.lifecycle import MOVES, PUBLIC, TERMINAL, JobState
from scheduler.models import Job, JobEvent
from scheduler.state.db.sql import int_array, run


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


#: Up to this number, the change of each job is announced to its page; with more, only to lists.
MOST_ANNOUNCED: Final = 1000
_QUEUE_MANY: Final = """
WITH moved AS (
    UPDATE scheduler_job job SET state = 'queued', generation = generation + 1, held_by = '',
        eligible_at = greatest(%(at)s, request.begin_at), {columns}
    FROM scheduler_jobrequest request
    WHERE request.number = job.number AND job.number = ANY(%(numbers)s::bigint[]) AND job.state = %(before)s
    RETURNING job.number, job.epoch, job.user_id, job.project_id, job.queue_id
), noted AS (
    INSERT INTO scheduler_jobevent (job_id, at, kind, because, epoch, actor_id, details)
    SELECT number, %(at)s, 'job.queued', %(because)s, nullif(epoch, 0), NULL, '{{}}'::jsonb FROM moved ORDER BY number
)
SELECT moved.user_id, moved.project_id, queue.cluster_id, array_agg(moved.number)
FROM moved JOIN scheduler_queue queue ON queue.id = moved.queue_id GROUP BY 1, 2, 3
"""


def queue_many(
    numbers: Collection[int], *, before: JobState, because: str, at: datetime, columns: Mapping[str, Any]
) -> set[int]:
    """Queue these jobs as `move_job` does with one, in one statement; answers the clusters with new work.

    Jobs that are no longer in the state `before` stay as they are. `columns` are written with each.
    """
    values = {name: Jsonb(value) if isinstance(value, dict) else value for name, value in columns.items()}
    rows = run(
        _QUEUE_MANY.format(columns=", ".join(f"{name} = %({name})s" for name in values)),
        {**values, "numbers": int_array(numbers), "before": before.value, "because": because[:300], "at": at},
    )
    topics = {outbox.QUEUES_TOPIC} if rows else set()
    announced = [number for *_, moved in rows for number in moved]
    for user_id, project_id, *_ in rows:
        topics |= {outbox.user_topic(user_id), outbox.project_topic(project_id)}
    if len(announced) <= MOST_ANNOUNCED:
        topics |= {outbox.job_topic(number) for number in announced}
    outbox.announce_many(topics)
    return {cluster_id for _, _, cluster_id, _ in rows}


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
