"""Retention: which old rows are deleted: one list of rules over all tables, carried out once an hour.

Two rules lose nothing: old lines of the ledger are summed by day, so that every figure stays the same, and where
old rows of the audit trail are deleted, a signed checkpoint proves the chain from there on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from typing import Final

import structlog
from django.conf import settings
from django.db import connection
from django.db.models import Exists, OuterRef
from django.utils import timezone
from django.utils.module_loading import import_string

import infra.retention
import quotas.services.retention
from accounts.services import audit_prune
from infra.db.advisory_lock import try_lock
from infra.retention import Rule, delete_from
from quotas.selectors.fair_share_source import share_rules
from scheduler.core.lifecycle import TERMINAL
from scheduler.models import Job, JobDependency, RetentionRun, ShadowRun
from scheduler.state.db.fragments import live_attempts

log = structlog.get_logger(__name__)

#: A client that repeats its request after a day means a new one.
KEEP_IDEMPOTENCY_KEYS_HOURS: Final = 24
#: What a draft was found to do is of interest until somebody has decided about it.
KEEP_SHADOW_RUNS_HOURS: Final = 90 * 24
#: Recordings of one cluster that keep their bytes, the newest ones, and how large they may be together.
KEEP_RECORDINGS: Final = 5000
KEEP_RECORDINGS_BYTES: Final = 512 * 1024 * 1024
#: Jobs of one transaction: each may have hundreds of rows, and from their attempts to the commit nobody else adds rows
#: that refer to others (infra.db.references). Measured with 200: 103 ms; with 50: 26 ms, for half as much work again.
JOBS_AT_ONCE: Final = 50
#: One run at a time, of all processes.
RUN_LOCK: Final = 0x72657465

_RUNNING_ATTEMPTS: Final = "SELECT attempt.id FROM " + live_attempts()  # noqa: S608  a constant of ours
_TERMINAL: Final = sorted(state.value for state in TERMINAL)

CYCLES: Final = Rule(
    "cycles",
    "Planning cycles; the attempts that they started stay",
    # Those on whose snapshot that of a newer one is a delta go with the last of these.
    """
    SELECT id FROM scheduler_cycle WHERE started_at < %(before)s AND id NOT IN (
        SELECT base_id FROM scheduler_cycle WHERE started_at >= %(before)s AND base_id IS NOT NULL
    ) ORDER BY id DESC LIMIT %(batch)s
    """,
    setting="MUSTER_KEEP_CYCLES_DAYS",
    statement="""
    WITH gone AS (DELETE FROM scheduler_cycle WHERE id IN ({which}) RETURNING 1) SELECT count(*) FROM gone
    """,
)
IDEMPOTENCY_KEYS: Final = Rule(
    "idempotency_keys",
    "Stored answers to repeated requests",
    "SELECT id FROM scheduler_idempotencykey WHERE created_at < %(before)s LIMIT %(batch)s",
    hours=KEEP_IDEMPOTENCY_KEYS_HOURS,
    statement=delete_from("scheduler_idempotencykey"),
)
LOG_CHUNKS: Final = Rule(
    "log_chunks",
    "Output of attempts that have ended",
    """
    SELECT chunk.id FROM scheduler_logchunk chunk
        JOIN scheduler_task task ON task.id = chunk.task_id
        JOIN scheduler_attempt attempt ON attempt.id = task.attempt_id
    WHERE chunk.received_at < %(before)s AND attempt.ended_at < %(before)s AND NOT attempt.is_live
    LIMIT %(batch)s
    """,
    setting="MUSTER_KEEP_LOGS_DAYS",
    statement=delete_from("scheduler_logchunk"),
)
EVENTS: Final = Rule(
    "events",
    "Events of jobs that have ended",
    """
    SELECT event.id FROM scheduler_jobevent event JOIN scheduler_job job ON job.number = event.job_id
    WHERE event.at < %(before)s AND job.state = ANY(%(terminal)s) AND job.completed_at < %(before)s
    LIMIT %(batch)s
    """,
    setting="MUSTER_KEEP_EVENTS_DAYS",
    statement=delete_from("scheduler_jobevent"),
    more={"terminal": _TERMINAL},
)


def _remove_jobs(numbers: list[int]) -> int:
    """Delete jobs with all their rows; under lock, for a job may be requeued meanwhile."""
    waiting = JobDependency.objects.filter(on=OuterRef("pk")).exclude(job__state__in=_TERMINAL)
    doomed = list(
        Job.objects.select_for_update(skip_locked=True, of=("self",))
        .filter(number__in=numbers, state__in=_TERMINAL)
        .exclude(Exists(waiting))
        .order_by("number")
        .values_list("number", flat=True)
    )
    Job.objects.filter(number__in=doomed).delete()
    return len(doomed)


JOBS: Final = Rule(
    "jobs",
    "Jobs that have ended, with their attempts, tasks, events and output",
    """
    SELECT job.number FROM scheduler_job job
    WHERE job.outcome IS NOT NULL AND job.completed_at < %(before)s
        AND NOT EXISTS (SELECT FROM scheduler_jobdependency tie
            JOIN scheduler_job waiting ON waiting.number = tie.job_id
            WHERE tie.on_id = job.number AND NOT waiting.state = ANY(%(terminal)s))
        AND NOT EXISTS (SELECT FROM scheduler_attempt attempt
            WHERE attempt.job_id = job.number AND attempt.is_live)
        -- What has bytes in the storage goes first (services.checkpoints.removal).
        AND NOT EXISTS (SELECT FROM scheduler_checkpoint saved
            WHERE saved.job_id = job.number AND saved.state IN ('storing', 'complete', 'leaving'))
    ORDER BY job.number LIMIT %(batch)s
    """,
    setting="MUSTER_KEEP_JOBS_DAYS",
    at_least_days=36,
    why="fair share and the ledger are checked against them",
    remove=_remove_jobs,
    batch=JOBS_AT_ONCE,
    more={"terminal": _TERMINAL},
)


def _remove_names(ids: list[int]) -> int:
    """Delete names that no request has. A transaction that adds requests waits: it adds no name that it finds."""
    with connection.cursor() as cursor:
        cursor.execute("LOCK TABLE scheduler_jobname IN SHARE ROW EXCLUSIVE MODE")
        cursor.execute(
            f"DELETE FROM scheduler_jobname name WHERE name.id = ANY(%s) AND {_NOBODYS}",  # noqa: S608
            [ids],
        )
        return int(cursor.rowcount)


_NOBODYS: Final = """NOT EXISTS (SELECT FROM scheduler_jobrequest request
    WHERE hashtext(request.name) = hashtext(name.name) AND request.name = name.name)"""
NAMES: Final = Rule(
    "job_names",
    "Names that no job has any more",
    f"SELECT name.id FROM scheduler_jobname name WHERE {_NOBODYS} LIMIT %(batch)s",  # noqa: S608
    remove=_remove_names,
)
FORECASTS: Final = Rule(
    "forecast_outcomes",
    "Outcomes of start forecasts",
    "SELECT id FROM scheduler_forecastoutcome WHERE started_at < %(before)s ORDER BY id LIMIT %(batch)s",
    setting="MUSTER_KEEP_FORECASTS_DAYS",
    statement=delete_from("scheduler_forecastoutcome"),
)


def _remove_shadow_runs(ids: list[int]) -> int:
    """Delete runs with what they compared."""
    runs = ShadowRun.objects.filter(pk__in=ids)
    removed = runs.count()
    runs.delete()
    return removed


SHADOW_RUNS: Final = Rule(
    "shadow_runs",
    "Shadow runs that have ended, with what they compared",
    "SELECT id FROM scheduler_shadowrun WHERE ended_at < %(before)s ORDER BY id LIMIT %(batch)s",
    hours=KEEP_SHADOW_RUNS_HOURS,
    remove=_remove_shadow_runs,
    batch=10,
)
RUNS: Final = Rule(
    "retention_runs",
    "Runs of this clean-up",
    "SELECT id FROM scheduler_retentionrun WHERE started_at < %(before)s LIMIT %(batch)s",
    hours=30 * 24,
    statement=delete_from("scheduler_retentionrun"),
)


def recordings(keep: int = KEEP_RECORDINGS, keep_bytes: int = KEEP_RECORDINGS_BYTES) -> Rule:
    """The bytes of all but the newest recordings of each cluster; what they decided stays known."""
    return Rule(
        "recordings",
        f"Bytes of recorded cycles but the newest {keep:,} of each cluster, {keep_bytes // 2**20:,} MiB at most",
        # A whole snapshot goes with the last of the deltas on it, and after them.
        """
        WITH sized AS (
            SELECT id, base_id, row_number() OVER newest AS place,
                sum(octet_length(snapshot) + octet_length(plan)) OVER newest AS bytes
            FROM scheduler_cycle WHERE snapshot IS NOT NULL
            WINDOW newest AS (PARTITION BY cluster_id ORDER BY id DESC)
        ), kept AS (
            SELECT id, base_id FROM sized WHERE place <= %(keep)s AND (bytes <= %(keep_bytes)s OR place = 1)
        )
        SELECT id FROM sized
        WHERE id NOT IN (SELECT id FROM kept)
            AND id NOT IN (SELECT base_id FROM kept WHERE base_id IS NOT NULL)
        ORDER BY id DESC LIMIT %(batch)s
        """,
        statement="""
        WITH gone AS (
            UPDATE scheduler_cycle SET snapshot = NULL, policy = NULL, plan = NULL WHERE id IN ({which}) RETURNING 1
        ) SELECT count(*) FROM gone
        """,
        more={"keep": keep, "keep_bytes": keep_bytes},
    )


def rules() -> Iterator[Rule]:
    """Every rule, in the order they are carried out: rows of jobs before the jobs."""
    yield from (CYCLES, recordings(), IDEMPOTENCY_KEYS, LOG_CHUNKS, EVENTS, JOBS, NAMES, FORECASTS)
    yield from quotas.services.retention.rules(
        window_seconds=share_rules()[0].window_seconds, running=_RUNNING_ATTEMPTS
    )
    yield from infra.retention.RULES
    for more in settings.MUSTER_MORE_RETENTION:
        yield from import_string(more)()
    yield audit_prune.rule()
    yield SHADOW_RUNS
    yield RUNS


def preview() -> dict[str, int]:
    """How many rows of each kind would be deleted now; no row is changed."""
    now = timezone.now()
    return {rule.name: rule.count(now) for rule in rules()}


def prune_all() -> dict[str, int]:
    """Delete what is older than the settings keep it; answers how many rows of each kind were deleted.

    Does nothing while another run is under way. A rule that fails stops the run, and the run's row names it;
    what was deleted before stays deleted, for every batch is a transaction of its own.
    """
    with try_lock(RUN_LOCK) as ours:
        return run_rules() if ours else {}


def run_rules() -> dict[str, int]:
    """One run of every rule, with its row; the caller holds RUN_LOCK."""
    run = RetentionRun.objects.create(started_at=timezone.now())
    removed: dict[str, int] = {}
    facts = []
    try:
        for rule in rules():
            removed[rule.name] = rule.carry_out(run.started_at)
            facts.append(_facts(rule, removed[rule.name]))
            if rule.left:
                run.problem = f"{rule.name}: {rule.left[0]}"[:300]
    except Exception as error:
        run.problem = f"{rule.name}: {error}"[:300]
        raise
    finally:
        run.ended_at, run.rules, run.removed = timezone.now(), facts, sum(removed.values())
        run.save()
    log.info("pruned", **removed)
    return removed


def _facts(rule: Rule, removed: int) -> dict[str, object]:
    return {
        "name": rule.name,
        "words": rule.words,
        "setting": rule.setting,
        "hours": rule.hours_kept if rule.by_age else None,
        "removed": removed,
    }


def kept_for(rule: Rule) -> str:
    """`30 days (MUSTER_KEEP_LOGS_DAYS)`, `unlimited (MUSTER_KEEP_JOBS_DAYS)`, `24 hours`."""
    return said_for(rule.hours_kept if rule.by_age else None, rule.setting)


def said_for(hours: int | None, setting: str) -> str:
    """The same from what a stored run says; hours None is a rule that counts rows, 0 is without limit."""
    if hours is None:
        return "by number and size"
    if hours == 0:
        text = "unlimited"
    else:
        text = f"{hours // 24:,} days" if hours % 24 == 0 and hours > 24 else f"{hours} hours"
    return f"{text} ({setting})" if setting else text


# ------------------------------------------------------------------ single rules


def prune_cycles(*, days: int) -> int:
    return _with_days(CYCLES, days)


def prune_logs(*, days: int) -> int:
    return _with_days(LOG_CHUNKS, days)


def prune_idempotency_keys() -> int:
    return IDEMPOTENCY_KEYS.carry_out(timezone.now())


def strip_recordings(*, keep: int = KEEP_RECORDINGS, keep_bytes: int = KEEP_RECORDINGS_BYTES) -> int:
    return recordings(keep, keep_bytes).carry_out(timezone.now())


def _with_days(rule: Rule, days: int, now: datetime | None = None) -> int:
    """Carry out one rule with another time than its setting; 0 days keeps everything."""
    if days <= 0:
        return 0
    return replace(rule, setting="", hours=24 * days).carry_out(now or timezone.now())
