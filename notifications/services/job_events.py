"""What of the events of jobs people are notified of, read in their order by a cursor."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final, NamedTuple

from django.db import connection

from notifications.core.grouping import group_of_job, thing_of_job
from notifications.core.kinds import Kind, mail_of_job
from notifications.models import Endpoint, Preference
from notifications.services.occurrences import Occurrence
from scheduler.core.mail_types import MailType
from scheduler.core.reasons.event_texts import text_of

SOURCE: Final = "jobs"
TABLE: Final = "scheduler_jobevent"
#: Events of one transaction; more follow with the next.
BATCH: Final = 5000

#: Kinds of events of which everybody is notified, unless they have chosen otherwise. All are rare.
_USUAL: Final = (
    "job.failed",
    "job.preempting",
    "attempt.failed",
    "attempt.lost",
    "attempt.stopped",
    "job.deadline_missed",
)
#: Those that matter when somebody else has caused them.
_OF_OTHERS: Final = ("job.cancelled", "job.stopping", "job.held", "job.migrating")
# Every job begins and most complete: those two are read only for people, projects and jobs that ask for them. The event
# of an end that has a node is that of the beginning, too.

_READ: Final = """
SELECT e.id, e.kind, e.at, e.because, e.actor_id, e.details ? 'retry_seconds' AS again,
    e.details ? 'node' AS on_a_node, e.details->>'stop_reason' AS stop_reason, e.details::text AS details,
    j.started_at,
    j.number, j.user_id, j.project_id, r.array_number::text AS array, r.array_index, r.name, r.mail_types
FROM scheduler_jobevent e
    JOIN scheduler_job j ON j.number = e.job_id JOIN scheduler_jobrequest r ON r.number = e.job_id
WHERE e.id > %(after)s AND e.id <= %(until)s AND (
    e.kind = ANY(%(usual)s)
    OR e.kind = ANY(%(of_others)s) AND (e.actor_id <> j.user_id OR r.mail_types IS NOT NULL)
    OR (e.kind = 'job.running' OR e.kind = ANY(%(ends)s) AND e.details ? 'node') AND (
        r.mail_types IS NOT NULL OR j.user_id = ANY(%(began_users)s) OR j.project_id = ANY(%(began_projects)s))
    OR e.kind = 'job.completed' AND (
        r.mail_types IS NOT NULL OR j.user_id = ANY(%(ended_users)s) OR j.project_id = ANY(%(ended_projects)s))
)
ORDER BY e.id LIMIT %(batch)s
"""


class _Row(NamedTuple):
    """A row of `_READ`."""

    id: int
    kind: str
    at: datetime
    because: str
    actor_id: int | None
    again: bool
    on_a_node: bool
    stop_reason: str | None
    details: str  # JSON
    started_at: datetime | None

    @property
    def text(self) -> str:
        return self.because or text_of(self.kind, json.loads(self.details))

    number: int
    user_id: int
    project_id: int
    array: str | None
    array_index: int | None
    name: str
    mail_types: str | None


def read(after: int, until: int) -> tuple[list[Occurrence], int]:
    """What happened with events after `after`, and up to which event that is: `until` where no more is left."""
    wanted: dict[str, list[int]] = {}
    for word, kind in (("began", Kind.BEGAN), ("ended", Kind.ENDED)):
        wanted[f"{word}_users"], wanted[f"{word}_projects"] = who_asks_for(kind)
    words: dict[str, Any] = {
        "after": after, "until": until, "batch": BATCH, "usual": list(_USUAL), "of_others": list(_OF_OTHERS),
        "ends": list(_KINDS), **wanted,
    }  # fmt: skip
    with connection.cursor() as cursor:
        cursor.execute(_READ, words)
        rows = [_Row(*row) for row in cursor.fetchall()]
    found = [occurrence for row in rows for occurrence in _of(row)]
    return found, rows[-1].id if len(rows) == BATCH else until


def who_asks_for(kind: Kind) -> tuple[list[int], list[int]]:
    """People and projects that want a kind which is off for everybody else."""
    people = Preference.objects.filter(kind=kind, on=True).values_list("user_id", flat=True)
    endpoints = list(
        Endpoint.objects.filter(kinds__contains=[kind.value], disabled_at__isnull=True).values_list(
            "user_id", "project_id"
        )
    )
    users = {*people, *(user for user, _ in endpoints if user is not None)}
    return sorted(users), sorted({project for _, project in endpoints if project is not None})


def _of(row: _Row) -> Iterator[Occurrence]:
    """What an event is to the owner of the job: that of an end may be that of the beginning, too."""
    if row.kind in _KINDS and row.on_a_node:
        yield from _of(
            row._replace(kind="job.running", because="", at=row.started_at or row.at, actor_id=None)
        )
        row = row._replace(on_a_node=False)
    kind = _kind(row)
    if kind is None:
        return
    words = row.mail_types.split(",") if row.mail_types else ()
    mail = mail_of_job(kind, words)
    if row.kind == "job.stopping" and mail:
        mail = None  # its end, which comes soon, is what the job's own words ask for
    if kind == Kind.FAILED and row.stop_reason == "time_limit" and MailType.TIME_LIMIT in words:
        mail = True
    own_end = kind == Kind.CANCELLED and (row.actor_id in (None, row.user_id))
    if own_end and mail is not True:
        return
    group = group_of_job(
        number=row.number,
        project_id=row.project_id,
        array_id=row.array,
        each=MailType.ARRAY_TASKS in words,
        mail=mail,
    )
    yield Occurrence(
        kind=kind, source=SOURCE, event=row.id, at=row.at, user_id=row.user_id, group=group, text=row.text,
        project_id=row.project_id, job=row.number, name=row.name, mail=mail, only_mail=own_end,
        thing=thing_of_job(row.array, row.array_index),
        sent=not own_end,
    )  # fmt: skip


#: The kind of notification that an event is to the owner of the job, by whichever person it was caused.
_KINDS: Final = {
    "job.completed": Kind.ENDED, "job.failed": Kind.FAILED, "job.cancelled": Kind.CANCELLED,
    "job.deadline_missed": Kind.DEADLINE_MISSED,
}  # fmt: skip
#: What it is where somebody else has caused it; nothing where they did it themselves.
_BY_OTHERS: Final = {
    "job.stopping": Kind.CANCELLED, "job.held": Kind.HELD, "job.preempting": Kind.REQUEUED,
    "job.migrating": Kind.REQUEUED,
}  # fmt: skip


def _kind(row: _Row) -> Kind | None:
    """What an event is to the owner of the job; None for what they did themselves, or need not know."""
    if row.kind == "job.running":
        return Kind.BEGAN if row.on_a_node else None  # resumed jobs have begun before
    if row.kind.startswith("attempt."):
        return Kind.REQUEUED if row.again else None
    if row.kind == "job.preempting" and row.actor_id is None:
        return Kind.PREEMPTED
    if row.kind in _BY_OTHERS:
        return _BY_OTHERS[row.kind] if row.actor_id not in (None, row.user_id) else None
    return _KINDS.get(row.kind)
