"""What was held and is, for fair share: one query in closed form, and the rows behind it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from django.db import connection

from quotas.core.decay import Decay
from quotas.core.share_tree import Pair, Use
from quotas.selectors.fair_share_source import Held, Waiting
from scheduler.core.lifecycle import JobState
from scheduler.state.db.fragments import UNFINISHED
from scheduler.state.db.query import RowQuery, fetch


class UsedRow(NamedTuple):
    """What a person used in a project, in unit seconds that count less the older they are."""

    project_id: int
    user_id: int
    gpu_seconds: float
    core_seconds: float
    gib_seconds: float


#: The integral of 2^(-age / half-life) over the time in which something was held, from the window's edge on;
#: with a half-life of 0 that time itself. What is 300 half-lives old is nothing: the database would not go on to 1,075.
_USED: Final = RowQuery(
    UsedRow,
    {
        "project_id": "counted.project_id",
        "user_id": "counted.user_id",
        "gpu_seconds": "sum(counted.gpu_millis / 1000.0 * counted.weight)::float8",
        "core_seconds": "sum(counted.cpu_millis / 1000.0 * counted.weight)::float8",
        "gib_seconds": "sum(counted.memory_mib / 1024.0 * counted.weight)::float8",
    },
    """SELECT {columns}
FROM (
    SELECT job.project_id, job.user_id, part.gpu_millis, part.cpu_millis, part.memory_mib,
        CASE WHEN rule.half_life > 0 THEN rule.half_life / ln(2::float8) * (
            power(2, greatest(-(rule.at - part.ends) / rule.half_life, -300))
            - power(2, greatest(-(rule.at - part.begins) / rule.half_life, -300))
        ) ELSE part.ends - part.begins END AS weight
    FROM (SELECT %s::float8 AS at, %s::float8 AS edge, %s::float8 AS half_life, %s::bigint[] AS projects) rule
    CROSS JOIN scheduler_allocation held
    JOIN scheduler_attempt attempt ON attempt.id = held.attempt_id
    JOIN scheduler_job job ON job.number = attempt.job_id
    CROSS JOIN LATERAL (SELECT
        held.gpu_millis, held.cpu_millis + held.suspended_cpu_millis AS cpu_millis, held.memory_mib,
        greatest(extract(epoch FROM held.held_at)::float8, rule.edge) AS begins,
        least(coalesce(extract(epoch FROM held.released_at)::float8, rule.at), rule.at) AS ends
        -- Of the CPUs not while it was suspended.
        UNION ALL SELECT 0, -(held.cpu_millis + held.suspended_cpu_millis), 0,
            greatest(extract(epoch FROM still.starts_at)::float8, rule.edge),
            least(extract(epoch FROM coalesce(still.ends_at, held.released_at))::float8,
                extract(epoch FROM held.released_at)::float8, rule.at)
        FROM scheduler_suspension still WHERE still.attempt_id = held.attempt_id AND still.starts_at IS NOT NULL
    ) part
    WHERE {which} AND part.ends > part.begins AND (rule.projects IS NULL OR job.project_id = ANY(rule.projects))
) counted
GROUP BY counted.project_id, counted.user_id""",
)
_RUNNING: Final = "held.released_at IS NULL"
_ALL: Final = "(held.released_at IS NULL OR extract(epoch FROM held.released_at)::float8 > rule.edge)"


#: With the time in which CPUs were released by a suspension taken off again.
_ENDED: Final = RowQuery(
    Held,
    {
        "project_id": "span.project_id",
        "user_id": "span.user_id",
        "start": "extract(epoch FROM span.starts_at)::float8",
        "end": "extract(epoch FROM span.ends_at)::float8",
        "gpus": "span.gpu_millis / 1000.0::float8",
        "cores": "span.cpu_millis / 1000.0::float8",
        "memory_gib": "span.memory_mib / 1024.0::float8",
    },
    """SELECT {columns}
FROM (
    SELECT job.project_id, job.user_id, held.held_at AS starts_at, held.released_at AS ends_at, held.gpu_millis,
        held.cpu_millis + held.suspended_cpu_millis AS cpu_millis, held.memory_mib
    FROM scheduler_allocation held
        JOIN scheduler_attempt attempt ON attempt.id = held.attempt_id
        JOIN scheduler_job job ON job.number = attempt.job_id
    WHERE held.released_at > to_timestamp(%s)
    UNION ALL
    SELECT job.project_id, job.user_id, still.starts_at, least(still.ends_at, held.released_at), 0,
        -(held.cpu_millis + held.suspended_cpu_millis), 0
    FROM scheduler_suspension still
        JOIN scheduler_allocation held ON held.attempt_id = still.attempt_id
        JOIN scheduler_attempt attempt ON attempt.id = still.attempt_id
        JOIN scheduler_job job ON job.number = attempt.job_id
    WHERE held.released_at > to_timestamp(%s) AND still.starts_at < held.released_at
) span""",
)


class CapacityRow(NamedTuple):
    """What the site has."""

    gpus: float
    cores: float
    gib: float


_CAPACITY: Final = RowQuery(
    CapacityRow,
    {
        "gpus": """((SELECT coalesce(sum(share_millis), 0) FROM scheduler_device
        WHERE kind = 'gpu' AND NOT gone) / 1000.0)::float8""",
        "cores": "(coalesce(sum(node.cpu_millis), 0) / 1000.0)::float8",
        "gib": "(coalesce(sum(node.memory_mib), 0) / 1024.0)::float8",
    },
    "SELECT {columns} FROM scheduler_node node",
)


_WAITING: Final = RowQuery(
    Waiting,
    {
        "number": "job.number",
        "project_id": "job.project_id",
        "user_id": "job.user_id",
        "person": "person.username",
        "submitted": "extract(epoch FROM request.created_at)::float8",
    },
    f"""SELECT {{columns}} FROM scheduler_job job JOIN accounts_user person ON person.id = job.user_id
    JOIN scheduler_jobrequest request ON request.number = job.number
WHERE {UNFINISHED} AND job.state = '{JobState.QUEUED.value}' ORDER BY job.number LIMIT %s""",
)


class HeldShares:
    """A `quotas.selectors.fair_share_source.ShareSource` over allocations."""

    def used(
        self, *, decay: Decay, at: float, running_only: bool, project_ids: Iterable[int] | None = None
    ) -> Mapping[Pair, Use]:
        half_life = float(decay.half_life_seconds) if decay.mode == "exponential" else 0.0
        rows = fetch(
            _USED,
            [at, decay.edge(at), half_life, None if project_ids is None else list(project_ids)],
            which=_RUNNING if running_only else _ALL,
        )
        return {
            (row.project_id, row.user_id): (row.gpu_seconds, row.core_seconds, row.gib_seconds)
            for row in rows
        }

    def ended_since(self, since: float) -> Iterator[Held]:
        """Read as they come: a busy site has many."""
        with connection.cursor() as cursor:
            cursor.execute(_ENDED.sql(), [since, since])
            while rows := cursor.fetchmany(5000):
                yield from _ENDED.read(rows)

    def capacity(self) -> Mapping[str, float]:
        (site,) = fetch(_CAPACITY)
        return {"gpu": site.gpus, "cpu": site.cores, "memory": site.gib}

    def waiting(self, most: int) -> Sequence[Waiting]:
        """The jobs that are queued, of more than `most` the first by number."""
        return fetch(_WAITING, [most])
