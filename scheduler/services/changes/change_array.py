"""A change of all waiting elements of an array: judged and written in one transaction, taken whole or refused whole."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, NamedTuple

from django.db import transaction
from django.utils import timezone
from psycopg.types.json import Jsonb

from accounts import permissions
from accounts.models import User
from accounts.services import audit
from infra.errors import Conflict, FieldProblem, InvalidInput
from scheduler import outbox
from scheduler.core.lifecycle import INTERRUPTED, PENDING, JobState
from scheduler.models import Job, JobDependency, JobRequest
from scheduler.services.changes.change import (
    CHANGED_EVENT,
    KEEPS_ITS_PLACE,
    REQUEST_COLUMNS,
    as_json,
    differences,
    lock_waits,
    refuse_circle,
)
from scheduler.services.changes.parse_change import WHILE_PENDING, parse_change
from scheduler.services.jobs.write_jobs import require_room
from scheduler.services.submission.dependencies import Others, look_at_others, rows_of
from scheduler.services.submission.job_spec import JOB, JobSpec
from scheduler.state.db.query import RowQuery
from scheduler.state.db.sql import int_array, run
from scheduler.state.lifecycle.dependencies import not_evaluated, wait_reason

#: What elements may differ in, after changes of single ones.
_CHANGEABLE: Final = sorted({
    column for name in WHILE_PENDING for column in JOB.by_name[name].columns if column in REQUEST_COLUMNS
})  # fmt: skip


class Alike(NamedTuple):
    """Waiting elements with the same request, in the same state; nobody else moves them until the transaction ends."""

    state: str
    queue_id: int
    is_eligible: bool
    size: int
    first: int
    #: Their numbers, as the text of an array.
    listed: str

    @property
    def numbers(self) -> list[int]:
        return [int(number) for number in self.listed[1:-1].split(",")]


_WAITING: Final = RowQuery(
    Alike,
    {
        "state": "locked.state",
        "queue_id": "locked.queue_id",
        "is_eligible": "locked.eligible_at IS NOT NULL",
        "size": "count(*)",
        "first": "min(locked.number)",
        "listed": "array_agg(locked.number ORDER BY locked.number)::text",
    },
    f"""WITH locked AS MATERIALIZED (
    SELECT job.number, job.state, job.queue_id, job.eligible_at FROM scheduler_job job
    WHERE job.number = ANY(ARRAY(
        SELECT request.number FROM scheduler_jobrequest request WHERE request.array_number = %s))
        AND job.state = ANY(%s) ORDER BY job.number FOR NO KEY UPDATE OF job
)
SELECT {{columns}} FROM locked JOIN scheduler_jobrequest request ON request.number = locked.number
GROUP BY locked.state, locked.queue_id, locked.eligible_at IS NOT NULL,
    EXISTS (SELECT FROM scheduler_jobelements listed WHERE listed.job_id = locked.number),
    ROW({", ".join(f"request.{name}" for name in _CHANGEABLE)})::text
ORDER BY 5""",  # noqa: S608  names of columns of ours
)
#: What `change_job` writes of one job, of all of these; `greatest` and `least` leave null out.
_MOVE: Final = """
WITH moved AS (
    UPDATE scheduler_job job SET queue_id = %(queue)s, generation = generation + 1,
        check_at = CASE WHEN request.deadline_at IS NULL AND request.wait_limit_seconds IS NULL THEN NULL
            ELSE %(at)s END {columns}
    FROM scheduler_jobrequest request
    WHERE request.number = job.number AND job.number = ANY(%(numbers)s::bigint[])
    RETURNING job.number, job.epoch
)
INSERT INTO scheduler_jobevent (job_id, at, kind, because, epoch, actor_id, details)
SELECT number, %(at)s, %(kind)s, %(because)s, nullif(epoch, 0), %(by)s, %(details)s FROM moved ORDER BY number
"""
#: Since when a queued element counts: its age stays, but for its begin time.
_SINCE: Final = """greatest(request.begin_at, least(
    CASE WHEN job.state = 'blocked' THEN %(at)s ELSE coalesce(job.eligible_at, %(at)s) END, %(at)s))"""


class _Expression(NamedTuple):
    """A value of a column as SQL, with the names of `_MOVE`."""

    text: str


@dataclass(slots=True)
class _Change:
    """What the change makes of elements that are alike."""

    jobs: Alike
    spec: JobSpec
    before: dict[str, Any]
    after: dict[str, Any]
    cluster_id: int

    @property
    def columns(self) -> dict[str, Any]:
        """Those of the request."""
        return {name: value for name, value in self.after.items() if name in REQUEST_COLUMNS}


@dataclass(frozen=True, slots=True)
class Changed:
    """How many waiting elements were changed, and how many were so already."""

    done: int = 0
    unchanged: int = 0
    clusters: set[int] = field(default_factory=set)


def change_array(
    first: Job, *, changes: Mapping[str, Any], by: User, reason: str = "", seen: int | None = None
) -> Changed:
    """Change fields of all waiting elements of the array of this job, as `change_job` does with one.

    Elements that run or have ended stay as they are. `seen` is the generation of the first element that the caller
    has read. Raises InvalidInput or NotAllowed with every problem, and Conflict where no element waits or the first
    has changed since; then nothing was written.
    """
    permissions.require(by, "edit", first)
    if not changes:
        message = "Nothing to change: the body names no field."
        raise InvalidInput(message, problems=[FieldProblem("", message, "required")])
    number, now = first.array_number, timezone.now()
    assert number is not None
    with transaction.atomic():
        lock_waits("depends_on" in changes)
        others = Others({}, (), {})
        if "depends_on" in changes:  # others are locked before the elements, as where they end
            others = look_at_others([parse_change(_job(_a_waiting_element(number)), changes, by=by)[0]])
        states = sorted(state.value for state in PENDING | INTERRUPTED)
        found = _WAITING.read(run(_WAITING.sql(), [number, states]))
        if not found:
            raise _none_waits(number)
        _refuse_stale(first, seen)
        made = [_judge(jobs, changes, by=by) for jobs in found]
        differing = [one for one in made if one.after or "depends_on" in changes]
        if differing:
            _write(differing, "depends_on" in changes, others, number=number, by=by, reason=reason, at=now)
            _announce(first, differing)
            _audit(first, differing, by=by, reason=reason)
    done = sum(one.jobs.size for one in differing)
    return Changed(done, sum(jobs.size for jobs in found) - done)


def _none_waits(number: int) -> Conflict:
    return Conflict(
        message=f"No element of array {number} waits.",
        way_out=f"Name an element that runs, such as {number}_0, to change what can change while it runs.",
    )


def _a_waiting_element(number: int) -> int:
    states = sorted(state.value for state in PENDING | INTERRUPTED)
    rows = Job.objects.filter(array_number=number, state__in=states).order_by("array_index")
    found: int | None = rows.values_list("number", flat=True).first()
    if found is None:
        raise _none_waits(number)
    return found


def _job(number: int) -> Job:
    return Job.objects.select_related("queue", "project", "user").get(pk=number)


def _refuse_stale(first: Job, seen: int | None) -> None:
    now = Job.objects.filter(pk=first.pk).values_list("generation", flat=True).first()
    if seen is not None and seen != now:
        raise Conflict(
            f"Array {first.array_number} has changed since you read it.",
            code="stale",
            status=412,
            way_out="Read the array's first job, then send your change again with the new ETag.",
            extra={"generation": now},
        )


def _judge(jobs: Alike, changes: Mapping[str, Any], *, by: User) -> _Change:
    job = _job(jobs.first)
    spec, _ = parse_change(job, changes, by=by)
    before, after = differences(job, spec)
    return _Change(jobs, spec, before, after, job.queue.cluster_id)


def _write(
    made: Sequence[_Change], waits: bool, others: Others, *, number: int, by: User, reason: str, at: datetime
) -> None:
    for one in made:
        if one.spec.queue.pk != one.jobs.queue_id and one.jobs.state in PENDING:
            require_room(one.spec.queue, jobs=one.jobs.size)
    if waits:
        numbers = [n for one in made for n in one.jobs.numbers]
        refuse_circle(numbers, made[0].spec, said=f"an element of array {number}")
        if any(condition.never for condition in others.conditions(made[0].spec)):
            raise Conflict(
                message="A dependency has just finished with the wrong result, so the elements could never start.",
                way_out="Check that job, then send the change again.",
            )
        _replace_waits(numbers, rows_of(numbers[0], made[0].spec, others))
    for one in made:
        if one.columns:
            JobRequest.objects.filter(number__any_of=one.jobs.numbers).update(**one.columns)
        _move(one, _moved(one, waits, others, at=at), by=by, reason=reason, at=at, waits=waits)


def _replace_waits(numbers: Sequence[int], rows: Iterable[JobDependency]) -> None:
    """Have each of these jobs wait for what these rows of one of them say, and for nothing else."""
    listed = int_array(numbers)
    run("DELETE FROM scheduler_jobdependency WHERE job_id = ANY(%s::bigint[])", [listed])
    for row in rows:
        run(
            _INSERT_WAITS,
            [row.on_id, row.on_array, row.data, row.kind, row.satisfied, row.group, row.need, listed],
        )


_INSERT_WAITS: Final = """
INSERT INTO scheduler_jobdependency (job_id, on_id, on_array, data, kind, satisfied, "group", need)
SELECT number, %s::bigint, %s::bigint, %s, %s, %s::boolean, %s::integer, %s::integer
FROM unnest(%s::bigint[]) AS waiting(number) ORDER BY number
"""


def _moved(one: _Change, waits: bool, others: Others, *, at: datetime) -> dict[str, Any]:
    """State and reason of the elements after the change, as `change_job` finds them."""
    places = bool(one.after.keys() - KEEPS_ITS_PLACE) or waits
    if one.jobs.state not in PENDING or one.jobs.state == JobState.HELD or not places:
        return {}
    if one.jobs.state == JobState.BLOCKED and not waits:
        return {}  # it waits for what it waited for
    gathers: dict[str, Any] = {
        "assembly_until_at": None,
        "assembly_node_ids": Jsonb([]),
        "expected_start_at": None,
    }
    found = others.conditions(one.spec) if waits else []
    if any(condition.missing for condition in found):
        job = _job(one.jobs.first)
        why = wait_reason(found, at=at, until=job.depends_until_at, then=job.depends_on_timeout)
        return {"state": JobState.BLOCKED.value, "eligible_at": None, **gathers, **why}
    return {
        "state": JobState.QUEUED.value,
        "eligible_at": _Expression(_SINCE),
        **gathers,
        **not_evaluated(at),
    }


def _move(
    one: _Change, moved: Mapping[str, Any], *, by: User, reason: str, at: datetime, waits: bool
) -> None:
    names = sorted({*one.after, *(["depends_on"] if waits else [])})
    because = f"changed by {by.username} ({', '.join(names)})" + (f": {reason}" if reason else "")
    set_to = "".join(
        f", {name} = {value.text if isinstance(value, _Expression) else f'%({name})s'}"
        for name, value in moved.items()
    )
    values = {
        name: Jsonb(value) if isinstance(value, dict) else value
        for name, value in moved.items()
        if not isinstance(value, _Expression)
    }
    words = {
        "queue": one.spec.queue.pk, "at": at, "numbers": one.jobs.listed, "kind": CHANGED_EVENT, "by": by.pk,
        "because": because[:300],
        "details": Jsonb({"before": as_json(one.before), "after": as_json(one.after)}),
    }  # fmt: skip
    run(_MOVE.format(columns=set_to), {**values, **words})


def _announce(first: Job, made: Iterable[_Change]) -> None:
    topics = {outbox.user_topic(first.user_id), outbox.project_topic(first.project_id), outbox.QUEUES_TOPIC}
    outbox.announce_many(topics)
    for cluster_id in sorted({c for one in made for c in (one.cluster_id, one.spec.queue.cluster_id)}):
        outbox.wake_planner(cluster_id, trigger="change")


def _audit(first: Job, made: Sequence[_Change], *, by: User, reason: str) -> None:
    number = first.array_number
    audit.record(
        by=by, action="array.change", thing=audit.Thing("array", str(number), f"array {number} {first.name}"[:200]),
        before=as_json(made[0].before),
        after={**as_json(made[0].after), "jobs": sum(one.jobs.size for one in made)},
        reason=reason, project=first.project,
    )  # fmt: skip
