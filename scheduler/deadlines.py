"""Deadlines, waits and relaxations of jobs: whether one is due, and when a job has to be looked at next."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final, Protocol

from django.db.models import DateTimeField, DurationField, ExpressionWrapper, F, Q, Value
from django.db.models.functions import Greatest
from django.utils import timezone

from infra.times_in_text import written
from scheduler.core.lifecycle import PENDING, DeadlineAction, JobState
from scheduler.core.snapshot.relaxation import DROPPED, WORDS, Relaxable
from scheduler.models.job import JobQuerySet
from scheduler.state.lifecycle.verdicts import duration


class DeadlineState(StrEnum):
    """Whether a job meets its deadline."""

    ON_TIME = "on-time"  # pending or running, and can end before it
    LATE = "late"  # pending or running, and is expected to end after it
    MET = "met"  # completed before it
    MISSED = "missed"  # the deadline has passed, or the job failed


class HasDeadline(Protocol):
    """What is read of a job: a model instance or a row of a list."""

    state: Any
    deadline_at: datetime | None
    deadline_action: str
    time_limit_seconds: int | None
    wait_limit_seconds: int | None
    begin_at: datetime | None
    eligible_at: datetime | None
    started_at: datetime | None
    completed_at: datetime | None
    expected_start_at: datetime | None
    epoch: int
    created_at: Any
    assemblies_failed: int
    relax: list[dict[str, Any]]
    relaxed: list[str] | None


@dataclass(frozen=True, slots=True)
class Outlook:
    """Whether a job meets its deadline; `seconds` is by how much it is or will be late, negative before it."""

    state: DeadlineState
    seconds: int
    text: str


def outlook(job: Any, now: datetime | None = None) -> Outlook | None:
    """Whether a job meets its deadline; None without one, and for a job that was cancelled before it.

    The expected end is the expected start (median of the forecast, else the start that backfill promises, else now)
    plus the time limit. Without a time limit the end is unknown, and only a start after the deadline is late.
    """
    deadline, now = job.deadline_at, now or timezone.now()
    if deadline is None:
        return None
    if job.completed_at is not None:
        return _ended(job, deadline)
    if now >= deadline:
        late = _seconds(now - deadline)
        return Outlook(DeadlineState.MISSED, late, f"The deadline passed {duration(late)} ago.")
    return _running(job, deadline, now) if job.state not in PENDING else _pending(job, deadline, now)


def _ended(job: Any, deadline: datetime) -> Outlook | None:
    late = _seconds(job.completed_at - deadline)
    if late > 0:
        return Outlook(DeadlineState.MISSED, late, f"Missed its deadline by {duration(late)}.")
    if job.state == JobState.COMPLETED:
        return Outlook(DeadlineState.MET, late, f"Completed {duration(-late)} before its deadline.")
    if job.state == JobState.FAILED:
        return Outlook(DeadlineState.MISSED, late, "Failed before its deadline.")
    return None


def _running(job: Any, deadline: datetime, now: datetime) -> Outlook:
    start = job.started_at or now
    if not job.time_limit_seconds:
        return Outlook(DeadlineState.ON_TIME, _seconds(now - deadline), "Runs, without a time limit.")
    late = _seconds(start + timedelta(seconds=job.time_limit_seconds) - deadline)
    if late > 0:
        text = f"May miss its deadline: its time limit ends {duration(late)} after it."
        return Outlook(DeadlineState.LATE, late, text)
    return Outlook(DeadlineState.ON_TIME, late, f"Its time limit ends {duration(-late)} before its deadline.")


def _pending(job: Any, deadline: datetime, now: datetime) -> Outlook:
    limit = job.time_limit_seconds or 0
    earliest = max(now, job.begin_at or now)
    if limit and (late := _seconds(earliest + timedelta(seconds=limit) - deadline)) > 0:
        text = (
            f"Cannot be sure to meet its deadline: with a start at the earliest moment its time limit of "
            f"{duration(limit)} ends {duration(late)} after it."
        )
        return Outlook(DeadlineState.LATE, late, text)
    likely = job.likely_start
    start, source = (
        (likely.p50_at, "forecast") if likely and likely.p50_at else (job.expected_start_at, "promised")
    )
    start = max(start or earliest, earliest)
    late = _seconds(start + timedelta(seconds=limit) - deadline)
    if late > 0:
        ends = (
            f"its time limit of {duration(limit)} then ends {duration(late)} after it"
            if limit
            else "that is after it"
        )
        text = f"Is expected to miss its deadline: the {source} start is {written(start)}, and {ends}."
        return Outlook(DeadlineState.LATE, late, text)
    return Outlook(DeadlineState.ON_TIME, late, f"Can end {duration(-late)} before its deadline.")


def _seconds(span: timedelta) -> int:
    return int(span.total_seconds())


# ---------------------------------------------------------------- when to look at it


def latest_start(job: HasDeadline) -> datetime | None:
    """The last moment at which a job that is ended at its deadline may start; None for one that is not."""
    if job.deadline_at is None or job.deadline_action != DeadlineAction.END:
        return None
    return job.deadline_at - timedelta(seconds=job.time_limit_seconds or 0)


def wait_ends(job: HasDeadline) -> datetime | None:
    """When a job in its queue has waited as long as it may for its first start; None where it may wait on."""
    if job.wait_limit_seconds is None or job.state != JobState.QUEUED or job.epoch or job.eligible_at is None:
        return None
    return _waits_since(job, job.eligible_at) + timedelta(seconds=job.wait_limit_seconds)


def _waits_since(job: HasDeadline, eligible_at: datetime) -> datetime:
    """Since when a job waits in its queue. The pauses of a gang that gave its nodes back are part of the wait."""
    if not job.assemblies_failed or job.epoch:
        return eligible_at
    since: datetime = max(job.created_at, job.begin_at or job.created_at)
    return min(eligible_at, since)


@dataclass(frozen=True, slots=True)
class Relaxation:
    """A constraint that a job lets be relaxed: when by its wait (None: not by that), and whether it is."""

    constraint: Relaxable
    after: int | None
    after_failures: int | None
    at: datetime | None
    relaxed: bool

    @property
    def text(self) -> str:
        """`After 10 min one rack is no longer required`, as it is or as it will be."""
        when = [f"after a wait of {duration(self.after)}"] if self.after is not None else []
        if self.after_failures is not None:
            when.append(
                f"after {self.after_failures} failed attempt{'' if self.after_failures == 1 else 's'}"
            )
        words = WORDS[self.constraint]
        if self.relaxed:
            return f"No longer required: {words}, {' or '.join(when)}{_left(self.constraint)}."
        until = f" That is {written(self.at)}." if self.at is not None else ""
        return f"Required, and relaxed {' or '.join(when)}: {words}.{until}"


def _left(constraint: Relaxable) -> str:
    return "; any will do" if constraint in DROPPED else "; preferred still"


def relaxations(job: Any) -> list[Relaxation]:
    """What a job lets be relaxed, in the order of its request."""
    waits = job.state in WAITS and job.eligible_at is not None
    since = _waits_since(job, job.eligible_at) if waits else None
    return [
        Relaxation(
            Relaxable(one["constraint"]), one.get("after"), one.get("after_failures"),
            since + timedelta(seconds=one["after"]) if since is not None and "after" in one else None,
            one["constraint"] in (job.relaxed or ()),
        )
        for one in job.relax
    ]  # fmt: skip


#: A job in these states waits for its turn.
WAITS: Final = frozenset({JobState.QUEUED, JobState.RESERVED})


def check_after(job: HasDeadline, now: datetime) -> datetime | None:
    """The first moment after `now` at which one of its limits may be reached; None when none can be."""
    moments = [job.deadline_at]
    if job.state in PENDING:
        moments += [latest_start(job), wait_ends(job)]
        if job.wait_limit_seconds is not None and job.state != JobState.QUEUED and not job.epoch:
            moments.append(now + timedelta(seconds=job.wait_limit_seconds))  # its wait has not begun
    moments += [_relaxes(one, job, now) for one in relaxations(job) if not one.relaxed]
    return min((moment for moment in moments if moment is not None and moment > now), default=None)


def _relaxes(one: Relaxation, job: HasDeadline, now: datetime) -> datetime | None:
    """When to look at a constraint that may be relaxed; the end of a failed attempt asks for a look by itself."""
    if one.at is not None:
        return max(one.at, now + timedelta(seconds=1))
    waits_later = job.state in PENDING and one.after is not None
    return now + timedelta(seconds=one.after or 0) if waits_later else None  # its wait has not begun


# ---------------------------------------------------------------- as a filter

_SECOND: Final = Value(timedelta(seconds=1), output_field=DurationField())


def in_deadline_state(jobs: JobQuerySet, state: str) -> JobQuerySet:
    """Jobs with a deadline to which they stand like this: the same as `outlook`, in SQL."""
    now = timezone.now()
    jobs = jobs.filter(deadline_at__isnull=False)
    if state == DeadlineState.MET:
        return jobs.in_states([JobState.COMPLETED]).filter(completed_at__lte=F("deadline_at"))
    if state == DeadlineState.MISSED:
        ended_late = Q(outcome__isnull=False, completed_at__gt=F("deadline_at"))
        return jobs.filter(Q(outcome=JobState.FAILED) | ended_late | Q(outcome=None, deadline_at__lte=now))
    limit = ExpressionWrapper(F("time_limit_seconds") * _SECOND, output_field=DurationField())
    running = ExpressionWrapper(F("started_at") + limit, output_field=DateTimeField())
    likely = Greatest(Value(now), F("begin_at"), F("forecast__p50_at"), output_field=DateTimeField())
    promised = Greatest(Value(now), F("begin_at"), F("expected_start_at"), output_field=DateTimeField())
    no_limit = Q(time_limit_seconds=None)
    known = Q(state=JobState.QUEUED, forecast__p50_at__isnull=False)
    late = Q(pk__in=[])
    for case, start in ((known, likely), (~known, promised)):
        pending = Q(state__in=sorted(PENDING)) & case
        ends = ExpressionWrapper(start + limit, output_field=DateTimeField())
        late |= pending & ((Q(deadline_at__lt=ends) & ~no_limit) | (no_limit & Q(deadline_at__lt=start)))
    late |= ~Q(state__in=sorted(PENDING)) & ~no_limit & Q(deadline_at__lt=running)
    open_jobs = jobs.not_over().filter(deadline_at__gt=now)
    numbers = open_jobs.filter(late).order_by().values("number")
    return (
        open_jobs.filter(number__in=numbers)
        if state == DeadlineState.LATE
        else open_jobs.exclude(number__in=numbers)
    )


def job_states() -> list[tuple[str, str]]:
    """The states as a choice of a filter."""
    return [(state.value, state.value) for state in DeadlineState]
