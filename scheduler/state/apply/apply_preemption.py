"""Preemption and eviction to rows: running jobs that end or are suspended, for a pending job, a limit or a taint."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, NamedTuple

from scheduler import outbox
from scheduler.core.lifecycle import JobState, StopReason
from scheduler.core.plan import Preempt
from scheduler.state.apply import apply_suspension
from scheduler.state.apply.apply_context import ApplyContext
from scheduler.state.apply.apply_sql import (
    JobRow,
    insert_events_of_kind,
    lock_jobs,
    move_jobs,
    nodes_of_attempts,
)
from scheduler.state.apply.refusals import VICTIM_CHANGED, Refusal
from scheduler.state.db.sql import int_array, run, run_together

_STOPPABLE: Final = frozenset(
    {JobState.SCHEDULED, JobState.STARTING, JobState.RUNNING, JobState.CHECKPOINTING, JobState.SUSPENDED}
)


class TaintRow(NamedTuple):
    """A NoExecute taint as a node has it now, with who added it and why."""

    node: str
    added_by: str
    reason: str


#: (node, key, value) -> taint.
Taints = Mapping[tuple[int, str, str], TaintRow]


@dataclass(frozen=True, slots=True)
class CheckedPreemption:
    """The victims to stop, and by pending job why none is stopped for it."""

    accepted: tuple[Preempt, ...] = ()
    refused: Mapping[int, Refusal] = field(default_factory=dict)
    #: Locked rows of victims and of the jobs they are stopped for, by number.
    rows: Mapping[int, JobRow] = field(default_factory=dict)
    taints: Taints = field(default_factory=dict)


# ------------------------------------------------------------------ check


def check(preempts: Sequence[Preempt], *, except_for: Collection[int] = ()) -> CheckedPreemption:
    """Lock victims and preemptors; answers the victims that may be stopped. Inside the plan's transaction.

    For one pending job all victims are stopped, or none when it or one of them has changed. `except_for` are
    pending jobs for which nothing is done, as another part of their plan was refused. An eviction or a stop for a
    limit concerns one job alone: where it no longer holds, the job is left alone and nothing is refused.
    """
    preempts = [one for one in preempts if not one.for_job_id or one.for_job_id not in except_for]
    if not preempts:
        return CheckedPreemption()
    rows, live = lock_jobs(
        [one.job_id for one in preempts] + [one.for_job_id for one in preempts if one.for_job_id],
        [one.attempt_id for one in preempts],
    )
    taints = _taints_of({one.node_id for one in preempts if one.node_id})
    refused: dict[int, Refusal] = {}
    for one in preempts:
        why = _why_not(one, rows, live) if one.for_job_id else ""
        if why:
            refused.setdefault(one.for_job_id, Refusal(one.for_job_id, VICTIM_CHANGED, why))
    accepted = tuple(
        one
        for one in preempts
        if (one.for_job_id not in refused if one.for_job_id else _still_holds(one, rows, live, taints))
    )
    return CheckedPreemption(accepted, refused, rows, taints)


def _why_not(preempt: Preempt, rows: Mapping[int, JobRow], live: Collection[int]) -> str:
    """Why this victim must not be stopped for its preemptor; "" where it may."""
    preemptor = rows.get(preempt.for_job_id)
    if preemptor is None or not preemptor.is_pending_as_planned(preempt.for_generation):
        return f"Job {preempt.for_job_id} has changed: no job is stopped for it."
    if not _is_stoppable(preempt, rows, live):
        return f"Job {preempt.job_id} was to be stopped for it and has changed: no job is stopped."
    return ""


def _still_holds(preempt: Preempt, rows: Mapping[int, JobRow], live: Collection[int], taints: Taints) -> bool:
    """Whether a job may be stopped for a limit that was cut, or for a taint that its node has now."""
    has_cause = preempt.kind == "converge" or (preempt.node_id, *preempt.taint) in taints
    return has_cause and _is_stoppable(preempt, rows, live)


def _is_stoppable(preempt: Preempt, rows: Mapping[int, JobRow], live: Collection[int]) -> bool:
    victim = rows.get(preempt.job_id)
    if victim is None or preempt.attempt_id not in live:
        return False
    if preempt.mode == "suspend":
        return victim.state == JobState.RUNNING  # before that it has no process to suspend
    return victim.state in _STOPPABLE


def _taints_of(node_ids: Iterable[int]) -> dict[tuple[int, str, str], TaintRow]:
    rows = run(
        """
        SELECT node.id, taint->>'key', coalesce(taint->>'value', ''), node.name,
            coalesce(taint->>'added_by', ''), coalesce(taint->>'reason', '')
        FROM scheduler_node node, jsonb_array_elements(node.taints) taint
        WHERE node.id = ANY(%s::bigint[]) AND taint->>'effect' = 'NoExecute'
        """,
        [int_array(node_ids)],
    )
    return {(row[0], row[1], row[2]): TaintRow(*row[3:]) for row in rows}


# ------------------------------------------------------------------ write


def write(checked: CheckedPreemption, context: ApplyContext) -> None:
    """Ask the accepted victims to end or to be suspended, each with an event that says for whom and why."""
    victims = checked.accepted
    if not victims:
        return
    epochs = {number: row.epoch for number, row in checked.rows.items()}
    _stop([one for one in victims if one.mode != "suspend"], epochs, at=context.at)
    apply_suspension.write([one for one in victims if one.mode == "suspend"], epochs, at=context.at)
    events = [_event(one, checked, context.cycle_id) for one in victims]
    run(*insert_events_of_kind(f"job.{JobState.PREEMPTING.value}", events, at=context.at))
    nodes = nodes_of_attempts(one.attempt_id for one in victims)
    outbox.announce_jobs(
        (checked.rows[one.job_id] for one in victims),
        *map(outbox.node_topic, nodes),
        outbox.CLUSTER_TOPIC,
    )


def _stop(preempts: Sequence[Preempt], epochs: Mapping[int, int], *, at: datetime) -> None:
    """Running to being preempted, each attempt with for whom it ends and how long it has."""
    if not preempts:
        return
    run_together(
        move_jobs((one.job_id for one in preempts), JobState.PREEMPTING),
        (
            "UPDATE scheduler_attempt a SET stop_reason = t.reason, stop_asked_at = %s,"
            " stopped_for = nullif(t.job, 0),"
            " stopped_for_epoch = CASE WHEN t.job <> 0 THEN t.epoch END, grace_seconds = t.grace"
            " FROM unnest(%s::bigint[], %s::text[], %s::bigint[], %s::int[], %s::int[])"
            " AS t(id, reason, job, epoch, grace) WHERE a.id = t.id",
            [
                at, int_array(one.attempt_id for one in preempts),
                [(StopReason.EVICTED if one.node_id else StopReason.PREEMPTED).value for one in preempts],
                int_array(one.for_job_id for one in preempts),
                int_array(epochs.get(one.for_job_id, 0) for one in preempts),
                int_array(one.grace_seconds for one in preempts),
            ],
        ),
    )  # fmt: skip


# ------------------------------------------------------------------ events


def _event(preempt: Preempt, checked: CheckedPreemption, cycle_id: int | None) -> dict[str, Any]:
    """What a victim's event says: for whom, by which right, what it loses, and how long it has."""
    if preempt.for_job_id:
        because, details = _for_a_job(preempt, checked.rows[preempt.for_job_id])
    elif preempt.kind == "converge":
        because = f"stopped because a limit of {preempt.line} was cut below what is in use"
        details = {"kind": preempt.kind, "line": preempt.line}
    else:
        because, details = _for_a_taint(preempt, checked.taints[preempt.node_id, *preempt.taint])
    if preempt.mode == "suspend":
        because += "; the job resumes on the same nodes when enough CPUs are free"
        details["mode"] = preempt.mode
    else:
        because += f"; the job has {preempt.grace_seconds} s to end and is requeued"
    if preempt.instead:
        because += f" (not suspended: {preempt.instead})"
        details["instead"] = preempt.instead
    return {
        "number": preempt.job_id,
        "epoch": checked.rows[preempt.job_id].epoch,
        "because": because[:300],
        "details": {
            "lost_seconds": preempt.lost_seconds,
            "grace_seconds": preempt.grace_seconds,
            "cycle": cycle_id,
            **({"strategy": dict(preempt.strategy)} if preempt.strategy else {}),
            **details,
        },
    }


def _for_a_job(preempt: Preempt, preemptor: JobRow) -> tuple[str, dict[str, Any]]:
    verb = "suspended" if preempt.mode == "suspend" else "stopped"
    because = f"{verb} for job {preempt.for_job_id} of project {preemptor.project}"
    details: dict[str, Any] = {
        "for_job": preempt.for_job_id, "for_project": preemptor.project,
        "for_priority": preempt.for_priority, "priority": preempt.priority,
    }  # fmt: skip
    if preempt.kind == "reclaim":
        because += f", which reclaims what {preempt.line} had borrowed"
        details |= {"kind": preempt.kind, "line": preempt.line}
    else:
        because += f": its priority is {preempt.for_priority}, this job's {preempt.priority}"
        strategy = dict(preempt.strategy)
        if "allocated_percent" in strategy:
            because += f"; {strategy['allocated_percent']} % of the nodes that it may use is allocated"
    return because, details


def _for_a_taint(preempt: Preempt, taint: TaintRow) -> tuple[str, dict[str, Any]]:
    name = "=".join(filter(None, preempt.taint))
    who = f", put there by {taint.added_by}" if taint.added_by else ""
    why = f" ({taint.reason})" if taint.reason else ""
    because = f"evicted from {taint.node}: the node has the taint {name}:NoExecute{who}{why}"
    return because, {"node": taint.node, "taint": name, "by": taint.added_by, "why": taint.reason}
