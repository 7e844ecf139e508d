"""Suspension and resumption to rows: victims asked to stop their processes, and suspended jobs that resume.

A victim keeps its CPUs until its processes have stopped (`suspension.suspend_attempts`); a job that resumes takes
them again here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import structlog
from django.db import IntegrityError, transaction

from quotas.core.limits import LimitTree
from scheduler.core.lifecycle import JobState, NodeState
from scheduler.core.plan import Preempt, Resume
from scheduler.state.apply.apply_sql import move_jobs
from scheduler.state.apply.refusals import CANNOT_RESUME, Refusal
from scheduler.state.apply.suspension import (
    CPUS,
    SuspendedAttempt,
    announce,
    count_cpus,
    read_attempts,
)
from scheduler.state.db.sql import int_array, run, run_together
from scheduler.state.lease import leases
from scheduler.state.lease.leases import HeldLease
from scheduler.state.load.quota_rows import Lines
from scheduler.state.settle.events import Event, write_events
from scheduler.state.settle.locked_attempts import lock_rows

log = structlog.get_logger(__name__)

_IS_SUSPENDED: Final = "j.state = %s AND a.suspended_at IS NOT NULL"


# ------------------------------------------------------------------ suspend


def write(preempts: Sequence[Preempt], epochs: Mapping[int, int], *, at: datetime) -> None:
    """Ask these victims to be suspended; `apply_preemption` has checked them and holds their rows."""
    if not preempts:
        return
    attempts = int_array(one.attempt_id for one in preempts)
    run_together(
        move_jobs((one.job_id for one in preempts), JobState.PREEMPTING),
        (
            "UPDATE scheduler_attempt a SET suspend_asked_at = %s, grace_seconds = t.grace"
            " FROM unnest(%s::bigint[], %s::int[]) AS t(id, grace) WHERE a.id = t.id",
            [at, attempts, int_array(one.grace_seconds for one in preempts)],
        ),
        (
            "INSERT INTO scheduler_suspension (attempt_id, for_job, for_epoch, cpu_millis, asked_at)"
            " SELECT t.id, t.job, t.epoch, (SELECT coalesce(sum(held.cpu_millis), 0)"
            "  FROM scheduler_allocation held WHERE held.attempt_id = t.id AND held.released_at IS NULL), %s"
            " FROM unnest(%s::bigint[], %s::bigint[], %s::int[]) AS t(id, job, epoch)",
            [
                at, attempts, int_array(one.for_job_id for one in preempts),
                int_array(epochs[one.for_job_id] for one in preempts),
            ],
        ),
    )  # fmt: skip


# ------------------------------------------------------------------ resume


@dataclass(frozen=True, slots=True)
class CheckedResumes:
    """The suspended attempts whose CPUs are free, in the plan's order, and why others stay suspended."""

    accepted: tuple[SuspendedAttempt, ...]
    refused: tuple[Refusal, ...]
    #: The quota lines on which these jobs count, locked.
    lines: Lines


def apply_resumes(resumes: Sequence[Resume], *, lease: HeldLease, at: datetime) -> int:
    """Resume the jobs whose CPUs are still free where they are; answers how many.

    A transaction of its own, before the starts: it locks the same rows in the same order. Where a constraint
    refuses, no job resumes in this cycle.
    """
    if not resumes:
        return 0
    try:
        with transaction.atomic():
            leases.fence(lease)
            checked = check_resumes(resumes)
            write_resumes(checked, at=at)
    except IntegrityError as error:
        log.error("resume_refused_by_constraint", jobs=[one.job_id for one in resumes], error=str(error))
        return 0
    for refusal in checked.refused:
        log.debug("resume_refused", **refusal.as_dict())
    return len(checked.accepted)


def check_resumes(resumes: Sequence[Resume]) -> CheckedResumes:
    """Lock what resuming changes, and see which jobs may resume: their nodes and quota lines have the CPUs.

    Each job that may resume takes its CPUs before the next of the plan is looked at.
    """
    wanted = sorted(one.attempt_id for one in resumes)
    lines = lock_rows(wanted)
    attempts = read_attempts(wanted, _IS_SUSPENDED, JobState.SUSPENDED.value)
    needed = _needed_cpus(attempts)
    free = _FreeCpus(needed, lines)
    accepted: list[SuspendedAttempt] = []
    refused: list[Refusal] = []
    for one in resumes:
        attempt = attempts.get(one.attempt_id)
        why = free.take(attempt, needed[one.attempt_id]) if attempt else "it is no longer suspended"
        if attempt and not why:
            accepted.append(attempt)
        else:
            refused.append(Refusal(one.job_id, CANNOT_RESUME, f"Job {one.job_id} cannot resume: {why}."))
    return CheckedResumes(tuple(accepted), tuple(refused), lines)


def _needed_cpus(attempts: Mapping[int, SuspendedAttempt]) -> dict[int, Counter[int]]:
    """CPU thousandths that each attempt released, by node."""
    needed: dict[int, Counter[int]] = {attempt_id: Counter() for attempt_id in attempts}
    for attempt_id, node, millis in run(
        "SELECT attempt_id, node_id, suspended_cpu_millis FROM scheduler_allocation"
        " WHERE attempt_id = ANY(%s::bigint[]) AND released_at IS NULL",
        [int_array(attempts)],
    ):
        needed[attempt_id][node] += millis
    return needed


class _FreeCpus:
    """CPUs that jobs may take again: free ones of nodes that are up, and what is left on quota lines."""

    def __init__(self, needed: Mapping[int, Counter[int]], lines: Lines) -> None:
        self._lines = lines
        self._free_of_node = {
            node: free
            for node, state, free in run(
                "SELECT id, state, cpu_millis_capacity - used_cpu_millis FROM scheduler_node"
                " WHERE id = ANY(%s::bigint[])",
                [int_array({node for nodes in needed.values() for node in nodes})],
            )
            if state == NodeState.UP
        }
        # Plans of other clusters count on the same lines, so what was free when this was planned need not be.
        self._limits: LimitTree
        self._limits, self._row_of_line = lines.with_lenders().tree()

    def take(self, attempt: SuspendedAttempt, needed: Counter[int]) -> str:
        """Take all that the attempt needs, or nothing; answers why not."""
        if any(self._free_of_node.get(node, -1) < millis for node, millis in needed.items()):
            return "its CPUs are in use"
        total = sum(needed.values())
        charges = [
            (self._row_of_line[row.id], total)
            for row in self._lines.of_job(attempt.project_id, attempt.user_id, attempt.job_type)
            if row.resource == CPUS and row.id in self._row_of_line
        ]
        if self._limits.short(charges) is not None:
            return "a quota is used up"
        self._limits.take(charges)
        for node, millis in needed.items():
            self._free_of_node[node] -= millis
        return ""


def write_resumes(checked: CheckedResumes, *, at: datetime) -> None:
    """Give these attempts their CPUs again and end their suspensions; the rows are locked."""
    attempts = checked.accepted
    if not attempts:
        return
    ids = int_array(one.attempt for one in attempts)
    held = run(
        "UPDATE scheduler_allocation SET cpu_millis = suspended_cpu_millis, suspended_cpu_millis = 0"
        " WHERE attempt_id = ANY(%s::bigint[]) AND released_at IS NULL"
        " RETURNING attempt_id, node_id, cpu_millis",
        [ids],
    )
    count_cpus(attempts, held, checked.lines, sign=1)
    run_together(
        (
            "UPDATE scheduler_suspension SET ends_at = greatest(%s, starts_at)"
            " WHERE attempt_id = ANY(%s::bigint[]) AND starts_at IS NOT NULL AND ends_at IS NULL",
            [at, ids],
        ),
        (
            "UPDATE scheduler_attempt SET suspended_ms = suspended_ms"
            " + greatest(1, floor(extract(epoch FROM %s - suspended_at) * 1000))::bigint,"
            " suspended_at = NULL, suspend_asked_at = NULL WHERE id = ANY(%s::bigint[])",
            [at, ids],
        ),
        move_jobs((one.number for one in attempts), JobState.RUNNING),
    )
    write_events(
        [
            Event(one.number, one.epoch, "job.running", f"resumed after {_duration(one.since, at)}")
            for one in attempts
        ],
        at=at,
    )
    announce(attempts, (node for _, node, _ in held))


def _duration(since: datetime | None, at: datetime) -> str:
    seconds = int((at - since).total_seconds()) if since else 0
    return f"{seconds // 60} min" if seconds >= 120 else f"{max(seconds, 0)} s"
