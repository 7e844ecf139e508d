"""One verb on many jobs in one transaction, with statements for all of them: cancel, hold, release.

Jobs that are alike (whose, in which state, held by whom) are judged together: what may not be done to some, or makes no
sense in their state, keeps no others from it. Numbers of jobs stay in the form in which the database gives and takes
them, since ten thousand of them cost more in Python than there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar, Final, NamedTuple

from django.db import transaction
from django.utils import timezone
from psycopg.types.json import Jsonb

from accounts import permissions
from accounts.models import Project, User
from accounts.services import audit
from scheduler import outbox
from scheduler.core.lifecycle import ACTIVE, INTERRUPTED, PENDING, PUBLIC, TERMINAL, JobState, StopReason
from scheduler.models import Allocation, Attempt
from scheduler.services.jobs.verbs import HOLDERS, may_release
from scheduler.services.jobs.write_jobs import held_reason
from scheduler.state.db.query import RowQuery
from scheduler.state.db.sql import int_array, run
from scheduler.state.lifecycle.dependencies import EndedJob, not_evaluated, reasons_of, resolve_dependants
from scheduler.state.lifecycle.transitions import MOST_ANNOUNCED, NO_REASON

#: Numbers of jobs that an audit row names; it counts the others.
MOST_NAMED: Final = 1000


class Alike(NamedTuple):
    """Jobs that a verb judges alike; nobody else moves them until the transaction ends."""

    state: str
    held_by: str
    user_id: int
    project_id: int
    cluster_id: int
    size: int
    first: int
    #: Their numbers, as the text of an array.
    listed: str

    @property
    def numbers(self) -> list[int]:
        return [int(number) for number in self.listed[1:-1].split(",")]


_ALIKE: Final = RowQuery(
    Alike,
    {
        "state": "locked.state",
        "held_by": "locked.held_by",
        "user_id": "locked.user_id",
        "project_id": "locked.project_id",
        "cluster_id": "queue.cluster_id",
        "size": "count(*)",
        "first": "min(locked.number)",
        "listed": "array_agg(locked.number ORDER BY locked.number)::text",
    },
    """WITH locked AS MATERIALIZED (
    SELECT number, state, held_by, user_id, project_id, queue_id FROM scheduler_job
    WHERE number = ANY(%s::bigint[]) ORDER BY number FOR NO KEY UPDATE
)
SELECT {columns} FROM locked JOIN scheduler_queue queue ON queue.id = locked.queue_id
GROUP BY 1, 2, 3, 4, 5 ORDER BY 7""",
)
#: Moves jobs and writes the event of each.
_MOVE: Final = """
WITH moved AS (
    UPDATE scheduler_job job SET state = %(state)s, generation = generation + 1, {columns}
    FROM scheduler_jobrequest request
    WHERE job.number = ANY(%(numbers)s::bigint[]) AND request.number = job.number RETURNING job.number, job.epoch
)
INSERT INTO scheduler_jobevent (job_id, at, kind, because, epoch, actor_id, details)
SELECT number, %(at)s, %(kind)s, %(because)s, nullif(epoch, 0), %(by)s, '{{}}'::jsonb FROM moved ORDER BY number
"""
#: Of jobs that are over now: those that somebody waits for, and one of each array that somebody waits for.
_WAITED_FOR: Final = """
SELECT job.number, job.state, job.saved_at FROM scheduler_job job WHERE job.number = ANY(ARRAY(
    SELECT edge.on_id FROM scheduler_jobdependency edge
    WHERE edge.on_id = ANY(%(numbers)s::bigint[]) AND edge.satisfied IS NULL
    UNION SELECT min(request.number) FROM scheduler_jobrequest request
    WHERE request.number = ANY(%(numbers)s::bigint[]) AND request.array_number = ANY(ARRAY(
        SELECT edge.on_array FROM scheduler_jobdependency edge
        WHERE edge.on_array IS NOT NULL AND edge.satisfied IS NULL))
    GROUP BY request.array_number))
"""
_WAIT_FOR_OTHERS: Final = """
SELECT DISTINCT edge.job_id FROM scheduler_jobdependency edge
WHERE edge.job_id = ANY(%s::bigint[]) AND edge.satisfied IS NOT TRUE
"""


@dataclass(slots=True)
class Outcome:
    """What became of each job: numbers of those that were changed or were so already, and why others were not."""

    done: list[int] = field(default_factory=list)
    unchanged: list[int] = field(default_factory=list)
    refused: dict[int, str] = field(default_factory=dict)

    def add(self, other: Outcome) -> None:
        """Count in what became of further jobs."""
        self.done += other.done
        self.unchanged += other.unchanged
        self.refused |= other.refused

    def refuse(self, jobs: Alike, why: str) -> None:
        """Keep why these were not changed: a sentence that begins with what they are."""
        self.refused |= dict.fromkeys(jobs.numbers, why)


def act_on_many(
    verb: str,
    numbers: Collection[int],
    *,
    by: User,
    reason: str = "",
    thing: audit.Thing,
    dry_run: bool = False,
) -> Outcome:
    """Cancel, hold or release these jobs, which `by` can see; one transaction, an event each, one audit row a project.

    With `dry_run` nothing is written, and the outcome is what it would be at this moment.
    """
    with transaction.atomic():
        found = _ALIKE.read(run(_ALIKE.sql(), [int_array(numbers)]))
        outcome = Outcome()
        act = _VERBS[verb](_allowed(verb, found, by, outcome), by=by, reason=reason, outcome=outcome)
        if not dry_run and act.moves:
            act.write()
            _announce(act.jobs)
            _audit(verb, act.jobs, by=by, reason=reason, thing=thing)
    outcome.done.sort()
    return outcome


def _allowed(verb: str, found: Iterable[Alike], by: User, outcome: Outcome) -> list[Alike]:
    """Those that the person may do this to; the others are refused."""
    found = list(found)
    projects = Project.objects.in_bulk({jobs.project_id for jobs in found})
    roles = permissions.roles_of(by, project_ids=list(projects))
    allowed = []
    for jobs in found:
        owned = _Owned(jobs.project_id, projects[jobs.project_id], jobs.user_id)
        if permissions.may(by, verb, owned, roles=roles):
            allowed.append(jobs)
        else:
            outcome.refuse(jobs, f"You do not have permission to {verb} it.")
    return allowed


class _Owned(NamedTuple):
    """Whose a job is, as permissions ask it."""

    project_id: int
    project: Project
    user_id: int


class _Move(NamedTuple):
    """Jobs that become the same, with the same columns; a column is a value, or an expression where it is a `_Sql`."""

    to: JobState
    jobs: Sequence[Alike]
    columns: Mapping[str, Any]


class _Sql(NamedTuple):
    """An expression of a column, with the names of `_MOVE`."""

    text: str


class _Act(ABC):
    """What a verb is about to do to the jobs it is allowed for; `write` does it."""

    WORD: ClassVar = ""

    def __init__(self, found: Sequence[Alike], *, by: User, reason: str, outcome: Outcome) -> None:
        self.by, self.reason, self.outcome, self.at = by, reason, outcome, timezone.now()
        self.because = f"{self.WORD} by {by.username}" + (f": {reason}" if reason else "")
        self.moves = [move for move in self.choose(found) if move.jobs]
        self.jobs = [jobs for move in self.moves for jobs in move.jobs]
        for jobs in self.jobs:
            outcome.done += jobs.numbers

    @abstractmethod
    def choose(self, found: Sequence[Alike]) -> list[_Move]:
        """Which jobs become what; refusals and jobs that are so already go into the outcome."""

    def write(self) -> None:
        """Move the jobs, with an event each."""
        for move in self.moves:
            self.move(move, _all_of(move.jobs))

    def move(self, move: _Move, numbers: str) -> None:
        """Move these of its jobs."""
        values = {name: value for name, value in move.columns.items() if not isinstance(value, _Sql)}
        columns = ", ".join(
            f"{name} = {value.text if isinstance(value, _Sql) else f'%({name})s'}"
            for name, value in move.columns.items()
        )
        plain = {name: Jsonb(value) if isinstance(value, dict) else value for name, value in values.items()}
        words = {
            "state": move.to.value, "numbers": numbers, "at": self.at, "kind": f"job.{move.to}",
            "because": self.because[:300], "by": self.by.pk,
        }  # fmt: skip
        run(_MOVE.format(columns=columns), {**plain, **words})


class _Cancel(_Act):
    WORD = "cancelled"

    def choose(self, found: Sequence[Alike]) -> list[_Move]:
        pending: list[Alike] = []
        active: list[Alike] = []
        for jobs in found:
            if jobs.state in (JobState.CANCELLED, JobState.STOPPING):
                self.outcome.unchanged += jobs.numbers
            elif jobs.state in TERMINAL:
                self.outcome.refuse(jobs, f"Has {jobs.state} already.")
            else:
                (active if jobs.state in ACTIVE else pending).append(jobs)
        ended = {"completed_at": self.at, "end_text": self.because[:300]}
        return [
            _Move(JobState.CANCELLED, pending, NO_REASON | ended),
            _Move(JobState.STOPPING, active, NO_REASON),
        ]

    def write(self) -> None:
        super().write()
        for move in self.moves:
            numbers = _all_of(move.jobs)
            if move.to == JobState.STOPPING:
                _ask_to_end([number for jobs in move.jobs for number in jobs.numbers], at=self.at)
                continue
            ended = [EndedJob(*row) for row in run(_WAITED_FOR, {"numbers": numbers})]
            for cluster_id in resolve_dependants(ended, at=self.at):
                outbox.wake_planner(cluster_id, trigger="dependency")


class _Hold(_Act):
    WORD = "held"

    def choose(self, found: Sequence[Alike]) -> list[_Move]:
        by_holder: dict[str, list[Alike]] = defaultdict(list)
        for jobs in found:
            holder = "user" if jobs.user_id == self.by.pk else "admin" if self.by.is_operator else "lead"
            if jobs.state == JobState.HELD and HOLDERS.index(holder) <= HOLDERS.index(jobs.held_by or "user"):
                self.outcome.unchanged += jobs.numbers
            elif jobs.state not in PENDING | INTERRUPTED:
                self.outcome.refuse(
                    jobs, f"Is {PUBLIC[JobState(jobs.state)]}; only a pending job can be held."
                )
            else:
                by_holder[holder].append(jobs)
        return [
            _Move(
                JobState.HELD, held,
                {"held_by": holder, "eligible_at": None,
                 **held_reason(self.by, self.at, admin=holder != "user", reason=self.reason)},
            )
            for holder, held in by_holder.items()
        ]  # fmt: skip


class _Release(_Act):
    WORD = "released"

    def choose(self, found: Sequence[Alike]) -> list[_Move]:
        roles = permissions.roles_of(self.by, project_ids={jobs.project_id for jobs in found})
        free = []
        for jobs in found:
            if jobs.state != JobState.HELD:
                self.outcome.refuse(jobs, f"Is {PUBLIC[JobState(jobs.state)]} and not held.")
            elif not may_release(jobs, self.by, roles.get(jobs.project_id)):
                who = "an operator" if jobs.held_by == "admin" else "a lead of its project"
                self.outcome.refuse(jobs, f"Was held by {who}; ask {who} to release it.")
            else:
                free.append(jobs)
        eligible = _Sql("greatest(%(at)s, request.begin_at)")
        return [
            _Move(JobState.QUEUED, free, {"held_by": "", "eligible_at": eligible, **not_evaluated(self.at)})
        ]

    def write(self) -> None:
        for move in self.moves:
            waits = {row[0] for row in run(_WAIT_FOR_OTHERS, [_all_of(move.jobs)])}
            for missing, numbers in reasons_of(waits, at=self.at):
                columns = {"held_by": "", **missing} if missing else move.columns
                self.move(
                    _Move(JobState.BLOCKED if missing else move.to, move.jobs, columns), int_array(numbers)
                )
            free = (number for jobs in move.jobs for number in jobs.numbers if number not in waits)
            self.move(move, int_array(free) if waits else _all_of(move.jobs))
        for cluster_id in {jobs.cluster_id for jobs in self.jobs}:
            outbox.wake_planner(cluster_id, trigger="release")


_VERBS: Final[Mapping[str, type[_Act]]] = {"cancel": _Cancel, "hold": _Hold, "release": _Release}
#: Verbs for many jobs at once.
VERBS: Final = tuple(_VERBS)


def _all_of(some: Sequence[Alike]) -> str:
    """The numbers of all of these, as the text of an array."""
    return "{" + ",".join(jobs.listed[1:-1] for jobs in some) + "}"


def _ask_to_end(numbers: Sequence[int], *, at: datetime) -> None:
    """Ask the processes of these jobs to end, with the grace that preemption gives."""
    live = Attempt.objects.live().filter(job_id__in=numbers)
    attempts = list(live.values_list("pk", flat=True))
    live.filter(stop_asked_at__isnull=True).update(stop_reason=StopReason.CANCELLED, stop_asked_at=at)
    nodes = (
        Allocation.objects.held()
        .filter(attempt_id__in=attempts)
        .order_by()
        .values_list("node_id", flat=True)
        .distinct()
    )
    outbox.announce(*{outbox.node_topic(node_id) for node_id in nodes}, outbox.CLUSTER_TOPIC)


def _announce(some: Sequence[Alike]) -> None:
    topics = {outbox.QUEUES_TOPIC}
    for jobs in some:
        topics |= {outbox.user_topic(jobs.user_id), outbox.project_topic(jobs.project_id)}
    if sum(jobs.size for jobs in some) <= MOST_ANNOUNCED:
        topics |= {outbox.job_topic(number) for jobs in some for number in jobs.numbers}
    outbox.announce_many(topics)


def _audit(verb: str, some: Sequence[Alike], *, by: User, reason: str, thing: audit.Thing) -> None:
    of_project: dict[int, list[Alike]] = defaultdict(list)
    for jobs in some:
        of_project[jobs.project_id].append(jobs)
    projects = Project.objects.in_bulk(of_project)
    entries = []
    for key, mine in sorted(of_project.items()):
        states: Counter[str] = Counter()
        for jobs in mine:
            states[jobs.state] += jobs.size
        numbers = sorted(number for jobs in mine for number in jobs.numbers)
        entries.append(
            audit.Entry(
                by=by, action=f"job.{verb}", thing=thing, before={"states": dict(states)},
                after={"jobs": len(numbers), "numbers": numbers[:MOST_NAMED]}, reason=reason, project=projects[key],
            )
        )  # fmt: skip
    audit.record_all(entries)
