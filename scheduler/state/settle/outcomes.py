"""What becomes of attempts and their jobs by their verdicts, as rows and as events."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from infra.times_in_text import written
from scheduler.core.lifecycle import AttemptState, JobState
from scheduler.core.reason_codes import CATEGORY, ReasonCode
from scheduler.core.reasons.event_texts import ALL_SUCCEEDED, text_of
from scheduler.models.job import UNSUCCESSFUL
from scheduler.state.db.parameter_rows import ParameterRows
from scheduler.state.db.sql import Statement
from scheduler.state.lifecycle.verdicts import Verdict
from scheduler.state.settle.events import Event
from scheduler.state.settle.locked_attempts import AttemptRow

#: What is said of a job that waits again; an attempt that was stopped for others did not fail.
_REQUEUED: Final = {
    AttemptState.FAILED: "requeued after the failed attempt",
    AttemptState.LOST: "requeued after the lost attempt",
}
#: What the trigger would write in a second version of the row.
_UNSUCCESSFUL: Final = f"CASE WHEN v.state IN ({', '.join(map(repr, UNSUCCESSFUL))}) THEN v.state END"


class Reason(NamedTuple):
    """A pending reason, as the columns of a job have it; empty for a job that is over. `details` are JSON."""

    code: str = ""
    category: str = ""
    text: str = ""
    details: str = "{}"


class Start(NamedTuple):
    """When and where an attempt began, of which nothing has been written yet: it ended before that was reported."""

    at: datetime
    node: str


class Outcome(NamedTuple):
    """An attempt with its verdict, and what follows for the columns of its job."""

    attempt: AttemptRow
    verdict: Verdict
    at: datetime
    #: When the job may start again; None = it is over.
    retry_at: datetime | None
    reason: Reason
    #: Its beginning, where that is written together with the end.
    start: Start | None

    @classmethod
    def of(cls, attempt: AttemptRow, verdict: Verdict, at: datetime, start: Start | None = None) -> Outcome:
        if verdict.retry_seconds is None:
            return cls(attempt, verdict, at, None, Reason(), start)
        retry_at = at + timedelta(seconds=verdict.retry_seconds)
        return cls(attempt, verdict, at, retry_at, _why_it_waits(verdict, retry_at), start)

    @property
    def started_at(self) -> datetime | None:
        return self.start.at if self.start else None


def _why_it_waits(verdict: Verdict, retry_at: datetime) -> Reason:
    """Why a job that is tried again does not start yet."""
    if not verdict.retry_seconds:
        code, details = ReasonCode.NOT_EVALUATED_YET, "{}"
        text = "Requeued; the next cycle evaluates the job."
    else:
        code = ReasonCode.BACKOFF
        text = f"Next attempt at {written(retry_at)} or later. Last attempt: {verdict.text}"
        details = json.dumps({"until": retry_at.isoformat(), "wait_seconds": verdict.retry_seconds})
    return Reason(code.value, CATEGORY[code].value, text, details)


_ATTEMPTS: Final[ParameterRows[Outcome]] = ParameterRows(
    "v",
    {
        "id": ("bigint", lambda one: one.attempt.id),
        "state": ("text", lambda one: one.verdict.attempt.value),
        "exit_code": ("int", lambda one: one.verdict.exit_code),
        "exit_signal": ("int", lambda one: one.verdict.exit_signal),
        "end_text": ("text", lambda one: one.verdict.text[:300]),
        "failure_class": ("text", lambda one: one.verdict.failure or ""),
        "ended_at": ("timestamptz", lambda one: one.at),
        "started_at": ("timestamptz", lambda one: one.started_at),
    },
)
_WRITE_ATTEMPTS: Final = f"""
UPDATE scheduler_attempt attempt SET state = v.state, ended_at = v.ended_at, exit_code = v.exit_code,
    exit_signal = v.exit_signal, end_text = v.end_text, failure_class = v.failure_class,
    started_at = coalesce(attempt.started_at, v.started_at)
FROM {_ATTEMPTS.source} WHERE attempt.id = v.id
"""

_JOBS: Final[ParameterRows[Outcome]] = ParameterRows(
    "v",
    {
        "number": ("bigint", lambda one: one.attempt.number),
        "state": ("text", lambda one: one.verdict.job.value),
        "exit_code": ("int", lambda one: one.verdict.exit_code),
        "exit_signal": ("int", lambda one: one.verdict.exit_signal),
        "end_text": ("text", lambda one: one.verdict.text[:300]),
        "failure_class": ("text", lambda one: one.verdict.failure or ""),
        "started_at": ("timestamptz", lambda one: one.started_at),
        "completed_at": ("timestamptz", lambda one: None if one.retry_at else one.at),
        "retry_at": ("timestamptz", lambda one: one.retry_at),
        "reason_code": ("text", lambda one: one.reason.code),
        "reason_category": ("text", lambda one: one.reason.category),
        "reason_text": ("text", lambda one: one.reason.text),
        "reason_details": ("text", lambda one: one.reason.details),
        "reason_at": ("timestamptz", lambda one: one.at if one.reason.code else None),
    },
)
#: A job that starts again without a wait was stopped by no fault of its own and keeps its place.
_WRITE_JOBS: Final = f"""
UPDATE scheduler_job job SET state = v.state, unsuccessful = {_UNSUCCESSFUL},
    generation = job.generation + 1, exit_code = v.exit_code, exit_signal = v.exit_signal, end_text = v.end_text,
    failure_class = v.failure_class,
    completed_at = v.completed_at,
    eligible_at = CASE WHEN v.retry_at IS NULL OR v.reason_code = 'NotEvaluatedYet'
        THEN coalesce(job.eligible_at, v.retry_at) ELSE v.retry_at END,
    check_at = CASE WHEN v.retry_at IS NOT NULL AND EXISTS (SELECT FROM scheduler_jobrequest request
        WHERE request.number = job.number AND request.relax <> '[]') THEN statement_timestamp() ELSE job.check_at END,
    started_at = CASE WHEN v.retry_at IS NULL THEN coalesce(v.started_at, job.started_at) END,
    scheduled_at = CASE WHEN v.retry_at IS NULL THEN job.scheduled_at END,
    reason_code = v.reason_code, reason_category = v.reason_category, reason_text = v.reason_text,
    reason_details = v.reason_details::jsonb, reason_at = v.reason_at, expected_start_at = NULL
FROM {_JOBS.source} WHERE job.number = v.number
"""


def attempt_statement(outcomes: Sequence[Outcome]) -> Statement:
    return _WRITE_ATTEMPTS, _ATTEMPTS.parameters(outcomes)


def job_statement(outcomes: Sequence[Outcome]) -> Statement:
    """The jobs are locked and were read under the lock, so this update cannot race."""
    return _WRITE_JOBS, _JOBS.parameters(outcomes)


#: From these a job becomes running; one that is to stop, or to make room, has no such event.
BEFORE_RUNNING: Final = frozenset({JobState.SCHEDULED, JobState.STARTING})


def events_of(outcomes: Sequence[Outcome]) -> list[tuple[Event, datetime]]:
    """One event for each job that is over; two for one that is tried again: how the attempt ended, and that.

    Where the beginning is written only now, the event of a job that is over has its node, and another comes before
    those of one that is tried again.
    """
    found: list[tuple[Event, datetime]] = []
    for outcome in outcomes:
        attempt, start = outcome.attempt, outcome.start
        if start and attempt.state in BEFORE_RUNNING and outcome.retry_at is not None:
            found.append((running_event(attempt.number, attempt.epoch, start.node), start.at))
        found += [(event, outcome.at) for event in _events(outcome)]
    return found


def running_event(number: int, epoch: int, node: str) -> Event:
    """The text follows from the node."""
    return Event(number, epoch, "job.running", "", json.dumps({"node": node}))


def _events(outcome: Outcome) -> list[Event]:
    attempt, verdict, start = outcome.attempt, outcome.verdict, outcome.start
    details: dict[str, Any] = {"attempt": verdict.attempt.value, "exit_code": verdict.exit_code}
    if verdict.exit_signal is not None:
        details["exit_signal"] = verdict.exit_signal
    if verdict.failure is not None:
        details["failure_class"] = verdict.failure.value
    if attempt.stop_reason:
        details["stop_reason"] = attempt.stop_reason
    if verdict.retry_seconds is not None:
        details["retry_seconds"] = verdict.retry_seconds
    text = (verdict.text or ALL_SUCCEEDED)[:300]
    if verdict.retry_seconds is None:
        if start and attempt.state in BEFORE_RUNNING:
            details["node"] = start.node
        if verdict.job == JobState.COMPLETED and text == text_of("job.completed", details):
            text, details = "", {"node": details["node"]} if "node" in details else {}
        return [Event(attempt.number, attempt.epoch, f"job.{verdict.job.value}", text, json.dumps(details))]
    requeued = _REQUEUED.get(verdict.attempt, "requeued")
    preempted = attempt.stop_reason == "preempted"
    kind = "job.preempted" if preempted else f"attempt.{verdict.attempt.value}"
    return [
        Event(attempt.number, attempt.epoch, kind, text, json.dumps(details)),
        Event(attempt.number, attempt.epoch, "job.queued", requeued),
    ]
