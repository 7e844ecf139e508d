"""Gangs that go on without some of their tasks: which may, and those whose node is gone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Final, NamedTuple

from django.db import transaction

from scheduler.core.lifecycle import LIVE_TASK, TaskState
from scheduler.state.db.query import RowQuery, fetch
from scheduler.state.db.sql import run
from scheduler.state.settle.events import Event, write_events

_LIVE_TASK: Final = sorted(s.value for s in LIVE_TASK)

#: Its job allows that some do not succeed (or they were stopped to make it smaller), and enough are left.
_GOES_ON: Final = """(r.on_task_failure = 'continue' OR (r.elastic AND NOT EXISTS (
        SELECT 1 FROM scheduler_task bad WHERE bad.attempt_id = a.id AND bad.state IN ('failed', 'lost'))))
    AND (SELECT count(*) FROM scheduler_task good JOIN scheduler_node its ON its.id = good.node_id
        WHERE good.attempt_id = a.id
            AND (good.state = 'succeeded' OR (good.state = ANY(%s) AND its.state <> 'down')))
    >= coalesce(r.min_tasks, r.tasks)"""


class LostTask(NamedTuple):
    """A task that was lost with its node."""

    attempt_id: int
    job_number: int
    epoch: int
    rank: int
    node: str


_LOSE_TASKS: Final = RowQuery(
    LostTask,
    {
        "attempt_id": "a.id",
        "job_number": "a.job_id",
        "epoch": "a.epoch",
        "rank": "t.rank",
        "node": "n.name",
    },
    """UPDATE scheduler_task t SET state = %s, ended_at = %s, end_text = 'Its node stopped answering.'
FROM scheduler_attempt a, scheduler_node n
WHERE t.id = ANY(%s) AND t.state = ANY(%s) AND a.id = t.attempt_id AND n.id = t.node_id
RETURNING {columns}""",
)


def going_on(attempt_ids: Sequence[int]) -> list[tuple[int, int, int]]:
    """Of these attempts, some tasks of which did not succeed, those that go on: id, job, epoch."""
    rows = run(
        "SELECT a.id, a.job_id, a.epoch FROM scheduler_attempt a JOIN scheduler_jobrequest r ON r.number = a.job_id"
        f" WHERE a.id = ANY(%s) AND a.stop_asked_at IS NULL AND {_GOES_ON} ORDER BY a.id",
        [list(attempt_ids), _LIVE_TASK],
    )
    return [(row[0], row[1], row[2]) for row in rows]


@transaction.atomic
def lose_with_down_nodes(*, at: datetime) -> list[int]:
    """Declare the tasks on down nodes lost whose attempts go on without them; answers those attempts."""
    where = (
        "n.state = 'down' AND EXISTS (SELECT 1 FROM scheduler_nodeheartbeat h WHERE h.node_id = n.id)"
        " AND t.released_at IS NULL AND t.is_live AND a.is_live"
        f" AND a.stop_asked_at IS NULL AND r.on_task_failure = 'continue' AND {_GOES_ON}"
    )
    # The jobs first, as a report of an agent does.
    found = run(
        "SELECT t.id FROM scheduler_job j JOIN scheduler_jobrequest r ON r.number = j.number"
        " JOIN scheduler_attempt a ON a.job_id = j.number"
        " JOIN scheduler_task t ON t.attempt_id = a.id JOIN scheduler_node n ON n.id = t.node_id"
        f" WHERE {where} ORDER BY j.number, t.id FOR NO KEY UPDATE OF j",
        [_LIVE_TASK],
    )
    if not found:
        return []
    left = fetch(
        _LOSE_TASKS,
        [TaskState.LOST.value, at, [row[0] for row in found], _LIVE_TASK],
    )
    write_events(
        [
            Event(
                task.job_number,
                task.epoch,
                "attempt.smaller",
                f"task {task.rank} was lost with node {task.node}; the other tasks are enough and continue",
                json.dumps({"rank": task.rank}),
            )
            for task in left
        ],
        at=at,
    )
    return sorted({task.attempt_id for task in left})
