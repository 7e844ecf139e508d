"""Submission: requests to rows of jobs with their first event, whole or not at all."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from django.db import DEFAULT_DB_ALIAS, connection, transaction
from django.db.models.base import ModelState
from django.utils import timezone

from accounts.models import User
from accounts.services import audit
from infra.errors import Conflict, FieldProblem, InvalidInput, MusterError, NotAllowed, TooMany
from infra.request_cost import stop_if_caller_gone, until_caller_gone
from infra.times_in_text import written
from quotas.models import Quota
from scheduler import outbox
from scheduler.core.lifecycle import JobState
from scheduler.core.reason_codes import CATEGORY, ReasonCode
from scheduler.models import Job, JobEvent
from scheduler.services.accounting.quota_usage import pending_jobs_of
from scheduler.services.jobs.elements import write_elements
from scheduler.services.submission.bulk_insert import insert_jobs_with_events
from scheduler.services.submission.dependencies import (
    Others,
    look_at_others,
    wait_for_others,
    wrong_among_themselves,
)
from scheduler.services.submission.job_spec import JobSpec, parse_job
from scheduler.services.submission.request_size import check_sizes
from scheduler.services.submission.submitter import Catalogue
from scheduler.state.lifecycle.dependencies import (
    not_evaluated,
    wait_reason,
)


def submit_job(*, payload: Mapping[str, Any], by: User, via: str = "api") -> Job:
    """Accept one request; of an array its first job is answered, and `array_id` names the others.

    Raises InvalidInput, NotAllowed or TooMany, and then nothing was written.
    """
    check_sizes([payload], field="array")
    spec = parse_job(payload, by=by)
    return submit_specs(specs=[spec], by=by, via=via)[0]


def parse_many(*, payloads: Sequence[Any], by: User) -> tuple[list[JobSpec | None], dict[int, MusterError]]:
    """Read each request on its own; the refused ones have None for a spec and their error by position.

    Raises InvalidInput before it reads any when together they make too many rows.
    """
    check_sizes(payloads, field="jobs")
    catalogue = Catalogue(by)
    specs: list[JobSpec | None] = []
    errors: dict[int, MusterError] = {}
    for number, payload in enumerate(until_caller_gone(payloads, every=10)):
        under = f"jobs/{number}/"
        try:
            if not isinstance(payload, Mapping):
                wrong = "Must be an object that describes a job."
                problem = FieldProblem(f"jobs/{number}", wrong, "not-an-object")
                raise InvalidInput(message=wrong, problems=[problem])
            specs.append(parse_job(payload, by=by, catalogue=catalogue, under=under, in_batch=True))
        except MusterError as error:
            specs.append(None)
            errors[number] = error
    for number, problem in wrong_among_themselves(specs):
        specs[number] = None
        errors[number] = InvalidInput(message=problem.message, code=problem.code, problems=[problem])
    return specs, errors


def refused_whole(errors: Mapping[int, MusterError]) -> MusterError:
    """One refusal for a batch, with the problems of all its requests."""
    problems = [problem for error in errors.values() for problem in error.problems]
    denial = next((error for error in errors.values() if isinstance(error, NotAllowed)), None)
    kind = NotAllowed if denial is not None else InvalidInput
    return kind(
        message=f"{len(errors)} of the jobs are invalid, so none was submitted.",
        code=denial.code if denial is not None else "invalid",
        problems=problems[:500],
        way_out="Correct the fields named in errors, or send atomic=false to submit the others.",
        refused=denial.refused if denial is not None else None,
    )


@transaction.atomic
def submit_specs(*, specs: Sequence[JobSpec], by: User, via: str) -> list[Job]:
    """Write checked requests: jobs, dependencies, events and one audit row, all or nothing."""
    if not specs:
        return []
    now = timezone.now()
    _refuse_full_queues(specs)
    _refuse_full_lines(specs)
    others = look_at_others(specs)
    rows, owners = _rows_of(specs, others, by=by, via=via, at=now)
    stop_if_caller_gone()
    # The head of the audit chain is read last. Without dependencies no statement comes in between.
    head_too = () if any(spec.depends_on for spec in specs) else (audit.head_statement(by),)
    numbers, heads = insert_jobs_with_events(
        Job,
        rows,
        JobEvent,
        {"at": now, "kind": "job.submitted", "because": f"submitted by {by.username}", "epoch": None,
         "actor_id": by.pk, "details": {"via": via}},
        *head_too,
    )  # fmt: skip
    jobs = [_as_job(row, numbers[row["uuid"]], spec, by) for row, spec in zip(rows, owners, strict=True)]
    write_elements(specs, jobs)
    wait_for_others(jobs, owners, others, at=now)
    outbox.announce(
        outbox.user_topic(by.pk),
        outbox.QUEUES_TOPIC,
        *{outbox.project_topic(spec.project.pk) for spec in specs},
    )
    if any(job.state == JobState.QUEUED for job in jobs):
        for cluster_id in {spec.queue.cluster_id for spec in specs}:
            outbox.wake_planner(cluster_id, trigger="submit")
    _audit_submission(jobs, by, head=next((audit.Head(*row) for rows in heads for row in rows), None))
    return jobs


def _rows_of(
    specs: Sequence[JobSpec], others: Others, *, by: User, via: str, at: datetime
) -> tuple[list[dict[str, Any]], list[JobSpec]]:
    """The columns of every job, one for each index of an array, and the request of each."""
    rows: list[dict[str, Any]] = []
    owners: list[JobSpec] = []
    for spec in until_caller_gone(specs, every=1):
        beginning = _beginning(spec, others, by=by, at=at)
        common = spec.columns() | _UNSTARTED | beginning | {
            "user_id": by.pk, "submitted_via": via, "created_at": at,
            "array_id": uuid.uuid4() if spec.array.indices else None,
        }  # fmt: skip
        for indices in spec.indices_of_jobs:
            rows.append({**common, "uuid": uuid.uuid4(), "array_index": indices[0] if indices else None})
            owners.append(spec)
    return rows, owners


#: What a job row begins with besides what its request says.
_UNSTARTED: Final[dict[str, Any]] = {
    "expected_start_at": None,
    "epoch": 0,
    "exit_code": None,
    "exit_signal": None,
    "end_text": "",
    "scheduled_at": None,
    "started_at": None,
    "completed_at": None,
    "assembly_until_at": None,
    "assembly_node_ids": [],
    "assemblies_failed": 0,
    "boost": 0,
    "boost_until_at": None,
    "saved_at": None,
    "saved_path": "",
    "generation": 1,
}


def _beginning(spec: JobSpec, others: Others, *, by: User, at: datetime) -> dict[str, Any]:
    """State, eligibility and reason of a job at its submission."""
    seconds = spec.depends_timeout_seconds
    until = at + timedelta(seconds=seconds) if seconds is not None and spec.depends_on else None
    common = {"depends_until_at": until, "held_by": ""}
    found = others.conditions(spec)
    if any(condition.never for condition in found):
        raise Conflict(
            message="A dependency has just finished with the wrong result, so the job could never start.",
            way_out="Check that job, then submit again.",
        )
    if spec.held:
        held = {"state": JobState.HELD.value, "held_by": "user", "eligible_at": None}
        return common | held | held_reason(by, at)
    if any(condition.missing for condition in found):
        reason = wait_reason(found, at=at, until=until, then=spec.depends_on_timeout)
        return common | {"state": JobState.BLOCKED.value, "eligible_at": None} | reason
    eligible_at = max(at, spec.begin_at) if spec.begin_at else at
    return common | {"state": JobState.QUEUED.value, "eligible_at": eligible_at} | not_evaluated(at)


def _refuse_full_queues(specs: Sequence[JobSpec]) -> None:
    """A queue takes at most `max_pending_jobs`; submissions to such a queue count one after the other."""
    bounded = {spec.queue.pk: spec.queue for spec in specs}
    for queue_id, queue in sorted(bounded.items()):
        if queue.max_pending_jobs is None:
            continue
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(%s, %s)", [_QUEUE_LOCK, queue_id])
        coming = sum(spec.size for spec in specs if spec.queue.pk == queue_id)
        there = Job.objects.pending().filter(queue_id=queue_id).count()
        if there + coming > queue.max_pending_jobs:
            raise TooMany(
                message=f"Queue {queue.slug} has {there} pending jobs of at most "
                f"{queue.max_pending_jobs}; {coming} more do not fit.",
                code="queue-full",
                way_out="Wait until some have started, cancel some, or use another queue.",
            )


def _refuse_full_lines(specs: Sequence[JobSpec]) -> None:
    """No more jobs may wait than the lines on the way up allow; submissions that one line counts take turns."""
    bounded = {bound.line_id: bound for spec in specs for bound in spec.waits_on}
    if not bounded:
        return
    with connection.cursor() as cursor:
        for line_id in sorted(bounded):
            cursor.execute("SELECT pg_advisory_xact_lock(%s, %s)", [_LINE_LOCK, line_id % 2**31])
    for line in Quota.objects.filter(pk__in=bounded).order_by("pk"):
        bound = bounded[line.pk]
        coming = sum(spec.size for spec in specs if any(one.line_id == line.pk for one in spec.waits_on))
        there = pending_jobs_of(line)
        if there + coming > bound.hard:
            kind = f" of type {line.job_type}" if line.job_type else ""
            raise TooMany(
                message=f"{there} jobs{kind} of {bound.owner} are pending already, of at most {bound.hard}; "
                f"{coming} more do not fit.",
                code="too-many-pending",
                way_out="Wait until some have started, or cancel some; an operator can raise the limit.",
            )


#: Classes of the advisory locks on queues and on quota lines.
_QUEUE_LOCK: Final = 0x4D51
_LINE_LOCK: Final = 0x4D52


def _as_job(row: Mapping[str, Any], number: int, spec: JobSpec, by: User) -> Job:
    """The row as a model instance with its relations, without reading it back."""
    # What `Job.from_db` does, ten times faster: it matters for a thousand jobs at once.
    job: Job = Job.__new__(Job)
    job.__dict__.update(row, number=number, request_id=number, outcome=None)
    job._state = ModelState()
    job._state.adding, job._state.db = False, DEFAULT_DB_ALIAS
    job._state.fields_cache = {"queue": spec.queue, "project": spec.project, "user": by}
    return job


def _audit_submission(jobs: Sequence[Job], by: User, *, head: audit.Head | None) -> None:
    first, last = jobs[0], jobs[-1]
    thing: Job | audit.Thing = first
    after = _summary(first)
    if len(jobs) > 1:
        thing = audit.Thing("job", str(first.number), f"{len(jobs)} jobs, {first.number} to {last.number}")
        after = {"jobs": len(jobs), "first": first.number, "last": last.number, "example": after}
    audit.record(by=by, action="job.submit", thing=thing, after=after, project=first.project, head=head)


def _summary(job: Job) -> dict[str, Any]:
    return {
        "name": job.name,
        "queue": job.queue.slug,
        "project": job.project.slug,
        "tasks": job.tasks,
        "cpu_millis": job.cpu_millis,
        "memory_mib": job.memory_mib,
        "gpus": job.gpus,
        "priority": job.priority,
        "state": job.state,
        "command": (job.command or job.script)[:500],
    }


def held_reason(by: User, at: datetime, *, admin: bool = False, reason: str = "") -> dict[str, Any]:
    """The reason columns of a job that a person, or with `admin` an operator, holds."""
    code = ReasonCode.HELD_BY_ADMIN if admin else ReasonCode.HELD_BY_USER
    why = f": {reason}" if reason else ""
    return {
        "reason_code": code.value,
        "reason_category": CATEGORY[code].value,
        "reason_text": f"Held by {by.username} since {written(at)}{why}. Waiting to be released.",
        "reason_details": {"by": by.username, "reason": reason, "since": at.isoformat()},
        "reason_at": at,
    }
