"""What running jobs have used that the ledger does not say yet: it charges them at their end, and at midnight."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Final, NamedTuple

from scheduler.state.db.query import RowQuery, fetch
from scheduler.state.db.sql import int_array


class Running(NamedTuple):
    """Of one person in one project, on GPUs of one model: amounts times seconds, and how many jobs."""

    project_id: int
    user_id: int
    gpu_model: str
    gpu_milli_seconds: int
    cpu_milli_seconds: int
    jobs: int


#: From the last charge of an attempt, or since it holds what it holds; of the CPUs not while it was suspended.
_RUNNING: Final = RowQuery(
    Running,
    {
        "project_id": "job.project_id",
        "user_id": "job.user_id",
        "gpu_model": "held_device.model",
        "gpu_milli_seconds": "trunc(sum(held.gpu_millis * extract(epoch FROM rule.at - since.moment)))::bigint",
        "cpu_milli_seconds": """trunc(sum((held.cpu_millis + held.suspended_cpu_millis)
        * (extract(epoch FROM rule.at - since.moment) - coalesce((
            SELECT sum(extract(epoch FROM
                coalesce(still.ends_at, rule.at) - greatest(still.starts_at, since.moment)))
            FROM scheduler_suspension still WHERE still.attempt_id = held.attempt_id
                AND still.starts_at IS NOT NULL AND coalesce(still.ends_at, rule.at) > since.moment
        ), 0))))::bigint""",
        "jobs": "count(DISTINCT held.attempt_id)",
    },
    """SELECT {columns}
FROM (SELECT %s::timestamptz AS at, %s::bigint[] AS projects, %s::bigint AS person) rule
CROSS JOIN scheduler_allocation held
    JOIN scheduler_attempt attempt ON attempt.id = held.attempt_id
    JOIN scheduler_job job ON job.number = attempt.job_id
CROSS JOIN LATERAL (SELECT greatest(held.held_at, (
    SELECT max(entry.ends_at) FROM quotas_ledgerentry entry
    WHERE entry.job_number = job.number AND entry.attempt_id = attempt.id AND entry.kind = 'charge'
)) AS moment) since
CROSS JOIN LATERAL (SELECT coalesce((
    SELECT device.model FROM scheduler_device device WHERE device.id = held.device_ids[1]
), '') AS model) held_device
WHERE held.released_at IS NULL AND since.moment < rule.at
    AND (rule.projects IS NULL OR job.project_id = ANY(rule.projects))
    AND (rule.person IS NULL OR job.user_id = rule.person)
GROUP BY job.project_id, job.user_id, held_device.model""",
)


def running_use(
    *, at: datetime, project_ids: Iterable[int] | None = None, user_id: int | None = None
) -> list[Running]:
    """Of these projects (None: of all), and of this person if one is named."""
    return fetch(_RUNNING, [at, None if project_ids is None else int_array(project_ids), user_id])
