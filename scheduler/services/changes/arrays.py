"""Arrays as one thing: how far the elements are, one verb on all of them, and how many may run at once."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from accounts import permissions
from accounts.models import User
from accounts.services import audit
from infra.db.prepared import ask
from infra.errors import Conflict, FieldProblem, InvalidInput, NotFound
from scheduler import outbox
from scheduler.core.lifecycle import PUBLIC, JobState, PublicState
from scheduler.models import Job, JobRequest
from scheduler.selectors import visible_jobs
from scheduler.services.changes.many import Outcome, act_on_many
from scheduler.state.db.sql import int_array, run

_STATES: Final = """
SELECT job.state, job.held_by, count(*), min(job.started_at), max(job.completed_at)
FROM scheduler_job job WHERE job.number = ANY(ARRAY(
    SELECT request.number FROM scheduler_jobrequest request WHERE request.array_number = %s::bigint)) GROUP BY 1, 2
"""
#: How many more indices its jobs have than there are jobs.
_SHARED: Final = """
SELECT coalesce(sum(cardinality(listed.indices) - 1), 0) FROM scheduler_jobelements listed
WHERE listed.job_id = ANY(ARRAY(
    SELECT request.number FROM scheduler_jobrequest request WHERE request.array_number = %s::bigint))
"""
#: Elements in their order, as every verb locks jobs.
_LOCK_OPEN: Final = """
SELECT job.number FROM scheduler_job job WHERE job.outcome IS NULL AND job.number = ANY(ARRAY(
    SELECT request.number FROM scheduler_jobrequest request WHERE request.array_number = %s))
ORDER BY job.number FOR NO KEY UPDATE OF job
"""
_THROTTLE: Final = """
WITH changed AS (
    UPDATE scheduler_jobrequest SET array_max_running = %(most)s
    WHERE array_number = %(array)s AND array_max_running IS DISTINCT FROM %(most)s RETURNING number
), noticed AS (
    UPDATE scheduler_job SET generation = generation + 1
    WHERE number = ANY(%(numbers)s::bigint[]) AND state IN ('queued', 'reserved')
), first AS (
    INSERT INTO scheduler_jobevent (job_id, at, kind, because, actor_id, details)
    SELECT min(number), %(at)s, 'array.changed', %(because)s, %(by)s, '{}'::jsonb FROM changed HAVING count(*) > 0
)
SELECT count(*) FROM changed
"""


@dataclass(frozen=True, slots=True)
class ArrayOverview:
    """An array: its first job that is still kept, and how many jobs are in which state.

    `elements` counts indices; where elements share jobs there are fewer `jobs` than elements.
    """

    number: int
    first: Job
    elements: int
    jobs: int
    by_state: dict[PublicState, int]
    held: int
    held_by_admin: int
    started_at: datetime | None
    completed_at: datetime | None

    @property
    def over(self) -> int:
        """How many jobs have ended."""
        return sum(
            self.by_state[s] for s in (PublicState.COMPLETED, PublicState.FAILED, PublicState.CANCELLED)
        )

    @property
    def progress(self) -> float:
        """The part of the jobs that has ended, from 0 to 1."""
        return self.over / self.jobs if self.jobs else 1.0


def array_by_number(user: User, number: int) -> Job:
    """The first job of an array that the person can see; raises NotFound for any other number."""
    rows = JobRequest.objects.filter(array_number=number).order_by("array_number", "array_index")
    key = rows.values_list("number", flat=True).first() if 0 < number < 2**63 else None
    first = visible_jobs(user).filter(number=key).first() if key is not None else None
    if first is None:
        raise NotFound(
            f"Array {number} does not exist, or you may not see it.",
            way_out="GET /api/v1/jobs shows the number of an array as array_id.",
        )
    return first


def overview(first: Job) -> ArrayOverview:
    """How far the array of this job is; two queries, whatever its size."""
    number = first.array_number
    assert number is not None
    by_state = dict.fromkeys(PublicState, 0)
    held = held_by_admin = 0
    started: list[datetime] = []
    ended: list[datetime] = []
    for state, held_by, count, began, completed in ask(_STATES, [number]):
        by_state[PUBLIC[JobState(state)]] += count
        if state == JobState.HELD:
            held += count
            held_by_admin += count if held_by == "admin" else 0
        started += [began] if began is not None else []
        ended += [completed] if completed is not None else []
    jobs = sum(by_state.values())
    over = sum(by_state[s] for s in (PublicState.COMPLETED, PublicState.FAILED, PublicState.CANCELLED))
    return ArrayOverview(
        number=number, first=first, elements=jobs + int(ask(_SHARED, [number])[0][0]), jobs=jobs, by_state=by_state,
        held=held, held_by_admin=held_by_admin, started_at=min(started, default=None),
        completed_at=max(ended, default=None) if over == jobs else None,
    )  # fmt: skip


def act_on_array(verb: str, first: Job, *, by: User, reason: str = "") -> Outcome:
    """Cancel, hold or release all elements of the array of this job, in one transaction.

    Elements that have ended stay as they are. Raises NotAllowed where the person may not, and Conflict where no
    element could be changed and none was so already.
    """
    permissions.require(by, verb, first)
    number = first.array_number
    assert number is not None
    numbers = [
        row[0] for row in run("SELECT number FROM scheduler_jobrequest WHERE array_number = %s", [number])
    ]
    thing = audit.Thing("array", str(number), f"array {number} {first.name}"[:200])
    outcome = act_on_many(verb, numbers, by=by, reason=reason, thing=thing)
    if not outcome.done and not outcome.unchanged:
        why = next(iter(outcome.refused.values()), "")
        raise Conflict(
            message=f"No element of array {number} can be {_WORDS[verb]}. The first: {why}",
            way_out=f"GET /api/v1/arrays/{number} shows the states of the elements.",
        )
    return outcome


_WORDS: Final = {"cancel": "cancelled", "hold": "held", "release": "released"}


def throttle_array(first: Job, *, most: int | None, by: User, reason: str = "") -> int:
    """Change how many elements may run at once, null for any number; answers for how many elements it changed.

    Elements that run already go on. Raises InvalidInput for a number out of range.
    """
    permissions.require(by, "edit", first)
    if most is not None and not 1 <= most <= settings.MUSTER_MAX_ARRAY_SIZE:
        text = f"Must be from 1 to {settings.MUSTER_MAX_ARRAY_SIZE}, or null for any number."
        raise InvalidInput(text, problems=[FieldProblem("max_running", text, "out-of-range")])
    number, now = first.array_number, timezone.now()
    said = "any number of" if most is None else f"at most {most}"
    because = f"{said} elements run at once, by {by.username}" + (f": {reason}" if reason else "")
    values: dict[str, Any] = {"most": most, "at": now, "because": because[:300], "by": by.pk, "array": number}
    with transaction.atomic():
        numbers = [row[0] for row in run(_LOCK_OPEN, [number])]
        if not numbers:
            raise Conflict(
                message=f"All elements of array {number} have ended.",
                way_out="There is nothing left to limit.",
            )
        changed = int(run(_THROTTLE, {**values, "numbers": int_array(numbers)})[0][0])
        if changed:
            outbox.announce(
                outbox.user_topic(first.user_id), outbox.project_topic(first.project_id), outbox.QUEUES_TOPIC
            )
            outbox.wake_planner(first.queue.cluster_id, trigger="change")
            audit.record(
                by=by, action="array.throttle", thing=audit.Thing("array", str(number), f"array {number}"),
                before={"max_running": first.array_max_running}, after={"max_running": most, "jobs": changed},
                reason=reason, project=first.project,
            )  # fmt: skip
    return changed
