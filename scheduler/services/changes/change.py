"""Changes of submitted jobs in place: the job keeps its number, its age and its place; one event, one audit row."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any, Final

from django.db import connection, transaction
from django.db.models import F
from django.utils import timezone

from accounts import permissions
from accounts.models import User
from accounts.services import audit
from infra.errors import Conflict, FieldProblem, InvalidInput
from scheduler import outbox
from scheduler.core.lifecycle import PENDING, JobState
from scheduler.deadlines import check_after
from scheduler.models import Job, JobDependency, JobRequest
from scheduler.services.changes import running_limits
from scheduler.services.changes.parse_change import parse_change, refuse_ended
from scheduler.services.jobs.write_jobs import require_room
from scheduler.services.submission.dependencies import Others, look_at_others, rows_of
from scheduler.services.submission.job_spec import JOB, JobSpec
from scheduler.state.db.sql import int_array
from scheduler.state.lifecycle.dependencies import conditions_of, not_evaluated, wait_reason
from scheduler.state.lifecycle.transitions import announce_job, record_event

CHANGED_EVENT: Final = "job.changed"
#: One change of dependencies at a time, until its transaction ends: two could make a circle together.
_WAITS_LOCK: Final = 0x4D45_5741

#: What waits, from some jobs on, for this one: by jobs and by arrays, as far as their ends are open.
_LEADS_TO: Final = """
WITH RECURSIVE before(number) AS (
    SELECT number FROM scheduler_jobrequest WHERE number = ANY(%(jobs)s) OR array_number = ANY(%(arrays)s)
    UNION
    SELECT coalesce(edge.on_id, element.number) FROM before
        JOIN scheduler_jobdependency edge ON edge.job_id = before.number AND edge.satisfied IS NULL
        LEFT JOIN scheduler_jobrequest element ON element.array_number = edge.on_array
    WHERE edge.on_id IS NOT NULL OR element.number IS NOT NULL
)
SELECT EXISTS (SELECT FROM before WHERE number = ANY(%(waiting)s::bigint[]))
"""


def change_job(
    *, job: Job, changes: Mapping[str, Any], by: User, reason: str = "", seen: int | None = None
) -> Job:
    """Change fields of a job request in place; what is not changed stays, and so do number, age and hold.

    `seen` is the generation that the caller has read. Raises InvalidInput or NotAllowed with every problem, Conflict
    (412) for a job that has changed since, and Conflict for one that has ended; then nothing was written.
    """
    permissions.require(by, "edit", job)
    if not changes:
        message = "Nothing to change: the body names no field."
        raise InvalidInput(message, problems=[FieldProblem("", message, "required")])
    with transaction.atomic():
        lock_waits("depends_on" in changes)
        row = Job.objects.select_related("queue", "project", "user").get(pk=job.pk)
        if "time_limit" in changes:  # budgets are locked before the job, as where it ends
            running_limits.lock_budgets(row)
        others = Others({}, (), {})
        if "depends_on" in changes:  # others are locked before the job, as where they end
            others = look_at_others([parse_change(row, changes, by=by)[0]])
        _lock(row, seen)
        spec, sent = parse_change(row, changes, by=by)
        _write(row, spec, sent, others, by=by, reason=reason)
    return row


def lock_waits(wanted: bool) -> None:
    if wanted:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", [_WAITS_LOCK])


def _lock(row: Job, seen: int | None) -> None:
    """Lock the job, bring `row` up to date, and refuse where it is no longer as the caller saw it."""
    fresh = Job.objects.select_for_update(of=("self",), no_key=True).get(pk=row.pk)
    for field in Job._meta.concrete_fields:
        setattr(row, field.attname, getattr(fresh, field.attname))
    if seen is not None and seen != row.generation:
        raise Conflict(
            f"Job {row.said_number} has changed since you read it.",
            code="stale",
            status=412,
            way_out="Read the job, then send your change again with the new ETag.",
            extra={"generation": row.generation, "state": row.public_state.value},
        )
    refuse_ended(row)


def _write(job: Job, spec: JobSpec, sent: frozenset[str], others: Others, *, by: User, reason: str) -> None:
    now = timezone.now()
    before, after = differences(job, spec)
    waits = _change_waits(job, spec, others) if "depends_on" in sent else None
    if waits is not None:
        before, after = before | {"depends_on": waits[0]}, after | {"depends_on": waits[1]}
    if not after:
        return  # it is so already
    if spec.queue.pk != job.queue_id and job.state in PENDING:
        require_room(spec.queue)
    clusters = {job.queue.cluster_id, spec.queue.cluster_id}
    columns = {name: value for name, value in after.items() if name in REQUEST_COLUMNS}
    if columns:
        JobRequest.objects.filter(pk=job.pk).update(**columns)
    for name, value in columns.items():
        setattr(job, name, value)
    job.queue = spec.queue
    running_limits.follow(job, before, at=now)
    moved = _moved(job, at=now) if job.state in PENDING and after.keys() - KEEPS_ITS_PLACE else {}
    for name, value in moved.items():
        setattr(job, name, value)
    if "relax" in after:
        moved["relaxed"] = job.relaxed = None  # what is due already is relaxed again at the next look
    job.check_at = check_after(job, now)
    Job.objects.filter(pk=job.pk).update(
        queue_id=job.queue_id, check_at=job.check_at, generation=F("generation") + 1, **moved
    )
    job.generation += 1
    shown = {"before": as_json(before), "after": as_json(after)}
    names = ", ".join(sorted(shown["after"]))
    because = f"changed by {by.username} ({names})" + (f": {reason}" if reason else "")
    record_event(job, CHANGED_EVENT, because=because, by=by, at=now, details=shown)
    audit.record(
        by=by, action="job.change", thing=job, before=shown["before"], after=shown["after"], reason=reason,
        project=job.project,
    )  # fmt: skip
    announce_job(job)
    for cluster_id in sorted(clusters):
        outbox.wake_planner(cluster_id, trigger="change")


#: What decides neither where nor when a job may start: its reason, and nodes that a gang has gathered, stay.
KEEPS_ITS_PLACE: Final = frozenset(
    {"name", "labels", "mail_types", "max_restarts", "preemptible", "priority"}
)
REQUEST_COLUMNS: Final = frozenset(JOB.columns()) - {"project_id", "queue_id"}


def differences(job: Job, spec: JobSpec) -> tuple[dict[str, Any], dict[str, Any]]:
    """Columns of the request that the change makes others: as they are, and as they will be."""
    before: dict[str, Any] = {}
    after: dict[str, Any] = {}
    for column, attribute in JOB.columns().items():
        if "." in attribute or column not in REQUEST_COLUMNS:
            continue
        old, new = getattr(job, column), getattr(spec, attribute)
        if old != new:
            before[column], after[column] = old, new
    if spec.queue.pk != job.queue_id:
        before["queue"], after["queue"] = job.queue.slug, spec.queue.slug
    return before, after


def as_json(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values as JSON keeps them."""
    return {
        name: value.isoformat() if isinstance(value, datetime) else value for name, value in values.items()
    }


def _moved(job: Job, *, at: datetime) -> dict[str, Any]:
    """State and reason of a pending job after its change: it waits for others, for its time, or for the planner.

    The time since when it is eligible stays, as its age in the queue counts from it.
    """
    if job.state == JobState.HELD:
        return {}
    found = conditions_of(job)
    gathers: dict[str, Any] = {"assembly_until_at": None, "assembly_node_ids": [], "expected_start_at": None}
    if any(condition.missing for condition in found):
        reason = wait_reason(found, at=at, until=job.depends_until_at, then=job.depends_on_timeout)
        return {"state": JobState.BLOCKED, "eligible_at": None, **gathers, **reason}
    since = job.eligible_at if job.state != JobState.BLOCKED and job.eligible_at is not None else at
    if job.begin_at is not None:
        since = max(job.begin_at, min(since, at))
    elif since > at:
        since = at  # it waited for a time that was taken back
    return {"state": JobState.QUEUED, "eligible_at": since, **gathers, **not_evaluated(at)}


# ---------------------------------------------------------------- what it waits for


def _change_waits(job: Job, spec: JobSpec, others: Others) -> tuple[list[str], list[str]] | None:
    """Replace the dependencies of the job by those of the request; both as text, None where they are equal."""
    refuse_circle([job.number], spec, said=f"job {job.said_number}")
    before = sorted(_said(d) for d in job.dependencies.all())
    rows = rows_of(job.number, spec, others)
    after = sorted(_said(d) for d in rows)
    if before == after:
        return None
    if any(condition.never for condition in others.conditions(spec)):
        raise Conflict(
            message="A dependency has just finished with the wrong result, so the job could never start.",
            way_out="Check that job, then send the change again.",
        )
    job.dependencies.all().delete()
    JobDependency.objects.bulk_create(rows)
    job._prefetched_objects_cache = {}  # type: ignore[attr-defined]
    return before, after


def refuse_circle(numbers: Collection[int], spec: JobSpec, *, said: str) -> None:
    """Raise InvalidInput where one of these jobs would wait for itself or for a job that waits for one of these."""
    jobs = [d.number for d in spec.depends_on if d.number and not d.is_array]
    arrays = [d.number for d in spec.depends_on if d.is_array]
    with connection.cursor() as cursor:
        cursor.execute(_LEADS_TO, {"jobs": jobs, "arrays": arrays, "waiting": int_array(numbers)})
        (circle,) = cursor.fetchone() or (False,)
    if circle:
        text = f"Circular dependency: something named here is {said} or waits for it."
        raise InvalidInput(text, problems=[FieldProblem("depends_on", text, "circle")])


def _said(d: JobDependency) -> str:
    """One dependency as text: `success of 17`, `data faces`, with its group."""
    on = d.data or (f"array {d.on_array}" if d.on_array else f"{d.on_id}")
    group = f" (any {d.need} of group {d.group})" if d.group else ""
    return f"{d.kind} of {on}{group}"
