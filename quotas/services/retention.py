"""What of quotas grows old: slices of use and lines of the ledger are added up, notices and findings go."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from infra.retention import Rule, delete_from
from quotas.core.decay import SLICE_SECONDS
from quotas.services import rollup

#: Old slices become one, of the time before: only the mode "none" still asks for them, and not for how old they are.
_ROLL_UP: Final = """
WITH old AS (
    DELETE FROM quotas_shareusage WHERE id IN ({which})
    RETURNING project_id, user_id, gpu_seconds, cpu_seconds, memory_gib_seconds
), added AS (
    INSERT INTO quotas_shareusage AS kept (project_id, user_id, starts_at, gpu_seconds, cpu_seconds,
        memory_gib_seconds, gpu_decayed, cpu_decayed, memory_decayed)
    SELECT project_id, user_id, 'epoch'::timestamptz, sum(gpu_seconds), sum(cpu_seconds),
        sum(memory_gib_seconds), 0, 0, 0
    FROM old GROUP BY project_id, user_id
    ON CONFLICT (project_id, user_id, starts_at) DO UPDATE SET
        gpu_seconds = kept.gpu_seconds + excluded.gpu_seconds,
        cpu_seconds = kept.cpu_seconds + excluded.cpu_seconds,
        memory_gib_seconds = kept.memory_gib_seconds + excluded.memory_gib_seconds
)
SELECT count(*) FROM old
"""


def rules(*, window_seconds: int, running: str) -> tuple[Rule, ...]:
    """`window_seconds` is how far fair share looks back: no slice of it is added up.

    `running` is a query of the attempts that run: none of their lines in the ledger is.
    """
    slices = replace(_SLICES, more={"window": window_seconds + SLICE_SECONDS})
    return (slices, rollup.rule(running=running), *_RULES)


_SLICES: Final = Rule(
    "share_slices",
    "Use of fair share in slices of six hours; older slices are summed",
    "SELECT id FROM quotas_shareusage"
    " WHERE starts_at < least(%(before)s, %(now)s - %(window)s * interval '1 second')"
    " AND starts_at > 'epoch' ORDER BY id LIMIT %(batch)s",
    setting="MUSTER_KEEP_SHARES_DAYS",
    at_least_days=35,
    why="fair share counts usage of that time",
    statement=_ROLL_UP,
)
_RULES: Final = (
    Rule(
        "alerts",
        "Alerts about limits and budgets that ended, with their notices",
        "SELECT id FROM quotas_alert WHERE ended_at < %(before)s ORDER BY id LIMIT %(batch)s",
        setting="MUSTER_KEEP_ALERTS_DAYS",
        statement="""
        WITH doomed AS MATERIALIZED ({which}),
        untied AS (DELETE FROM quotas_notice_alerts WHERE alert_id IN (SELECT id FROM doomed)),
        gone AS (DELETE FROM quotas_alert WHERE id IN (SELECT id FROM doomed) RETURNING 1)
        SELECT count(*) FROM gone
        """,
    ),
    Rule(
        "notices",
        "Notices whose subject no longer exists",
        "SELECT id FROM quotas_notice notice WHERE created_at < %(before)s"
        " AND NOT EXISTS (SELECT FROM quotas_notice_alerts tied WHERE tied.notice_id = notice.id)"
        " ORDER BY id LIMIT %(batch)s",
        setting="MUSTER_KEEP_ALERTS_DAYS",
        statement=delete_from("quotas_notice"),
    ),
    Rule(
        "drift",
        "Drift that was found and repaired",
        "SELECT id FROM quotas_driftfinding WHERE repaired_at < %(before)s ORDER BY id LIMIT %(batch)s",
        setting="MUSTER_KEEP_DRIFT_DAYS",
        statement=delete_from("quotas_driftfinding"),
    ),
    Rule(
        "provider_allocations",
        "Attempts that a quota provider refused, or has released",
        "SELECT attempt_id FROM quotas_providerallocation WHERE ended_at < %(before)s AND next_try_at IS NULL"
        " ORDER BY attempt_id LIMIT %(batch)s",
        setting="MUSTER_KEEP_ALERTS_DAYS",
        statement=delete_from("quotas_providerallocation", "attempt_id"),
    ),
    Rule(
        "refused_starts",
        "Refusals of quota providers that no longer hold",
        "SELECT job_number FROM quotas_refusedstart WHERE until < %(before)s LIMIT %(batch)s",
        hours=24,
        statement=delete_from("quotas_refusedstart", "job_number"),
    ),
)
