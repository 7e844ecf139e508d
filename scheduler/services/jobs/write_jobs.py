"""Writes checked submissions, of one person or of many, in one transaction: rows of jobs, events and audit rows.

Every door comes through here, with one submission or with those that arrived together. A submission is accepted
whole or refused whole; one that is refused keeps no other from being written.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any, Final, NamedTuple, cast, overload

from django.db import DEFAULT_DB_ALIAS, connection, transaction
from django.db.models.base import ModelState
from django.utils import timezone

from accounts.models import User
from accounts.services import audit
from infra import request_context, tracing
from infra.db.ordered_uuid import ordered_uuid
from infra.errors import Conflict, MusterError, TooMany
from infra.request_context import RequestContext
from infra.request_cost import stop_if_caller_gone, until_caller_gone
from infra.times_in_text import written
from quotas.models import Quota
from scheduler import outbox
from scheduler.core.lifecycle import JobState
from scheduler.core.reason_codes import CATEGORY, ReasonCode
from scheduler.deadlines import HasDeadline, check_after
from scheduler.models import Job, Queue
from scheduler.services.accounting.quota_usage import pending_jobs_of
from scheduler.services.jobs.bulk_insert import TRACEPARENT, NewRows, insert_jobs_with_events
from scheduler.services.jobs.elements import write_elements
from scheduler.services.submission.dependencies import Others, look_at_others, wait_for_others
from scheduler.services.submission.job_spec import JobSpec
from scheduler.services.submission.parse_request import OWN_COLUMNS, own_columns
from scheduler.services.submission.submitter import Bound
from scheduler.services.uploads.verbs import hold_for_jobs
from scheduler.state.lifecycle.dependencies import not_evaluated, wait_reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """Checked requests that one person sends together: all of them are accepted, or none."""

    specs: Sequence[JobSpec]
    by: User
    via: str
    #: Who asks, from where and with which token, for the audit row.
    known: RequestContext = field(default_factory=request_context.current)
    #: The recorded trace that it belongs to; "" where there is none.
    traceparent: str = field(default_factory=tracing.current)


class _Part(NamedTuple):
    """What the rows of one request have in common; `shared` is one object for all requests of a kind."""

    spec: JobSpec
    shared: Mapping[str, Any]
    own: tuple[Any, ...]
    array_id: uuid.UUID | None


class _Row(NamedTuple):
    part: _Part
    uuid: uuid.UUID
    array_index: int | None


class NewJobs(Sequence[Job]):
    """The jobs of one submission, in their order; a row becomes a model instance when it is asked for."""

    def __init__(self, submission: Submission, rows: list[_Row]) -> None:
        self.submission = submission
        self.rows = rows
        self.numbers: Mapping[uuid.UUID, int] = {}
        self._made: dict[int, Job] = {}

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, place: int) -> Job: ...
    @overload
    def __getitem__(self, place: slice) -> list[Job]: ...
    def __getitem__(self, place: int | slice) -> Job | list[Job]:
        if isinstance(place, slice):
            return [self[at] for at in range(*place.indices(len(self.rows)))]
        at = range(len(self.rows))[place]
        if at not in self._made:
            self._made[at] = self._as_job(self.rows[at])
        return self._made[at]

    def number(self, place: int) -> int:
        """The number of the job at this place."""
        return self.numbers[self.rows[place].uuid]

    def state(self, place: int) -> JobState:
        """The state in which the job at this place began."""
        return JobState(self.rows[place].part.shared["state"])

    def _as_job(self, row: _Row) -> Job:
        """The row as a model instance with its relations, without reading it back."""
        # What `Job.from_db` does, ten times faster: it matters for a thousand jobs at once.
        part, number = row.part, self.numbers[row.uuid]
        job: Job = Job.__new__(Job)
        job.__dict__.update(part.shared)
        job.__dict__.update(zip(OWN_COLUMNS, part.own, strict=True))
        job.__dict__.update(
            uuid=row.uuid, number=number, request_id=number, outcome=None, array_id=part.array_id,
            array_index=row.array_index, array_number=self._array_number(part),
        )  # fmt: skip
        job._state = ModelState()
        job._state.adding, job._state.db = False, DEFAULT_DB_ALIAS
        job._state.fields_cache = {
            "queue": part.spec.queue, "project": part.spec.project, "user": self.submission.by,
        }  # fmt: skip
        return job

    def _array_number(self, part: _Part) -> int | None:
        """The number of the array's first element; None for a single job."""
        if part.array_id is None:
            return None
        return self.numbers[next(row.uuid for row in self.rows if row.part is part)]


@transaction.atomic
def write_submissions(submissions: Sequence[Submission]) -> list[NewJobs | MusterError]:
    """Write them in one transaction; answers the jobs of each, or why it was refused, in the order given.

    What a database error stops is none of them: who sent several tries each by itself then.
    """
    at = timezone.now()
    specs = [spec for submission in submissions for spec in submission.specs]
    room = _Room(specs)
    others = look_at_others(specs)
    uploads = hold_for_jobs({spec.upload for spec in specs if spec.upload is not None})
    outcomes: list[NewJobs | MusterError] = []
    for submission in submissions:
        try:
            _require_uploads(submission, uploads)
            rows = _rows_of(submission, others, at=at)
            room.take(submission.specs)
        except MusterError as refused:
            outcomes.append(refused)
        else:
            outcomes.append(NewJobs(submission, rows))
    accepted = [outcome for outcome in outcomes if isinstance(outcome, NewJobs) and outcome.rows]
    if accepted:
        _write(accepted, others, at=at)
    return outcomes


def _require_uploads(submission: Submission, ready: Collection[uuid.UUID]) -> None:
    """Raise Conflict where an upload was deleted since the request was read."""
    if any(spec.upload is not None and spec.upload not in ready for spec in submission.specs):
        raise Conflict(
            message="The upload was deleted just now, so the job could never start.",
            code="upload-not-ready",
            way_out="Upload the folder again.",
        )


def _write(accepted: Sequence[NewJobs], others: Others, *, at: datetime) -> None:
    specs = [spec for jobs in accepted for spec in jobs.submission.specs]
    stop_if_caller_gone()
    # The heads of the audit chains are locked last: along with the rows, where no statement follows these.
    people = [jobs.submission.by for jobs in accepted]
    more = any(spec.depends_on or spec.elements_per_job for spec in specs)
    heads_too = () if more else (audit.heads_statement(people),)
    numbers, heads = insert_jobs_with_events(
        _rows_of_all(accepted),
        _events((jobs.submission for jobs in accepted), at=at),
        *heads_too,
    )
    for jobs in accepted:
        jobs.numbers = numbers
        write_elements(jobs.submission.specs, jobs)
        if any(spec.depends_on for spec in jobs.submission.specs):
            wait_for_others(jobs, [row.part.spec for row in jobs.rows], others, at=at)
    _announce(accepted)
    audit.record_all([_audit_entry(jobs) for jobs in accepted], heads=audit.heads_of(heads))


def _rows_of_all(accepted: Sequence[NewJobs]) -> NewRows:
    """Their rows as columns, with the trace of each where one of them has one."""
    columns = _columns([row for jobs in accepted for row in jobs.rows])
    if any(jobs.submission.traceparent for jobs in accepted):
        columns.add(TRACEPARENT, [jobs.submission.traceparent for jobs in accepted for _ in jobs.rows])
    return columns


def _announce(accepted: Sequence[NewJobs]) -> None:
    """Say it after the commit: to the pages of people, projects and queues, and to planners of what is in line."""
    specs = [spec for jobs in accepted for spec in jobs.submission.specs]
    outbox.announce(
        outbox.QUEUES_TOPIC,
        *{outbox.user_topic(jobs.submission.by.pk) for jobs in accepted},
        *{outbox.project_topic(project_id) for project_id in {spec.project.pk for spec in specs}},
    )
    parts = {id(row.part.shared): row.part for jobs in accepted for row in jobs.rows}.values()
    in_line = [part for part in parts if part.shared["state"] == JobState.QUEUED]
    for cluster_id in {part.spec.queue.cluster_id for part in in_line}:
        outbox.wake_planner(cluster_id, trigger="submit")


# ---------------------------------------------------------------- rows


def _rows_of(submission: Submission, others: Others, *, at: datetime) -> list[_Row]:
    """The row of every job, one for each index of an array. Raises Conflict for one that could never start."""
    shared: dict[int, dict[str, Any]] = {}
    rows: list[_Row] = []
    for spec in until_caller_gone(submission.specs, every=100):
        common = shared.get(id(spec.kind)) if not spec.depends_on else None
        if common is None:
            common = spec.kind.columns | _UNSTARTED | _beginning(spec, others, by=submission.by, at=at) | {
                "user_id": submission.by.pk, "submitted_via": submission.via, "created_at": at,
            }  # fmt: skip
            if spec.deadline_at is not None or spec.wait_limit_seconds is not None or spec.relax:
                common["check_at"] = check_after(cast("HasDeadline", SimpleNamespace(**common)), at)
            shared[id(spec.kind)] = common
        part = _Part(spec, common, own_columns(spec), ordered_uuid() if spec.array.indices else None)
        rows += [
            _Row(part, ordered_uuid(), indices[0] if indices else None) for indices in spec.indices_of_jobs
        ]
    return rows


def _columns(rows: Sequence[_Row]) -> NewRows:
    """The rows as columns. What requests of one kind share is compared once for each kind, not for each row."""
    new = NewRows()
    shared = [row.part.shared for row in rows]
    kinds = list({id(values): values for values in shared}.values())
    for name, first in kinds[0].items():
        if all(values[name] == first for values in kinds[1:]):
            new.equal[name] = first
        else:
            new.differing[name] = [values[name] for values in shared]
    for name, column in zip(OWN_COLUMNS, zip(*(row.part.own for row in rows), strict=True), strict=True):
        new.add(name, column)
    new.add("uuid", [row.uuid for row in rows])
    new.add("array_id", [row.part.array_id for row in rows])
    new.add("array_index", [row.array_index for row in rows])
    return new


def _events(submissions: Iterable[Submission], *, at: datetime) -> list[dict[str, Any]]:
    """The first event of the jobs of each person, by each door, in each recorded trace."""
    return [
        {"at": at, "kind": "job.submitted", "because": f"submitted by {by.username}", "epoch": None,
         "actor_id": by.pk, "details": {"via": via, **({TRACEPARENT: trace} if trace else {})}}
        for (_, via, trace), by in {(one.by.pk, one.via, one.traceparent): one.by for one in submissions}.items()
    ]  # fmt: skip


#: What a job row begins with besides what its request says.
_UNSTARTED: Final[dict[str, Any]] = {
    "expected_start_at": None,
    "epoch": 0,
    "exit_code": None,
    "exit_signal": None,
    "end_text": "",
    "failure_class": "",
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
    "check_at": None,
    "relaxed": None,
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


# ---------------------------------------------------------------- how many may wait

#: Classes of the advisory locks on queues and on quota lines.
_QUEUE_LOCK: Final = 0x4D51
_LINE_LOCK: Final = 0x4D52


class _Room:
    """How many jobs still may wait in bounded queues, and by the lines that bound them.

    Submissions that one of these counts take turns, from here to the end of the transaction: queues are locked in
    their order, then lines in theirs.
    """

    def __init__(self, specs: Sequence[JobSpec]) -> None:
        queues = {spec.queue.pk: spec.queue for spec in specs if spec.queue.max_pending_jobs is not None}
        bounds = {bound.line_id: bound for spec in specs for bound in spec.waits_on}
        self._bounds = bounds
        self._in_queue: dict[int, int] = {}
        for queue_id in sorted(queues):
            _lock(_QUEUE_LOCK, queue_id)
            here = Job.objects.filter(queue_id=queue_id)
            self._in_queue[queue_id] = here.pending().count() - here.never_satisfied().count()
        for line_id in sorted(bounds):
            _lock(_LINE_LOCK, line_id % 2**31)
        lines = Quota.objects.filter(pk__in=bounds).order_by("pk") if bounds else ()
        self._lines = {line.pk: line for line in lines}
        self._on_line = {line.pk: pending_jobs_of(line) for line in lines}

    def take(self, specs: Sequence[JobSpec]) -> None:
        """Count these in, or raise TooMany and count none of them."""
        if not (self._in_queue or self._lines):
            return
        queues: dict[int, int] = {}
        lines: dict[int, int] = {}
        for spec in specs:
            if spec.queue.pk in self._in_queue:
                queues[spec.queue.pk] = queues.get(spec.queue.pk, 0) + spec.size
            for line_id in {bound.line_id for bound in spec.waits_on} & self._lines.keys():
                lines[line_id] = lines.get(line_id, 0) + spec.size
        for queue_id, coming in sorted(queues.items()):
            self._check_queue(next(s.queue for s in specs if s.queue.pk == queue_id), coming)
        for line_id, coming in sorted(lines.items()):
            self._check_line(line_id, coming)
        for queue_id, coming in queues.items():
            self._in_queue[queue_id] += coming
        for line_id, coming in lines.items():
            self._on_line[line_id] += coming

    def _check_queue(self, queue: Any, coming: int) -> None:
        there = self._in_queue[queue.pk]
        if there + coming > queue.max_pending_jobs:
            raise TooMany(
                message=f"Queue {queue.slug} has {there} pending jobs of at most "
                f"{queue.max_pending_jobs}; {coming} more do not fit.",
                code="queue-full",
                way_out="Wait until some have started, cancel some, or use another queue.",
            )

    def _check_line(self, line_id: int, coming: int) -> None:
        there, bound, line = self._on_line[line_id], self._bounds[line_id], self._lines[line_id]
        if there + coming > bound.hard:
            kind = f" of type {line.job_type}" if line.job_type else ""
            raise TooMany(
                message=f"{there} jobs{kind} of {bound.owner} are pending already, of at most {bound.hard}; "
                f"{coming} more do not fit.",
                code="too-many-pending",
                way_out="Wait until some have started, or cancel some; an operator can raise the limit.",
            )


def require_room(queue: Queue, *, jobs: int = 1, waits_on: Sequence[Bound] = ()) -> None:
    """Raise TooMany where a queue or one of these lines is full for this number of pending jobs.

    Until the transaction ends, none other comes.
    """
    more: Any = [SimpleNamespace(queue=queue, waits_on=waits_on, size=jobs)]
    _Room(more).take(more)


def _lock(kind: int, number: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s, %s)", [kind, number])


# ---------------------------------------------------------------- audit


def _audit_entry(jobs: NewJobs) -> audit.Entry:
    first = jobs[0]
    thing: Job | audit.Thing = first
    after = _summary(first)
    if len(jobs) > 1:
        last = jobs.number(-1)
        thing = audit.Thing("job", str(first.number), f"{len(jobs)} jobs, {first.number} to {last}")
        after = {"jobs": len(jobs), "first": first.number, "last": last, "example": after}
    return audit.Entry(
        by=jobs.submission.by, action="job.submit", thing=thing, after=after, project=first.project,
        known=jobs.submission.known,
    )  # fmt: skip


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
