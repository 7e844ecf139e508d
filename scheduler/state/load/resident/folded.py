"""Jobs that cannot be considered, folded: of those that wait for one reason only one is planned.

Nothing is asked about a job whose queue is paused, or whose time has not come: it takes no place, no quota and no
turn. Its reason is that of every other job of its kind (`kinds`) in the same queue. So one job of each kind goes
into the snapshot, and the reason that the plan gives it is the reason of all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from scheduler.core.columns import Bools, Ints, find_rows
from scheduler.core.plan import Plan, WaitingColumns
from scheduler.core.snapshot.request_classes import RequestClass
from scheduler.state.load.job_rows import Moment, awaited_jobs
from scheduler.state.load.resident.jobs import ResidentJobs
from scheduler.state.load.resident.kinds import KINDS


@dataclass(frozen=True, slots=True)
class Folded:
    """Which jobs are planned, and for whom."""

    #: All jobs by rising number, and the mark of the reason that each shows now.
    ids: Ints
    marks: Ints
    #: Rows in `ResidentJobs` of the jobs to plan.
    planned: Ints
    #: The jobs that are not planned, and of each the one that is planned for it.
    folded_ids: Ints
    planned_for: Ints

    def unfolded(self, plan: Plan) -> Plan:
        """The plan with every job that waits, those that were not planned with the reason of the one that was."""
        if not len(self.folded_ids):
            return plan
        waiting = plan.waiting
        rows = find_rows(waiting.job_id, self.planned_for)
        if len(rows) and int(rows.min()) < 0:
            raise KeyError(f"job {self.planned_for.item(int(rows.argmin()))} was to wait, and does not")
        ids = np.concatenate([waiting.job_id, self.folded_ids])
        order = np.argsort(ids, kind="stable")
        return replace(
            plan,
            waiting=WaitingColumns(
                job_id=ids[order],
                decision=np.concatenate([waiting.decision, waiting.decision[rows]])[order],
                ahead_jobs=np.concatenate([waiting.ahead_jobs, waiting.ahead_jobs[rows]])[order],
                ahead_gpus=np.concatenate([waiting.ahead_gpus, waiting.ahead_gpus[rows]])[order],
            ),
        )


def fold(
    jobs: ResidentJobs,
    classes: Sequence[RequestClass],
    moment: Moment,
    *,
    paused_queues: Sequence[int],
    early_too: bool = True,
    counts_gpu_requests: bool = False,
) -> Folded:
    """Leave one job of each kind where a paused queue, or a moment that has not come, keeps all of them waiting.

    A job that others were stopped for, that gathers nodes, that has been promised a start or that has terms about
    other jobs is planned by itself. Without `early_too` so is one whose moment has not come: where queues have
    policies of their own, it has a place among the jobs of its queue, which others would get. Where placement
    `counts_gpu_requests`, so is one that asks for GPUs.
    """
    rows = jobs.rows()
    ids = jobs.column("id")[rows]
    eligible = np.maximum(jobs.column("eligible_ms")[rows], jobs.column("begin_ms")[rows])
    early = eligible > moment.now_ms
    out = early & early_too
    if paused_queues:
        out |= np.isin(jobs.column("queue_id")[rows], paused_queues)
    out &= ~_has_own_part(jobs, rows, classes, moment)
    if counts_gpu_requests:
        out &= ~_of_classes(jobs, rows, [bool(request.per_task.gpus) for request in classes])
    where = np.flatnonzero(out)
    first = _first_of_its_kind(jobs, rows[where], np.where(early, eligible, 0)[where])
    mine = first == np.arange(len(where))
    return Folded(
        ids=ids,
        marks=jobs.column("reason_mark")[rows],
        planned=np.delete(rows, where[~mine]),
        folded_ids=ids[where[~mine]],
        planned_for=ids[where[first[~mine]]],
    )


def _has_own_part(jobs: ResidentJobs, rows: Ints, classes: Sequence[RequestClass], moment: Moment) -> Bools:
    """Whether a plan says or does something about this job that it does about no other of its kind."""
    own: Bools = (jobs.column("promised_ms")[rows] > 0) | (jobs.column("assembling_until_ms")[rows] > 0)
    if moment.awaited:
        own |= awaited_jobs({name: jobs.column(name)[rows] for name in ("id", "epoch")}, moment)
    return own | _of_classes(jobs, rows, [bool(request.job_terms) for request in classes])


def _of_classes(jobs: ResidentJobs, rows: Ints, chosen: Sequence[bool]) -> Bools:
    """Which of these jobs are of a chosen class."""
    of_class = np.array(chosen, dtype=np.bool_)
    if not of_class.any():
        return np.zeros(len(rows), dtype=np.bool_)
    found: Bools = of_class[jobs.column("class_index")[rows]]
    return found


def _first_of_its_kind(jobs: ResidentJobs, rows: Ints, eligible_ms: Ints) -> Ints:
    """Of each row the place of the first with the same kind, moment and cause of its delay."""
    kind = jobs.column(KINDS)[rows]
    # The end of a back-off and the beginning that a person asked for are two reasons.
    backoff = jobs.column("eligible_ms")[rows] > jobs.column("begin_ms")[rows]
    late = np.flatnonzero(eligible_ms > 0)
    if len(late):
        table = np.column_stack([kind[late], eligible_ms[late], backoff[late]])
        numbers = np.unique(table, axis=0, return_inverse=True)[1].reshape(-1)
        kind[late] = int(kind.max()) + 1 + numbers
    places = np.arange(len(rows))
    first = np.zeros(int(kind.max(initial=-1)) + 1, dtype=np.int64)
    first[kind[::-1]] = places[::-1]
    return first[kind]
