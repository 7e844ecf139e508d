"""Ends attempts: releases what they held, once, and moves their jobs on; a batch costs what one costs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final

from django.db import transaction
from django.utils import timezone

from infra.db.prepared import ask_together
from quotas.services.shares import statements_of_use
from scheduler import outbox
from scheduler.core.lifecycle import (
    ENDED_ATTEMPT,
    LIVE_TASK,
    TERMINAL,
    AttemptState,
    StopReason,
    TaskState,
)
from scheduler.core.restart_rules import DEFAULT_DELAY, DEFAULT_DELAY_MAX, rules_of
from scheduler.state.db.fragments import live_attempts
from scheduler.state.db.query import Batch
from scheduler.state.db.sql import run
from scheduler.state.ledger import ledger
from scheduler.state.lifecycle import dependencies
from scheduler.state.lifecycle.verdicts import NEVER_GIVEN, JobFacts, Verdict, judge
from scheduler.state.load.quota_rows import Lines
from scheduler.state.settle import charges, release
from scheduler.state.settle import outcomes as written
from scheduler.state.settle.element_charges import ask_elements
from scheduler.state.settle.events import event_statements, unzipped
from scheduler.state.settle.locked_attempts import AttemptRow, LockedAttempts, lock_and_read, read_ends
from scheduler.state.settle.outcomes import Outcome, Start
from scheduler.state.settle.release import ReleasedRow

_LIVE_TASK: Final = sorted(s.value for s in LIVE_TASK)
_ENDED_ATTEMPT: Final = sorted(s.value for s in ENDED_ATTEMPT)
NOTHING: Final[Mapping[int, Any]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Settled:
    """One attempt that this call ended."""

    attempt_id: int
    job_number: int
    verdict: Verdict


def end_attempt(*, attempt_id: int, epoch: int, lost_text: str, at: datetime | None = None) -> Settled | None:
    """Declare one attempt lost, and what of it may still run stale; None when it has ended already."""
    settled = settle_many([attempt_id], lost={attempt_id: lost_text}, epochs={attempt_id: epoch}, at=at)
    return settled[0] if settled else None


@transaction.atomic
def settle_many(
    attempt_ids: Iterable[int],
    *,
    lost: Mapping[int, str] | None = None,
    epochs: Mapping[int, int] | None = None,
    at: datetime | None = None,
) -> list[Settled]:
    """End those of these attempts whose tasks have all ended, and those in `lost` whatever their tasks do.

    Safe to call again and from several processes at once:

    1. The rows are locked in the one order that apply takes too: nodes, devices, quotas, budget periods,
       jobs, attempts.
    2. Under the locks the attempts are read again; one that has ended meanwhile is left alone.
    3. Allocations release what they hold as they go from held to released: never twice.
    4. The ledger charges what was used and refunds what was set aside and not needed.
    5. Attempt, job and event are written; dependants are queued; the planner is woken after commit.
    """
    wanted = sorted(set(attempt_ids))
    if not wanted:
        return []
    locked = lock_and_read(wanted)
    return settle_locked(locked, at=at or timezone.now(), lost=lost or {}, epochs=epochs or {})


def settle_locked(
    locked: LockedAttempts,
    *,
    at: datetime,
    lost: Mapping[int, str] = NOTHING,
    epochs: Mapping[int, int] = NOTHING,
    starts: Mapping[int, Start] = NOTHING,
    released: Sequence[ReleasedRow] = (),
) -> list[Settled]:
    """The same for attempts that the caller has locked in that order and read under the locks.

    `starts` are of attempts whose beginning has not been written yet: it is, with its event, in the same write.
    `released` is what the caller has released of them in this transaction. Raises RuntimeError where one of these goes
    on, for then nothing would give it back.
    """
    outcomes = _outcomes(locked, lost, epochs, starts, at)
    if {row.attempt_id for row in released} - {outcome.attempt.id for outcome in outcomes}:
        raise RuntimeError("what an attempt holds was released, and it goes on")
    if outcomes:
        _write(outcomes, locked.lines, at, released)
        _announce(outcomes, at)
    return [Settled(one.attempt.id, one.attempt.number, one.verdict) for one in outcomes]


def attempts_to_settle() -> list[int]:
    """Live attempts whose tasks have all ended: a process was killed between the report and the settling."""
    return [
        row[0]
        for row in run(
            f"SELECT a.id FROM {live_attempts('a')} WHERE NOT EXISTS ("
            " SELECT 1 FROM scheduler_task t WHERE t.attempt_id = a.id AND t.is_live) ORDER BY a.id"
        )
    ]


# ------------------------------------------------------------------ decide


def _outcomes(
    locked: LockedAttempts,
    lost: Mapping[int, str],
    epochs: Mapping[int, int],
    starts: Mapping[int, Start],
    at: datetime,
) -> list[Outcome]:
    """The verdicts on those of the locked attempts that are over; the tasks of lost ones are lost with them."""
    attempts = [a for a in locked.live if a.epoch == epochs.get(a.id, a.epoch)]
    ends = locked.ends
    if lost:
        _lose_tasks([a.id for a in attempts if a.id in lost], lost, at)
        ends = read_ends([a.id for a in attempts])
    over = [
        a for a in attempts if a.id in lost or all(task.state not in LIVE_TASK for task in ends.get(a.id, []))
    ]
    facts = _facts(over)
    return [
        Outcome.of(
            a,
            judge(facts[a.id], a.stop_reason, ends.get(a.id, []), lost_text=lost.get(a.id, "")),
            at,
            starts.get(a.id),
        )
        for a in over
    ]


def _lose_tasks(attempt_ids: list[int], lost: Mapping[int, str], at: datetime) -> None:
    run(
        "UPDATE scheduler_task t SET state = %s, ended_at = %s,"
        " end_text = CASE WHEN t.state = 'assigned' THEN %s ELSE l.text END"
        " FROM unnest(%s::bigint[], %s::text[]) AS l(attempt_id, text)"
        " WHERE t.attempt_id = l.attempt_id AND t.state = ANY(%s)",
        [
            TaskState.LOST.value, at, NEVER_GIVEN, attempt_ids, [lost[i][:300] for i in attempt_ids], _LIVE_TASK,
        ],
    )  # fmt: skip


def _facts(attempts: Sequence[AttemptRow]) -> dict[int, JobFacts]:
    """What the verdict needs of each job; earlier attempts are only counted for jobs that have some."""
    again = [a.number for a in attempts if a.epoch > 1]
    lost: Counter[int] = Counter()
    ended: Counter[int] = Counter()
    refused: Counter[int] = Counter()
    if again:
        for number, outcome, count in run(
            "SELECT job_id, CASE WHEN stop_reason = %s THEN 'refused' ELSE state END AS outcome, count(*)"
            " FROM scheduler_attempt WHERE job_id = ANY(%s) AND state = ANY(%s) GROUP BY job_id, outcome",
            [StopReason.QUOTA_REFUSED.value, again, _ENDED_ATTEMPT],
        ):
            if outcome == "refused":
                refused[number] += count
            elif outcome == AttemptState.LOST:
                lost[number] += count
            elif outcome in (AttemptState.SUCCEEDED, AttemptState.FAILED):
                ended[number] += count
    return {
        a.id: JobFacts(
            state=a.state,
            restart_policy=a.restart_policy,
            max_restarts=a.max_restarts,
            restart_rules=rules_of(json.loads(a.restart_rules)) if a.restart_rules != "[]" else (),
            restart_delay_seconds=a.restart_delay_seconds or DEFAULT_DELAY,
            restart_delay_max_seconds=a.restart_delay_max_seconds or DEFAULT_DELAY_MAX,
            time_limit_seconds=a.time_limit_seconds,
            earlier_lost=lost[a.number],
            earlier_ended=ended[a.number],
            earlier_refused=refused[a.number],
            on_task_failure=a.on_task_failure,
            least_tasks=a.min_tasks or a.tasks,
            elastic=a.elastic,
        )
        for a in attempts
    }


# ------------------------------------------------------------------ write


def _write(outcomes: Sequence[Outcome], lines: Lines, at: datetime, before: Sequence[ReleasedRow]) -> None:
    """Release and charge what the attempts held, and write how they and their jobs ended."""
    attempts = [outcome.attempt for outcome in outcomes]
    release.end_suspensions([a.id for a in attempts if a.was_suspended], at)
    endings = [charges.ending_of(outcome) for outcome in outcomes]
    batch = Batch()
    rows = batch.add(release.RELEASE, release.parameters(attempts, at), which="")
    accounts = ledger.ask_ledger(batch, endings)
    elements = ask_elements(batch, [a.id for a in attempts])
    batch.send(ask_together)
    released = release.released_by(attempts, [*before, *rows.read()])
    ask_together(
        *released.statements(),
        *release.quota_statements(attempts, released.of_attempts, lines),
        *charges.charge_statements(attempts, endings, accounts.read(), elements.read(), at=at),
        written.attempt_statement(outcomes),
        written.job_statement(outcomes),
        *event_statements(*unzipped(written.events_of(outcomes))),
        *statements_of_use(released.spans),
    )


# ------------------------------------------------------------------ announce


def _announce(outcomes: Sequence[Outcome], at: datetime) -> None:
    clusters = {outcome.attempt.cluster_id for outcome in outcomes}
    over = [
        dependencies.EndedJob(one.attempt.number, one.verdict.job.value, one.attempt.saved_at)
        for one in outcomes
        if one.verdict.job in TERMINAL
    ]
    clusters |= dependencies.resolve_dependants(over, at=at)
    outbox.announce_jobs([outcome.attempt for outcome in outcomes], outbox.CLUSTER_TOPIC)
    for cluster_id in sorted(clusters):
        outbox.wake_planner(cluster_id, trigger="ended")
