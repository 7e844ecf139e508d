"""Changes of size to rows: elastic jobs that give up tasks for others, or stop to start again larger."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final

from scheduler import outbox
from scheduler.core.lifecycle import LIVE_TASK, JobState, StopReason, TaskState
from scheduler.core.plan import Resize
from scheduler.state.apply.apply_context import ApplyContext
from scheduler.state.apply.apply_sql import JobRow, lock_jobs, move_jobs, nodes_of_attempts
from scheduler.state.apply.refusals import VICTIM_CHANGED, Refusal
from scheduler.state.db.sql import Statement, int_array, run, run_together
from scheduler.state.settle.release import release_ended_tasks

_NOT_STOPPING: Final = sorted(s.value for s in LIVE_TASK - {TaskState.STOPPING})


@dataclass(frozen=True, slots=True)
class CheckedResizes:
    """The changes of size that hold, and by pending job (0 = for none) why none is made for it."""

    accepted: tuple[Resize, ...] = ()
    refused: Mapping[int, Refusal] = field(default_factory=dict)
    #: Locked rows of the resized jobs and of the jobs they are resized for, by number.
    rows: Mapping[int, JobRow] = field(default_factory=dict)
    #: Attempts of jobs whose next attempt gets their last checkpoint.
    checkpointed: frozenset[int] = frozenset()

    def without(self, job_ids: Collection[int]) -> CheckedResizes:
        """Leave out what was to be done for these pending jobs, as another part of their plan was refused."""
        return replace(self, accepted=tuple(one for one in self.accepted if one.for_job_id not in job_ids))


# ------------------------------------------------------------------ check


def check(resizes: Sequence[Resize]) -> CheckedResizes:
    """Lock the jobs and see which changes still hold; inside the plan's transaction.

    A job that has changed since it was seen is left alone, and so is one that would fall below its minimum size.
    """
    if not resizes:
        return CheckedResizes()
    rows, live = lock_jobs(
        [one.job_id for one in resizes] + [one.for_job_id for one in resizes if one.for_job_id],
        [one.attempt_id for one in resizes],
    )
    possible = _possible(resizes)
    refused: dict[int, Refusal] = {}
    for one in resizes:
        why = _why_not(one, rows, live if one in possible else ())
        if why:
            refused.setdefault(one.for_job_id, Refusal(one.for_job_id or one.job_id, VICTIM_CHANGED, why))
    accepted = tuple(one for one in resizes if one.for_job_id not in refused)
    checkpointed = frozenset(one.attempt_id for one, makes in possible.items() if makes)
    return CheckedResizes(accepted, refused, rows, checkpointed)


def _why_not(resize: Resize, rows: Mapping[int, JobRow], resizable: Collection[int]) -> str:
    """Why this job must not change its size; "" where it may. `resizable` are attempts."""
    if resize.for_job_id:
        preemptor = rows.get(resize.for_job_id)
        if preemptor is None or not preemptor.is_pending_as_planned(resize.for_generation):
            return f"Job {resize.for_job_id} has changed: no job releases tasks for it."
    job = rows.get(resize.job_id)
    if job is None or job.state != JobState.RUNNING or resize.attempt_id not in resizable:
        return f"Job {resize.job_id} has changed and is not resized."
    return ""


def _possible(resizes: Sequence[Resize]) -> dict[Resize, bool]:
    """Those whose attempts are as they were seen: enough tasks stay, or the work is still saved.

    With each whether its job makes checkpoints that Muster keeps.
    """
    found = {
        row[0]: row[1:5]
        for row in run(
            """
            SELECT attempt.id, coalesce(request.min_tasks, request.tasks),
                ARRAY(SELECT rank FROM scheduler_task task WHERE task.attempt_id = attempt.id
                    AND task.state = ANY(%s) ORDER BY rank),
                coalesce(job.saved_at >= attempt.started_at, false), request.checkpoint <> '{}'
            FROM scheduler_attempt attempt JOIN scheduler_job job ON job.number = attempt.job_id
                JOIN scheduler_jobrequest request ON request.number = attempt.job_id
            WHERE attempt.id = ANY(%s::bigint[]) AND request.elastic
            """,
            [_NOT_STOPPING, int_array(one.attempt_id for one in resizes)],
        )
    }
    possible = {}
    for one in resizes:
        minimum, ranks, saved, makes_checkpoints = found.get(one.attempt_id, (0, [], False, False))
        enough_stay = len(set(ranks) - set(one.ranks)) >= minimum > 0
        if enough_stay if one.ranks else saved:
            possible[one] = makes_checkpoints
    return possible


# ------------------------------------------------------------------ write


def write(checked: CheckedResizes, context: ApplyContext) -> None:
    """Ask the last tasks to end of jobs that become smaller, and all of those that start again larger."""
    resizes, rows, at = checked.accepted, checked.rows, context.at
    if not resizes:
        return
    run_together(
        _mark_attempts(resizes, rows, at),
        *_stop_tasks(((one.attempt_id, rank) for one in resizes for rank in one.ranks), at),
        *_restart_larger([one for one in resizes if not one.ranks], at),
        _insert_events([_event(one, checked, context.cycle_id) for one in resizes], at),
    )
    nodes = nodes_of_attempts(one.attempt_id for one in resizes)
    outbox.announce_jobs(
        (rows[one.job_id] for one in resizes), *map(outbox.node_topic, nodes), outbox.CLUSTER_TOPIC
    )


def release_unfetched_tasks(done: Sequence[Resize], *, at: datetime) -> None:
    """Release what tasks held that no agent had fetched, after the plan's transaction.

    That transaction holds jobs and must not wait for nodes. After a crash in between,
    `release.attempts_with_ended_tasks` finds these attempts.
    """
    release_ended_tasks([one.attempt_id for one in done if one.ranks], at=at)


def _mark_attempts(resizes: Sequence[Resize], rows: Mapping[int, JobRow], at: datetime) -> Statement:
    """Note on each attempt when it was resized, for which job and epoch, and how long its tasks have to end."""
    causes = [one.for_job_id or one.job_id for one in resizes]
    return (
        "UPDATE scheduler_attempt a SET resized_at = %s, resized_for = t.job, resized_for_epoch = t.epoch,"
        " grace_seconds = t.grace FROM unnest(%s::bigint[], %s::bigint[], %s::int[], %s::int[])"
        " AS t(id, job, epoch, grace) WHERE a.id = t.id",
        [
            at, int_array(one.attempt_id for one in resizes), int_array(causes),
            int_array(rows[number].epoch for number in causes),
            int_array(one.grace_seconds for one in resizes),
        ],
    )  # fmt: skip


def _stop_tasks(leaving: Iterable[tuple[int, int]], at: datetime) -> list[Statement]:
    """End the tasks (attempt, rank) that no agent has fetched, and ask the others to stop."""
    leaving = list(leaving)
    pairs = [int_array(attempt for attempt, _ in leaving), int_array(rank for _, rank in leaving)]
    these = (
        " FROM unnest(%s::bigint[], %s::bigint[]) AS t(attempt, rank)"
        " WHERE task.attempt_id = t.attempt AND task.rank = t.rank"
    )
    return [
        # Tasks never sent to an agent end without its confirmation.
        (
            "UPDATE scheduler_task task SET state = %s, ended_at = %s, end_text = 'Never started.'"
            f"{these} AND task.state = %s",
            [TaskState.STOPPED.value, at, *pairs, TaskState.ASSIGNED.value],
        ),
        (
            f"UPDATE scheduler_task task SET state = %s{these} AND task.state = ANY(%s)",
            [TaskState.STOPPING.value, *pairs, _NOT_STOPPING],
        ),
    ]


def _restart_larger(larger: Sequence[Resize], at: datetime) -> list[Statement]:
    """Stop jobs that have saved their work, to queue them with more tasks."""
    return [
        (
            "UPDATE scheduler_attempt SET stop_reason = %s, stop_asked_at = %s WHERE id = ANY(%s::bigint[])",
            [StopReason.PREEMPTED.value, at, int_array(one.attempt_id for one in larger)],
        ),
        move_jobs((one.job_id for one in larger), JobState.PREEMPTING),
    ]


# ------------------------------------------------------------------ events


def _insert_events(events: Sequence[dict[str, Any]], at: datetime) -> Statement:
    return (
        """
        INSERT INTO scheduler_jobevent (job_id, at, kind, because, epoch, details)
        SELECT number, %s, kind, because, epoch, details
        FROM json_to_recordset(%s::json) AS e(number bigint, kind text, epoch int, because text, details jsonb)
        """,
        [at, json.dumps(events)],
    )


def _event(resize: Resize, checked: CheckedResizes, cycle_id: int | None) -> dict[str, Any]:
    """What the event says: for whom and by which right, or why the job stops and what it is to get."""
    rows = checked.rows
    details: dict[str, Any] = {
        "tasks": resize.tasks, "before": resize.before, "kind": resize.kind, "cycle": cycle_id,
    }  # fmt: skip
    if resize.ranks:
        project = rows[resize.for_job_id].project
        kind, because = "job.smaller", _why_smaller(resize, project)
        details |= {
            "ranks": list(resize.ranks[:1000]), "for_job": resize.for_job_id, "for_project": project,
        }  # fmt: skip
    else:
        kind = f"job.{JobState.PREEMPTING.value}"
        because = (
            f"stopped to start again with {resize.tasks} tasks instead of {resize.before}: resources are idle and no "
            f"job waits for them; it is requeued and "
            + (
                "continues from its last checkpoint"
                if resize.attempt_id in checked.checkpointed
                else "has to find its saved work: the job was submitted without `checkpoint`"
            )
        )
    return {
        "number": resize.job_id, "kind": kind, "epoch": rows[resize.job_id].epoch, "because": because[:300],
        "details": details,
    }  # fmt: skip


def _why_smaller(resize: Resize, project: str) -> str:
    because = (
        f"releases {len(resize.ranks)} of {resize.before} tasks and continues with {resize.tasks}, for job "
        f"{resize.for_job_id} of project {project}"
    )
    if resize.kind == "reclaim":
        return f"{because}, which reclaims what {resize.line} had borrowed"
    return f"{because}: its priority is {resize.for_priority}, this job's {resize.priority}"
