"""Statements that several kinds of decisions share."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from scheduler.core.lifecycle import JobState
from scheduler.state.db.sql import Statement, int_array, run

#: States of the jobs that the planner considers: queued ones, and gangs that gather nodes.
PLANNED_STATES: Final = (JobState.QUEUED.value, JobState.RESERVED.value)


class JobRow(NamedTuple):
    """A locked job: one that is disturbed, or one for which others are."""

    number: int
    state: str
    generation: int
    epoch: int
    user_id: int
    project_id: int
    project: str

    def is_pending_as_planned(self, generation: int) -> bool:
        """Whether this pending job is as the planner saw it."""
        return self.state in PLANNED_STATES and self.generation == generation


def lock_jobs(numbers: Iterable[int], attempts: Iterable[int]) -> tuple[dict[int, JobRow], set[int]]:
    """Lock jobs; answers rows by number, and which of their attempts live and are not yet asked to stop.

    A job that another transaction has locked is not in the answer: it may be ending by itself.
    """
    rows = run(
        """
        SELECT job.number, job.state, job.generation, job.epoch, job.user_id, job.project_id, project.slug
        FROM scheduler_job job JOIN accounts_project project ON project.id = job.project_id
        WHERE job.number = ANY(%s::bigint[]) ORDER BY job.number FOR NO KEY UPDATE OF job SKIP LOCKED
        """,
        [int_array(sorted(set(numbers)))],
    )
    live = run(
        """
        SELECT id FROM scheduler_attempt
        WHERE id = ANY(%s::bigint[]) AND job_id = ANY(%s::bigint[]) AND is_live
            AND stop_asked_at IS NULL
        """,
        [int_array(sorted(attempts)), int_array(row[0] for row in rows)],
    )
    return {row[0]: JobRow(*row) for row in rows}, {row[0] for row in live}


def move_jobs(numbers: Iterable[int], to: JobState) -> Statement:
    """Set the state of jobs whose rows are locked and checked."""
    return (
        "UPDATE scheduler_job SET state = %s, generation = generation + 1 WHERE number = ANY(%s::bigint[])",
        [to.value, int_array(numbers)],
    )


def nodes_of_attempts(attempts: Iterable[int]) -> list[int]:
    """The nodes on which these attempts hold resources."""
    rows = run(
        "SELECT DISTINCT node_id FROM scheduler_allocation"
        " WHERE attempt_id = ANY(%s::bigint[]) AND released_at IS NULL ORDER BY 1",
        [int_array(attempts)],
    )
    return [row[0] for row in rows]


def insert_events_of_kind(kind: str, events: Sequence[dict[str, Any]], *, at: datetime) -> Statement:
    """Events of one kind, each with `number`, `epoch`, `because` and `details`."""
    return (
        """
        INSERT INTO scheduler_jobevent (job_id, at, kind, because, epoch, details)
        SELECT number, %s, %s, because, epoch, details
        FROM json_to_recordset(%s::json) AS e(number bigint, epoch int, because text, details jsonb)
        """,
        [at, kind, json.dumps(events)],
    )
