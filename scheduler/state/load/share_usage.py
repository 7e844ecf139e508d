"""What was held and is, for fair share: one query in closed form, and the rows behind it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from django.db import connection

from quotas.core.decay import Decay
from quotas.core.share_tree import Pair, Use
from quotas.selectors.fair_share_source import Held
from scheduler.state.db.sql import run

#: The integral of 2^(-age / half-life) over the time in which something was held, from the window's edge on;
#: with a half-life of 0 that time itself.
_USED: Final = """
SELECT project_id, user_id, sum(gpu_millis / 1000.0 * counts), sum(cpu_millis / 1000.0 * counts),
    sum(memory_mib / 1024.0 * counts)
FROM (
    SELECT job.project_id, job.user_id, part.gpu_millis, part.cpu_millis, part.memory_mib,
        CASE WHEN rule.half_life > 0 THEN rule.half_life / ln(2::float8) * (
            power(2, -(rule.at - part.ends) / rule.half_life)
            - power(2, -(rule.at - part.begins) / rule.half_life)
        ) ELSE part.ends - part.begins END AS counts
    FROM (SELECT %s::float8 AS at, %s::float8 AS edge, %s::float8 AS half_life, %s::bigint[] AS projects) rule
    CROSS JOIN scheduler_allocation held
    JOIN scheduler_attempt attempt ON attempt.id = held.attempt_id
    JOIN scheduler_job job ON job.number = attempt.job_id
    CROSS JOIN LATERAL (SELECT
        held.gpu_millis, held.cpu_millis + held.suspended_cpu_millis AS cpu_millis, held.memory_mib,
        greatest(extract(epoch FROM held.held_at)::float8, rule.edge) AS begins,
        least(coalesce(extract(epoch FROM held.released_at)::float8, rule.at), rule.at) AS ends
        -- Of the CPUs not while it stood still.
        UNION ALL SELECT 0, -(held.cpu_millis + held.suspended_cpu_millis), 0,
            greatest(extract(epoch FROM still.starts_at)::float8, rule.edge),
            least(extract(epoch FROM coalesce(still.ends_at, held.released_at))::float8,
                extract(epoch FROM held.released_at)::float8, rule.at)
        FROM scheduler_suspension still WHERE still.attempt_id = held.attempt_id AND still.starts_at IS NOT NULL
    ) part
    WHERE {which} AND part.ends > part.begins AND (rule.projects IS NULL OR job.project_id = ANY(rule.projects))
) counted
GROUP BY project_id, user_id
"""
_RUNNING: Final = "held.released_at IS NULL"
_ALL: Final = "(held.released_at IS NULL OR extract(epoch FROM held.released_at)::float8 > rule.edge)"

_ENDED: Final = """
SELECT job.project_id, job.user_id, extract(epoch FROM held.held_at)::float8,
    extract(epoch FROM held.released_at)::float8, held.gpu_millis / 1000.0::float8,
    (held.cpu_millis + held.suspended_cpu_millis) / 1000.0::float8, held.memory_mib / 1024.0::float8
FROM scheduler_allocation held
    JOIN scheduler_attempt attempt ON attempt.id = held.attempt_id
    JOIN scheduler_job job ON job.number = attempt.job_id
WHERE held.released_at > to_timestamp(%s)
UNION ALL
SELECT job.project_id, job.user_id, extract(epoch FROM still.starts_at)::float8,
    extract(epoch FROM least(still.ends_at, held.released_at))::float8, 0,
    -(held.cpu_millis + held.suspended_cpu_millis) / 1000.0::float8, 0
FROM scheduler_suspension still
    JOIN scheduler_allocation held ON held.attempt_id = still.attempt_id
    JOIN scheduler_attempt attempt ON attempt.id = still.attempt_id
    JOIN scheduler_job job ON job.number = attempt.job_id
WHERE held.released_at > to_timestamp(%s) AND still.starts_at < held.released_at
"""

_CAPACITY: Final = """
SELECT (SELECT coalesce(sum(share_millis), 0) / 1000.0 FROM scheduler_device WHERE kind = 'gpu' AND NOT gone),
    coalesce(sum(cpu_millis), 0) / 1000.0, coalesce(sum(memory_mib), 0) / 1024.0
FROM scheduler_node
"""


class HeldShares:
    """A `quotas.selectors.fair_share_source.ShareSource` over allocations."""

    def used(
        self, *, decay: Decay, at: float, running_only: bool, project_ids: Iterable[int] | None = None
    ) -> Mapping[Pair, Use]:
        half_life = float(decay.half_life_seconds) if decay.mode == "exponential" else 0.0
        rows = run(
            _USED.format(which=_RUNNING if running_only else _ALL),
            [at, decay.edge(at), half_life, None if project_ids is None else list(project_ids)],
        )
        return {(row[0], row[1]): (float(row[2]), float(row[3]), float(row[4])) for row in rows}

    def ended_since(self, since: float) -> Iterator[Held]:
        """Read as they come: a busy site has many."""
        with connection.cursor() as cursor:
            cursor.execute(_ENDED, [since, since])
            while rows := cursor.fetchmany(5000):
                for row in rows:
                    yield Held(row[0], row[1], *(float(value) for value in row[2:]))

    def capacity(self) -> Mapping[str, float]:
        gpus, cores, gib = run(_CAPACITY)[0]
        return {"gpu": float(gpus), "cpu": float(cores), "memory": float(gib)}
