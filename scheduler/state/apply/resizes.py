"""Changes of size to rows: elastic jobs that give up tasks for others, or stop to start again larger (G4)."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from scheduler import outbox
from scheduler.core.lifecycle import LIVE_TASK, JobState, StopReason, TaskState
from scheduler.core.plan import Resize
from scheduler.state.apply import apply_sql
from scheduler.state.apply.apply_sql import PreemptionRow
from scheduler.state.apply.refusals import VICTIM_CHANGED, Refusal
from scheduler.state.db.sql import int_array, run, run_together
from scheduler.state.settle.settle import release_members

_STAYING: Final = sorted(s.value for s in LIVE_TASK - {TaskState.STOPPING})


class Judged(NamedTuple):
    """Changes of size that hold, with the rows of their jobs, which are locked; and by the job for which they are
    made (0 = for none) those that do not: all of those for one job or none.
    """

    able: list[Resize]
    refused: dict[int, Refusal]
    rows: dict[int, PreemptionRow]

    def without(self, job_ids: Collection[int]) -> Judged:
        """Leave alone also what was to be done for these jobs, as others cannot do their part."""
        return self._replace(able=[one for one in self.able if one.for_job_id not in job_ids])


def judge(resizes: Sequence[Resize]) -> Judged:
    """Lock the jobs and see what still holds; call it inside the plan's transaction.

    A job that has changed since it was seen is left alone, and so is one that would fall below its least size.
    """
    if not resizes:
        return Judged([], {}, {})
    rows, live = apply_sql.lock_for_preemption(
        [r.job_id for r in resizes] + [r.for_job_id for r in resizes if r.for_job_id],
        [r.attempt_id for r in resizes],
    )
    able = _able(resizes)
    refused: dict[int, Refusal] = {}
    for one in resizes:
        waits, job = rows.get(one.for_job_id), rows.get(one.job_id)
        if one.for_job_id and (
            waits is None or waits.state not in apply_sql.IN_LINE or waits.generation != one.for_generation
        ):
            why = f"Job {one.for_job_id} has changed: no job releases tasks for it."
        elif job is None or job.state != JobState.RUNNING or one.attempt_id not in live or one not in able:
            why = f"Job {one.job_id} was to have {one.tasks} tasks and has changed."
        else:
            continue
        refused.setdefault(one.for_job_id, Refusal(one.for_job_id or one.job_id, VICTIM_CHANGED, why))
    return Judged([one for one in resizes if one.for_job_id not in refused], refused, rows)


def write(judged: Judged, *, cycle_id: int | None, at: datetime) -> None:
    """Tell the tasks that are to end, and the jobs that start again larger."""
    if judged.able:
        _write(judged.able, judged.rows, cycle_id=cycle_id, at=at)


def give_back(done: Sequence[Resize], *, at: datetime) -> None:
    """What tasks held that no agent had fetched; after the plan's transaction, which holds jobs by then and must
    not wait for nodes. Killed in between, `settle.shrunk_attempts` finds them."""
    release_members([one.attempt_id for one in done if one.ranks], at=at)


def _able(resizes: Sequence[Resize]) -> Collection[Resize]:
    """Those whose attempts are still as they were seen: enough tasks stay, or the work is still saved."""
    found = {
        row[0]: (row[1], row[2], row[3])
        for row in run(
            """
            SELECT attempt.id, coalesce(job.min_tasks, job.tasks),
                ARRAY(SELECT rank FROM scheduler_task task WHERE task.attempt_id = attempt.id
                    AND task.state = ANY(%s) ORDER BY rank),
                coalesce(job.saved_at >= attempt.started_at, false)
            FROM scheduler_attempt attempt JOIN scheduler_job job ON job.number = attempt.job_id
            WHERE attempt.id = ANY(%s::bigint[]) AND job.elastic
            """,
            [_STAYING, int_array(r.attempt_id for r in resizes)],
        )
    }
    able = []
    for one in resizes:
        least, ranks, saved = found.get(one.attempt_id, (0, [], False))
        if (one.ranks and len(set(ranks) - set(one.ranks)) >= least > 0) or (not one.ranks and saved):
            able.append(one)
    return able


def _write(
    done: Sequence[Resize], rows: Mapping[int, PreemptionRow], *, cycle_id: int | None, at: datetime
) -> None:
    leaving = [(one.attempt_id, rank) for one in done for rank in one.ranks]
    pairs = [int_array(attempt for attempt, _ in leaving), int_array(rank for _, rank in leaving)]
    these = (
        " FROM unnest(%s::bigint[], %s::bigint[]) AS t(attempt, rank)"
        " WHERE task.attempt_id = t.attempt AND task.rank = t.rank"
    )
    larger = [one for one in done if not one.ranks]
    run_together(
        (
            "UPDATE scheduler_attempt a SET resized_at = %s, resized_for = t.job, resized_for_epoch = t.epoch,"
            " grace_seconds = t.grace FROM unnest(%s::bigint[], %s::bigint[], %s::int[], %s::int[])"
            " AS t(id, job, epoch, grace) WHERE a.id = t.id",
            [
                at, int_array(one.attempt_id for one in done),
                int_array(one.for_job_id or one.job_id for one in done),
                int_array(rows[one.for_job_id or one.job_id].epoch for one in done),
                int_array(one.grace_seconds for one in done),
            ],
        ),
        # No agent was given these: they need nobody's word to be over.
        (
            "UPDATE scheduler_task task SET state = %s, ended_at = %s, end_text = 'Never started.'"
            f"{these} AND task.state = %s",
            [TaskState.STOPPED.value, at, *pairs, TaskState.ASSIGNED.value],
        ),
        (
            f"UPDATE scheduler_task task SET state = %s{these} AND task.state = ANY(%s)",
            [TaskState.STOPPING.value, *pairs, _STAYING],
        ),
        (
            "UPDATE scheduler_attempt SET stop_reason = %s, stop_asked_at = %s WHERE id = ANY(%s::bigint[])",
            [StopReason.PREEMPTED.value, at, int_array(one.attempt_id for one in larger)],
        ),
        (
            "UPDATE scheduler_job SET state = %s, generation = generation + 1 WHERE number = ANY(%s::bigint[])",
            [JobState.PREEMPTING.value, int_array(one.job_id for one in larger)],
        ),
        (
            """
            INSERT INTO scheduler_jobevent (job_id, at, kind, because, epoch, details)
            SELECT number, %s, kind, because, epoch, details
            FROM json_to_recordset(%s::json) AS e(number bigint, kind text, epoch int, because text, details jsonb)
            """,
            [at, json.dumps([_event(one, rows, cycle_id) for one in done])],
        ),
    )  # fmt: skip
    told = [rows[one.job_id] for one in done]
    outbox.announce_many(
        [outbox.node_topic(node) for node in apply_sql.nodes_of_attempts(one.attempt_id for one in done)]
        + [outbox.job_topic(row.number) for row in told]
        + [outbox.user_topic(row.user_id) for row in told]
        + [outbox.project_topic(row.project_id) for row in told]
        + [outbox.CLUSTER_TOPIC, outbox.QUEUES_TOPIC]
    )


def _event(one: Resize, rows: Mapping[int, PreemptionRow], cycle_id: int | None) -> dict[str, Any]:
    """The receipt: for whom and by which right, or why it is stopped and what it is to get."""
    details: dict[str, Any] = {"tasks": one.tasks, "before": one.before, "kind": one.kind, "cycle": cycle_id}
    if one.ranks:
        kind, waits = "job.smaller", rows[one.for_job_id]
        count = len(one.ranks)
        because = (
            f"releases {count} of {one.before} tasks and continues with {one.tasks}, for job {one.for_job_id} of "
            f"project {waits.project}"
        )
        if one.kind == "reclaim":
            because += f", which reclaims what {one.line} had borrowed"
        else:
            because += f": its priority is {one.for_priority}, this job's {one.priority}"
        details |= {"ranks": list(one.ranks[:1000]), "for_job": one.for_job_id, "for_project": waits.project}
    else:
        kind = f"job.{JobState.PREEMPTING.value}"
        because = (
            f"stopped to start again with {one.tasks} tasks instead of {one.before}: resources are idle; the job "
            "is requeued and continues from its checkpoint"
        )
    return {
        "number": one.job_id, "kind": kind, "epoch": rows[one.job_id].epoch, "because": because[:300],
        "details": details,
    }  # fmt: skip
