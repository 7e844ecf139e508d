"""One verb on many jobs in one transaction, with statements for all of them: cancel, hold, release.

Each job is judged on its own: what may not be done to one, or makes no sense in its state, keeps no other from it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, NamedTuple

from django.db import transaction
from django.db.models import F
from django.utils import timezone

from accounts import permissions
from accounts.models import Project, User
from accounts.services import audit
from scheduler import outbox
from scheduler.core.lifecycle import ACTIVE, INTERRUPTED, PENDING, PUBLIC, TERMINAL, JobState, StopReason
from scheduler.models import Allocation, Attempt, Job, JobDependency
from scheduler.models.job import said_number
from scheduler.services.jobs.verbs import HOLDERS, may_release, queue_again
from scheduler.services.jobs.write_jobs import held_reason
from scheduler.state.db.query import RowQuery
from scheduler.state.db.sql import int_array, run
from scheduler.state.lifecycle.dependencies import EndedJob, not_evaluated, resolve_dependants
from scheduler.state.lifecycle.transitions import NO_REASON

_NEXT_GENERATION: Final = F("generation") + 1
#: Numbers of jobs that an audit row names; it counts the others.
MOST_NAMED: Final = 1000


class LockedJob(NamedTuple):
    """What a verb has to know of a job; nobody else moves the job until the transaction ends."""

    number: int
    array_number: int | None
    array_index: int | None
    state: str
    held_by: str
    user_id: int
    project_id: int
    cluster_id: int
    saved_at: datetime | None

    @property
    def called(self) -> str:
        return said_number(self.number, self.array_number, self.array_index)


_LOCKED: Final = RowQuery(
    LockedJob,
    {
        "number": "job.number",
        "array_number": "request.array_number",
        "array_index": "request.array_index",
        "state": "job.state",
        "held_by": "job.held_by",
        "user_id": "job.user_id",
        "project_id": "job.project_id",
        "cluster_id": "queue.cluster_id",
        "saved_at": "job.saved_at",
    },
    """SELECT {columns}
FROM scheduler_job job JOIN scheduler_jobrequest request ON request.number = job.number
    JOIN scheduler_queue queue ON queue.id = job.queue_id
WHERE job.number = ANY(%s::bigint[]) ORDER BY job.number FOR NO KEY UPDATE OF job""",
)
_EVENTS: Final = """
INSERT INTO scheduler_jobevent (job_id, at, kind, because, epoch, actor_id, details)
SELECT number, %s, %s, %s, nullif(epoch, 0), %s, '{}'::jsonb FROM scheduler_job
WHERE number = ANY(%s::bigint[]) ORDER BY number
"""
#: A released job with a begin time is eligible then.
_WAIT_FOR_THEIR_TIME: Final = """
UPDATE scheduler_job job SET eligible_at = request.begin_at FROM scheduler_jobrequest request
WHERE request.number = job.number AND job.number = ANY(%s::bigint[]) AND request.begin_at > %s
"""


@dataclass(slots=True)
class Outcome:
    """What became of each job: numbers of those that were changed or were so already, and refusals by number."""

    done: list[int] = field(default_factory=list)
    unchanged: list[int] = field(default_factory=list)
    refused: dict[int, str] = field(default_factory=dict)

    def add(self, other: Outcome) -> None:
        """Count in what became of further jobs."""
        self.done += other.done
        self.unchanged += other.unchanged
        self.refused |= other.refused


def act_on_many(
    verb: str,
    numbers: Collection[int],
    *,
    by: User,
    reason: str = "",
    thing: audit.Thing,
    dry_run: bool = False,
) -> Outcome:
    """Cancel, hold or release these jobs, whom `by` can see; one transaction, an event each, one audit row a project.

    With `dry_run` nothing is written, and the outcome is what it would be at this moment.
    """
    with transaction.atomic():
        jobs = _LOCKED.read(run(_LOCKED.sql(), [int_array(numbers)]))
        outcome = Outcome()
        allowed = _allowed(verb, jobs, by, outcome)
        act = _VERBS[verb](allowed, by=by, reason=reason, outcome=outcome)
        if not dry_run and act.moves:
            act.write()
            outbox.announce_jobs(act.jobs)
            _audit(verb, act.jobs, by=by, reason=reason, thing=thing)
    return outcome


def _allowed(verb: str, jobs: Iterable[LockedJob], by: User, outcome: Outcome) -> list[LockedJob]:
    """Those that the person may do this to; the others are refused."""
    jobs = list(jobs)
    projects = Project.objects.in_bulk({job.project_id for job in jobs})
    roles = permissions.roles_of(by, project_ids=list(projects))
    answers: dict[tuple[int, int], bool] = {}
    allowed = []
    for job in jobs:
        key = (job.project_id, job.user_id)
        if key not in answers:
            owned = _Owned(job.project_id, projects[job.project_id], job.user_id)
            answers[key] = permissions.may(by, verb, owned, roles=roles)
        if answers[key]:
            allowed.append(job)
        else:
            outcome.refused[job.number] = f"You do not have permission to {verb} job {job.called}."
    return allowed


class _Owned(NamedTuple):
    """Whose a job is, as permissions ask it."""

    project_id: int
    project: Project
    user_id: int


class _Move(NamedTuple):
    """Jobs that become the same, with the same columns."""

    to: JobState
    jobs: Sequence[LockedJob]
    columns: Mapping[str, Any]


class _Act:
    """What a verb is about to do to the jobs it is allowed for; `write` does it."""

    def __init__(self, jobs: Sequence[LockedJob], *, by: User, reason: str, outcome: Outcome) -> None:
        self.by, self.reason, self.outcome, self.at = by, reason, outcome, timezone.now()
        self.because = f"{self.WORD} by {by.username}" + (f": {reason}" if reason else "")
        self.moves = [move for move in self.choose(jobs) if move.jobs]
        self.jobs = [job for move in self.moves for job in move.jobs]
        outcome.done += sorted(job.number for job in self.jobs)

    WORD = ""

    def choose(self, jobs: Sequence[LockedJob]) -> list[_Move]:
        """Which jobs become what; refusals and jobs that are so already go into the outcome."""
        raise NotImplementedError

    def write(self) -> None:
        """Move the jobs, with an event each."""
        for move in self.moves:
            numbers = [job.number for job in move.jobs]
            moved = Job.objects.filter(pk__in=numbers)
            moved.update(state=move.to, generation=_NEXT_GENERATION, **move.columns)
            run(_EVENTS, [self.at, f"job.{move.to}", self.because[:300], self.by.pk, int_array(numbers)])


class _Cancel(_Act):
    WORD = "cancelled"

    def choose(self, jobs: Sequence[LockedJob]) -> list[_Move]:
        pending: list[LockedJob] = []
        active: list[LockedJob] = []
        for job in jobs:
            if job.state in (JobState.CANCELLED, JobState.STOPPING):
                self.outcome.unchanged.append(job.number)
            elif job.state in TERMINAL:
                self.outcome.refused[job.number] = f"Job {job.called} has {job.state} already."
            else:
                (active if job.state in ACTIVE else pending).append(job)
        ended = {"completed_at": self.at, "end_text": self.because[:300]}
        return [
            _Move(JobState.CANCELLED, pending, NO_REASON | ended),
            _Move(JobState.STOPPING, active, NO_REASON),
        ]

    def write(self) -> None:
        super().write()
        for move in self.moves:
            numbers = [job.number for job in move.jobs]
            if move.to == JobState.STOPPING:
                _ask_to_end(numbers, at=self.at)
                continue
            ended = [EndedJob(job.number, JobState.CANCELLED, job.saved_at) for job in move.jobs]
            for cluster_id in resolve_dependants(ended, at=self.at):
                outbox.wake_planner(cluster_id, trigger="dependency")


class _Hold(_Act):
    WORD = "held"

    def choose(self, jobs: Sequence[LockedJob]) -> list[_Move]:
        by_holder: dict[str, list[LockedJob]] = defaultdict(list)
        for job in jobs:
            holder = "user" if job.user_id == self.by.pk else "admin" if self.by.is_operator else "lead"
            if job.state == JobState.HELD and HOLDERS.index(holder) <= HOLDERS.index(job.held_by or "user"):
                self.outcome.unchanged.append(job.number)
            elif job.state not in PENDING | INTERRUPTED:
                state = PUBLIC[JobState(job.state)]
                text = f"Job {job.called} is {state}; only a pending job can be held."
                self.outcome.refused[job.number] = text
            else:
                by_holder[holder].append(job)
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

    def choose(self, jobs: Sequence[LockedJob]) -> list[_Move]:
        roles = permissions.roles_of(self.by, project_ids={job.project_id for job in jobs})
        free = []
        for job in jobs:
            if job.state != JobState.HELD:
                state = PUBLIC[JobState(job.state)]
                self.outcome.refused[job.number] = f"Job {job.called} is {state} and not held."
            elif not may_release(job, self.by, roles.get(job.project_id)):
                who = "an operator" if job.held_by == "admin" else "a lead of its project"
                self.outcome.refused[job.number] = (
                    f"Job {job.called} was held by {who}; ask {who} to release it."
                )
            else:
                free.append(job)
        return [_Move(JobState.QUEUED, free, {})]

    def write(self) -> None:
        for move in self.moves:
            numbers = [job.number for job in move.jobs]
            waiting = JobDependency.objects.filter(job_id__in=numbers).exclude(satisfied=True)
            waits = set(waiting.values_list("job_id", flat=True))
            for job in Job.objects.filter(pk__in=waits).order_by("pk").select_related("queue"):
                queue_again(job, because=self.because, by=self.by, at=self.at)
            self._queue([number for number in numbers if number not in waits])
        for cluster_id in {job.cluster_id for job in self.jobs}:
            outbox.wake_planner(cluster_id, trigger="release")

    def _queue(self, numbers: Sequence[int]) -> None:
        reason = not_evaluated(self.at)
        Job.objects.filter(pk__in=numbers).update(
            state=JobState.QUEUED, generation=_NEXT_GENERATION, held_by="", eligible_at=self.at, **reason
        )
        run(_WAIT_FOR_THEIR_TIME, [int_array(numbers), self.at])
        run(_EVENTS, [self.at, "job.queued", self.because[:300], self.by.pk, int_array(numbers)])


_VERBS: Final[Mapping[str, type[_Act]]] = {"cancel": _Cancel, "hold": _Hold, "release": _Release}
#: Verbs for many jobs at once.
VERBS: Final = tuple(_VERBS)


def _ask_to_end(numbers: Sequence[int], *, at: datetime) -> None:
    """Ask the processes of these jobs to end, with the grace that preemption gives."""
    live = Attempt.objects.live().filter(job_id__in=numbers)
    attempts = list(live.values_list("pk", flat=True))
    live.filter(stop_asked_at__isnull=True).update(stop_reason=StopReason.CANCELLED, stop_asked_at=at)
    nodes = (
        Allocation.objects.held().filter(attempt_id__in=attempts).values_list("node_id", flat=True).distinct()
    )
    outbox.announce(*{outbox.node_topic(node_id) for node_id in nodes}, outbox.CLUSTER_TOPIC)


def _audit(verb: str, jobs: Sequence[LockedJob], *, by: User, reason: str, thing: audit.Thing) -> None:
    of_project: dict[int, list[LockedJob]] = defaultdict(list)
    for job in jobs:
        of_project[job.project_id].append(job)
    projects = Project.objects.in_bulk(of_project)
    audit.record_all([
        audit.Entry(
            by=by, action=f"job.{verb}", thing=thing, before={"states": dict(Counter(job.state for job in some))},
            after={"jobs": len(some), "numbers": [job.number for job in some[:MOST_NAMED]]}, reason=reason,
            project=projects[key],
        )
        for key, some in sorted(of_project.items())
    ])  # fmt: skip
