"""Dependencies of jobs: what each waits for, and queueing the job once that has happened."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple, Protocol

from django.conf import settings
from django.db import connection

from infra.db.prepared import ask
from infra.times_in_text import written
from scheduler.core.lifecycle import TERMINAL, JobState
from scheduler.core.reason_codes import CATEGORY, ReasonCode
from scheduler.core.reasons.messages import sentence
from scheduler.models import Dataset, DependencyKind, Job, JobDependency, WaitEnd
from scheduler.state.db.query import RowQuery
from scheduler.state.db.sql import int_array, run
from scheduler.state.lifecycle.arrays import settle_waits
from scheduler.state.lifecycle.transitions import StaleJob, move_job, queue_many

#: Tells our advisory locks on the datasets of a project from others.
_DATA_LOCK: Final = 0x4D44
_ENDED: Final = {
    JobState.COMPLETED.value: "completed",
    JobState.FAILED.value: "failed",
    JobState.CANCELLED.value: "was cancelled",
}
#: What has to become of an array.
_OF_ARRAYS: Final[dict[str, str]] = {
    DependencyKind.COMPLETION: "all elements end (any result)",
    DependencyKind.SUCCESS: "all elements complete",
    DependencyKind.FAILURE: "all elements end, and one fails",
}


class Other(NamedTuple):
    """What decides about a wait for a job: its state, and whether it has reported a checkpoint."""

    state: str
    saved: bool


@dataclass(frozen=True, slots=True)
class Wait:
    """One thing that a job waits for: a job, or data by name.

    A job of another project has no name here: people who see the waiting job may not see that one. With `is_array` the
    number is that of an array, all elements of which are waited for. `said` is the number of an element, as `123_3`.
    """

    kind: str
    number: int | None
    name: str
    satisfied: bool | None
    state: str = ""
    is_array: bool = False
    said: str = ""

    @property
    def said_number(self) -> str:
        """The number as people say it: `123_3` for an element of array 123."""
        return self.said or str(self.number)

    @property
    def words(self) -> str:
        """What has to become of it."""
        if self.is_array:
            return _OF_ARRAYS[self.kind]
        return str(DependencyKind(self.kind).label)

    def __str__(self) -> str:
        if self.number is None:
            return self.name
        if self.is_array:
            return f"{self.number} (all elements)"
        return f"{self.said_number} ({self.name})" if self.name else self.said_number


@dataclass(frozen=True, slots=True)
class Condition:
    """`need` of these waits have to hold; most often one of one."""

    need: int
    waits: tuple[Wait, ...]

    @property
    def missing(self) -> int:
        return max(0, self.need - sum(wait.satisfied is True for wait in self.waits))

    @property
    def never(self) -> bool:
        """Too many of them can no longer hold."""
        return sum(wait.satisfied is not False for wait in self.waits) < self.need

    @property
    def open(self) -> list[Wait]:
        return [wait for wait in self.waits if wait.satisfied is None]


def conditions(waits: Iterable[tuple[int, int, Wait]]) -> list[Condition]:
    """Conditions from (group, need, wait): in group 0 each is one of its own."""
    alone: list[Condition] = []
    groups: dict[int, tuple[int, list[Wait]]] = {}
    for group, need, wait in waits:
        if group:
            groups.setdefault(group, (need, []))[1].append(wait)
        else:
            alone.append(Condition(1, (wait,)))
    return alone + [Condition(need, tuple(some)) for _, (need, some) in sorted(groups.items())]


def conditions_of(job: Job) -> list[Condition]:
    """What a job waits for, from its rows."""
    return conditions(
        (d.group, d.need, wait_of(d, job)) for d in job.dependencies.select_related("on").order_by("id")
    )


def wait_of(dependency: JobDependency, job: Job) -> Wait:
    other = dependency.on
    if dependency.on_array is not None:
        return Wait(dependency.kind, dependency.on_array, "", dependency.satisfied, is_array=True)
    if other is None:
        return Wait(dependency.kind, None, dependency.data, dependency.satisfied)
    name = other.name if other.project_id == job.project_id else ""
    return Wait(
        dependency.kind, other.number, name, dependency.satisfied, other.state, said=other.said_number
    )


def holds(kind: str, state: str, saved: bool = False) -> bool | None:
    """Whether a dependency on a job in this state holds: None while that is open."""
    if kind == DependencyKind.CHECKPOINT and saved:
        return True
    if state not in TERMINAL:
        return None
    if kind == DependencyKind.COMPLETION:
        return True
    if kind == DependencyKind.SUCCESS:
        return state == JobState.COMPLETED
    return kind == DependencyKind.FAILURE and state == JobState.FAILED


# ---------------------------------------------------------------- at submission


def lock_states(numbers: Iterable[int]) -> dict[int, Other]:
    """What jobs that somebody is about to wait for are like; they stay so until this transaction ends.

    A job that ends at this moment either shows its end here, or finds the new dependency when it looks for
    what waited for it: no wait is ever lost between the two.
    """
    wanted = sorted(set(numbers))
    if not wanted:
        return {}
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT number, state, saved_at IS NOT NULL FROM scheduler_job WHERE number = ANY(%s)"
            " ORDER BY number FOR SHARE",
            [wanted],
        )
        return {number: Other(state, saved) for number, state, saved in cursor.fetchall()}


def lock_data(wanted: Mapping[int, set[str]]) -> set[tuple[int, str]]:
    """Of the data that jobs of each project are about to wait for, those that are ready: (project, name)."""
    ready: set[tuple[int, str]] = set()
    for project_id, names in sorted(wanted.items()):
        _lock_datasets(project_id)
        found = Dataset.objects.filter(project_id=project_id, name__in=names, ready_at__isnull=False)
        ready |= {(project_id, name) for name in found.values_list("name", flat=True)}
    return ready


def _lock_datasets(project_id: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s, %s)", [_DATA_LOCK, project_id])


# ---------------------------------------------------------------- when something has happened


class Ended(Protocol):
    """A job that is over, as far as jobs that wait for it depend on that."""

    @property
    def number(self) -> int: ...

    @property
    def state(self) -> str: ...

    @property
    def saved_at(self) -> datetime | None: ...


class EndedJob(NamedTuple):
    """The same as a row."""

    number: int
    state: str
    saved_at: datetime | None


class WaitRow(NamedTuple):
    """A dependency that is open."""

    id: int
    job_id: int
    on_id: int | None
    on_array: int | None
    kind: str


#: For the jobs themselves, and for the arrays whose elements they are.
_WAITING_FOR: Final = RowQuery(
    WaitRow,
    {
        "id": "edge.id",
        "job_id": "edge.job_id",
        "on_id": "edge.on_id",
        "on_array": "edge.on_array",
        "kind": "edge.kind",
    },
    """SELECT {columns} FROM (
    SELECT id, job_id, on_id, on_array, kind FROM scheduler_jobdependency
    WHERE on_id = ANY(%s::bigint[]) AND satisfied IS NULL
    UNION ALL SELECT id, job_id, on_id, on_array, kind FROM scheduler_jobdependency
    WHERE satisfied IS NULL AND on_array = ANY(ARRAY(SELECT DISTINCT request.array_number
        FROM scheduler_jobrequest request
        WHERE request.number = ANY(%s::bigint[]) AND request.array_number IS NOT NULL))
) edge""",
)
_LOST_ARRAYS: Final = """
SELECT DISTINCT array_number FROM scheduler_jobrequest WHERE number = ANY(%s::bigint[]) AND array_number IS NOT NULL
"""


def resolve_dependants(ended: Iterable[Ended], *, at: datetime) -> set[int]:
    """Settle what waited for jobs that have just ended; answers the clusters that have new work to plan.

    Call it in the transaction that ended them, after their states were written.
    """
    clusters: set[int] = set()
    left: Sequence[Ended] = [*ended]
    while left:  # with MUSTER_KILL_INVALID_DEPEND an end may be that of the next ones
        more, left = _let_go(_settled(left), at=at)
        clusters |= more
    return clusters


def _settled(ended: Iterable[Ended]) -> set[int]:
    """Note of each wait for these jobs whether it holds; answers the jobs that waited."""
    others = {job.number: Other(job.state, job.saved_at is not None) for job in ended}
    verdicts: dict[bool, list[int]] = defaultdict(list)
    touched: set[int] = set()
    numbers = int_array(others)
    waits = _WAITING_FOR.read(ask(_WAITING_FOR.sql(), [numbers, numbers])) if others else []
    for wait in waits:
        verdict = holds(wait.kind, *others[wait.on_id]) if wait.on_id is not None else None
        if verdict is not None:
            verdicts[verdict].append(wait.id)
            touched.add(wait.job_id)
    if arrays := [wait.id for wait in waits if wait.on_array is not None]:
        failed = [
            number for number, other in others.items() if other.state in TERMINAL - {JobState.COMPLETED}
        ]
        lost = {row[0] for row in ask(_LOST_ARRAYS, [int_array(failed)])} if failed else set()
        for verdict, settled in settle_waits(arrays, lost=lost).items():
            verdicts[verdict] += [wait.id for wait in settled]
            touched |= {wait.job_id for wait in settled}
    for verdict, ids in verdicts.items():
        JobDependency.objects.filter(pk__in=ids).update(satisfied=verdict)
    return touched


def resolve_data(project_id: int, name: str, *, at: datetime) -> set[int]:
    """Settle what waited for data that are ready now; call it before their row is written."""
    _lock_datasets(project_id)
    rows = JobDependency.objects.filter(data=name, satisfied__isnull=True, job__project_id=project_id)
    touched = set(rows.values_list("job_id", flat=True))
    rows.update(satisfied=True)
    return _let_go(touched, at=at)[0]


def resolve_arrays(*, at: datetime) -> set[int]:
    """Settle waits for arrays that are over; answers the clusters that have new work to plan.

    The end of the last element does it. This is for ends that a process of an older release has written.
    """
    open_waits = JobDependency.objects.filter(on_array__isnull=False, satisfied=None)
    waits = list(open_waits.values_list("pk", flat=True))
    touched: set[int] = set()
    for verdict, settled in (settle_waits(waits, lost=()) if waits else {}).items():
        JobDependency.objects.filter(pk__in=[wait.id for wait in settled]).update(satisfied=verdict)
        touched |= {wait.job_id for wait in settled}
    clusters, cancelled = _let_go(touched, at=at)
    return clusters | resolve_dependants(cancelled, at=at)


def expire_waits(*, at: datetime) -> tuple[set[int], int]:
    """End the waits whose time is up, by each job's rule; answers clusters with new work, and how many."""
    due = Job.objects.in_states([JobState.BLOCKED]).filter(depends_until_at__lte=at)
    clusters: set[int] = set()
    failed: list[Job] = []
    rows = due.select_related("queue").order_by("number").select_for_update(of=("self",), no_key=True)
    count = 0
    for job in rows:
        count += 1
        missing = waiting_text([c for c in conditions_of(job) if c.missing])
        if job.depends_on_timeout == WaitEnd.START:
            _queue(job, because=f"dependency timeout; continues without: {missing}", at=at)
            clusters.add(job.queue.cluster_id)
        else:
            text = f"Dependency timeout at {moment_text(job.depends_until_at)}. {missing}."
            move_job(job, JobState.FAILED, because=text, at=at, end_text=text[:300])
            failed.append(job)
    if failed:
        clusters |= resolve_dependants(failed, at=at)
    return clusters, count


def _let_go(numbers: set[int], *, at: datetime) -> tuple[set[int], list[Job]]:
    """Queue the blocked jobs of these that wait for nothing any more; the others say what is still missing.

    Answers the clusters with new work, and the jobs that were cancelled because their dependencies can never be
    satisfied.
    """
    clusters: set[int] = set()
    cancelled: list[Job] = []
    if not numbers:
        return clusters, cancelled
    blocked = [row[0] for row in run(_LOCK_BLOCKED, [int_array(numbers)])]
    if settings.MUSTER_KILL_INVALID_DEPEND:
        lost = Job.objects.filter(pk__in={row[0] for row in run(_WITH_LOST, [int_array(blocked)])})
        for job in lost.order_by("number").select_related("queue"):
            if _is_cancelled(job, conditions_of(job), at=at):
                cancelled.append(job)
        gone = {job.number for job in cancelled}
        blocked = [number for number in blocked if number not in gone]
    for missing, some in reasons_of(blocked, at=at):
        if missing:
            Job.objects.filter(number__any_of=some).update(**missing)
        else:
            clusters |= queue_many(
                some, before=JobState.BLOCKED, because="all dependencies are satisfied", at=at,
                columns=not_evaluated(at),
            )  # fmt: skip
    return clusters, cancelled


_LOCK_BLOCKED: Final = """
SELECT number FROM scheduler_job WHERE number = ANY(%s::bigint[]) AND state = 'blocked'
ORDER BY number FOR NO KEY UPDATE
"""
_WITH_LOST: Final = """
SELECT DISTINCT edge.job_id FROM scheduler_jobdependency edge
WHERE edge.job_id = ANY(%s::bigint[]) AND edge.satisfied IS FALSE
"""
_EDGES: Final = "SELECT id FROM scheduler_jobdependency WHERE job_id = ANY(%s::bigint[])"
#: Jobs that wait for the same, with the same terms: the number of one of them, and all as the text of an array.
_STILL_WAIT: Final = """
WITH waits AS (
    SELECT edge.job_id, string_agg(
        ROW(edge.on_id, edge.on_array, edge.data, edge.kind, edge."group", edge.need, edge.satisfied)::text, ';'
        ORDER BY edge.id) AS said
    FROM scheduler_jobdependency edge WHERE edge.job_id = ANY(%s::bigint[])
    GROUP BY edge.job_id HAVING bool_or(edge.satisfied IS NOT TRUE)
)
SELECT min(waits.job_id), array_agg(waits.job_id ORDER BY waits.job_id)
FROM waits JOIN scheduler_job job ON job.number = waits.job_id
    JOIN scheduler_jobrequest request ON request.number = waits.job_id
GROUP BY waits.said, job.project_id, request.depends_until_at, request.depends_on_timeout ORDER BY 1
"""


def reasons_of(numbers: Collection[int], *, at: datetime) -> list[tuple[dict[str, Any], list[int]]]:
    """These jobs by the reason columns for what each waits for; empty columns for those that wait for nothing more.

    Four queries, whatever their number: thousands of elements may wait for one job, or each for another.
    """
    if not numbers:
        return []
    alike: dict[int, list[int]] = dict(run(_STILL_WAIT, [int_array(numbers)]))
    free = sorted(set(numbers).difference(*alike.values()))
    by_reason: list[tuple[dict[str, Any], list[int]]] = []
    for job, found in _conditions_of_each(list(alike)):
        if any(condition.missing for condition in found):
            reason = wait_reason(found, at=at, until=job.depends_until_at, then=job.depends_on_timeout)
            by_reason.append((reason, alike[job.number]))
        else:
            free += alike[job.number]  # enough of a group hold
    return [*([({}, sorted(free))] if free else []), *by_reason]


def _conditions_of_each(numbers: Sequence[int]) -> Iterator[tuple[Job, list[Condition]]]:
    """The same as `conditions_of` for each of these jobs."""
    if not numbers:
        return
    keys = [row[0] for row in run(_EDGES, [int_array(numbers)])]
    edges = list(JobDependency.objects.filter(pk__any_of=keys).order_by("id"))
    named = {edge.on_id for edge in edges if edge.on_id is not None}
    others = Job.objects.only("name", "project_id", "state", "array_number", "array_index").in_bulk(named)
    of_job: defaultdict[int, list[JobDependency]] = defaultdict(list)
    for edge in edges:
        edge.on = None if edge.on_id is None else others[edge.on_id]
        of_job[edge.job_id].append(edge)
    rows = Job.objects.filter(number__any_of=numbers).order_by("number")
    for job in rows.only("number", "project_id", "depends_until_at", "depends_on_timeout"):
        yield job, conditions((d.group, d.need, wait_of(d, job)) for d in of_job[job.number])


def _is_cancelled(job: Job, found: Sequence[Condition], *, at: datetime) -> bool:
    """Cancel a job that waits for what can never be, where the site says so; a wait with an end has its own rule."""
    if not settings.MUSTER_KILL_INVALID_DEPEND or job.depends_until_at is not None:
        return False
    never = next((condition for condition in found if condition.never), None)
    if never is None:
        return False
    because = _lost_words(never) + "."
    try:
        move_job(job, JobState.CANCELLED, because=because, at=at, end_text=because[:300])
    except StaleJob:
        return False  # cancelled or held at this moment
    return True


def _queue(job: Job, *, because: str, at: datetime) -> None:
    eligible_at = max(at, job.begin_at) if job.begin_at else at
    move_job(job, JobState.QUEUED, because=because, at=at, eligible_at=eligible_at, **not_evaluated(at))


# ---------------------------------------------------------------- in words


def wait_reason(
    found: Sequence[Condition], *, at: datetime, until: datetime | None = None, then: str = WaitEnd.FAIL
) -> dict[str, Any]:
    """The reason columns of a job that waits for these, or that waits for what will never be."""
    never = next((condition for condition in found if condition.never), None)
    end = ""
    details: dict[str, Any] = {}
    if until is not None:
        end = f" until {moment_text(until)}, then the job {'fails' if then == WaitEnd.FAIL else 'starts anyway'}"
        details |= {"until": until.isoformat(), "then": str(then)}
    if never is not None:
        return _never(never, details, end=end, at=at)
    missing = [condition for condition in found if condition.missing]
    waits = [wait for condition in missing for wait in condition.open]
    details |= {
        "jobs": sorted({wait.number for wait in waits if wait.number is not None}),
        "open": sum(condition.missing for condition in missing),
    }
    if data := sorted({wait.name for wait in waits if wait.number is None}):
        details["data"] = data
    return _reason(ReasonCode.DEPENDENCY, f"{waiting_text(missing)}{end and '; waits' + end}.", details, at)


def waiting_text(missing: Sequence[Condition]) -> str:
    """`Waits for 1 more of jobs 12 (a), 15 (b); data faces`, without a full stop."""
    alone: dict[str, list[Wait]] = {}
    parts: list[str] = []
    for condition in missing:
        if len(condition.waits) == 1:
            wait = condition.waits[0]
            what = wait.kind if wait.kind in (DependencyKind.CHECKPOINT, DependencyKind.DATA) else "job"
            what = "array" if wait.is_array else what
            alone.setdefault(what, []).append(wait)
        else:
            more = " more" if condition.missing < condition.need else ""
            whole = all(wait.number is not None for wait in condition.open)
            of = "jobs " if whole else ""
            parts.append(f"{condition.missing}{more} of {of}{_listed(condition.open)}")
    names = {
        "job": ("job", "jobs:"),
        "array": ("array", "arrays"),
        "checkpoint": ("a checkpoint of job", "checkpoints of jobs"),
        "data": ("data", "data"),
    }
    first = []
    for what, waits in alone.items():
        one, several = names[what]
        count = f"{len(waits)} " if what == "job" and len(waits) > 1 else ""
        first.append(f"{count}{one if len(waits) == 1 else several} {_listed(waits)}")
    return f"Depends on {'; '.join([*first, *parts])}"


def _listed(waits: Sequence[Wait]) -> str:
    shown = ", ".join(str(wait) for wait in waits[:3])
    return shown + (f" and {len(waits) - 3} more" if len(waits) > 3 else "")


def _never(condition: Condition, details: dict[str, Any], *, end: str, at: datetime) -> dict[str, Any]:
    """A wait for what can no longer happen says so, and what to do."""
    lost = [wait for wait in condition.waits if wait.satisfied is False]
    wait = lost[0]
    text = _lost_words(condition)
    what_now = (
        f"The job waits{end}."
        if end
        else "The job can never start: cancel it, or submit it again without that dependency."
    )
    if len(condition.waits) == 1:
        details |= {"job": wait.number, "kind": wait.kind, "state": wait.state}
    else:
        details |= {"jobs": [wait.number for wait in lost], "need": condition.need}
    return _reason(ReasonCode.DEPENDENCY_NEVER_SATISFIED, f"{text}. {what_now}", details, at)


def _lost_words(condition: Condition) -> str:
    """`Depends on success of job 12 (a), which failed`, without a full stop."""
    lost = [wait for wait in condition.waits if wait.satisfied is False]
    wait = lost[0]
    if len(condition.waits) == 1 and wait.is_array:
        lost_by = (
            "no element failed" if wait.kind == DependencyKind.FAILURE else "an element did not complete"
        )
        return f"Depends on {wait.kind} of array {wait.number}, but {lost_by}"
    if len(condition.waits) == 1:
        kind = "a checkpoint" if wait.kind == DependencyKind.CHECKPOINT else wait.kind
        return f"Depends on {kind} of job {wait}, which {_ENDED.get(wait.state, wait.state)}"
    others = "have ended" if len(lost) > 1 else "has ended"
    return (
        f"Depends on {condition.need} of {len(condition.waits)}, but {_listed(lost)} {others} "
        "with the wrong result, so too few are left"
    )


def moment_text(moment: datetime | None) -> str:
    """A time as a sentence holds it."""
    return "further notice" if moment is None else written(moment)


def not_evaluated(at: datetime) -> dict[str, Any]:
    """The reason columns of a job that no cycle has looked at yet."""
    return _reason(ReasonCode.NOT_EVALUATED_YET, sentence(ReasonCode.NOT_EVALUATED_YET, ()), {}, at)


def _reason(code: ReasonCode, text: str, details: dict[str, Any], at: datetime) -> dict[str, Any]:
    return {
        "reason_code": code.value,
        "reason_category": CATEGORY[code].value,
        "reason_text": text,
        "reason_details": details,
        "reason_at": at,
    }
