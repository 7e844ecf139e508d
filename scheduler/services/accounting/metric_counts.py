"""Counters and histograms of /metrics: events are counted once, as they settle, in rows that stay.

Counting follows the events that exist anyway, by a cursor, as notifications do (docs/decisions/0053): submitting,
placing and settling write nothing for it. One transaction counts a batch and moves the cursor, so that a kill does both
or neither. What a retention rule removes later stays counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import structlog
from django.db import DatabaseError, connection, transaction
from django.utils import timezone

from infra.db.commit_order import largest_of, settled_up_to
from scheduler.models import MetricCursor

log = structlog.get_logger(__name__)

#: Upper bounds of the buckets of waits, in seconds; what is longer counts in +Inf alone.
WAIT_SECONDS: Final = (
    1,
    2,
    5,
    10,
    30,
    60,
    120,
    300,
    600,
    1_800,
    3_600,
    7_200,
    21_600,
    43_200,
    86_400,
    604_800,
)
#: Of a histogram: the detail with the sum of all values in milliseconds. The other details are numbers of buckets.
SUM: Final = "sum_ms"

#: Names of counters, as `MetricCount.name` has them.
WAIT: Final = "queue_wait"
LATENCY: Final = "scheduling_latency"
ENDED: Final = "jobs_ended"
FAILED: Final = "attempts_failed"
PREEMPTED: Final = "preemptions"
CYCLES_FAILED: Final = "cycles_failed"
DRIFT: Final = "quota_drift"
BACKFILLED: Final = "backfilled_starts"

#: Events of one transaction, and batches of one run: after a long pause the next run goes on.
BATCH: Final = 5_000
MOST_BATCHES: Final = 100

_ADD: Final = """
INSERT INTO scheduler_metriccount (name, label, detail, value) {rows}
ON CONFLICT (name, label, detail) DO UPDATE SET value = scheduler_metriccount.value + excluded.value
"""

#: Starts of attempts. A job waits from its submission, or from when it could start first: after `begin_at`, its
#: dependencies, or the pause after a failure; the wait of a later attempt begins with the end of the one before.
#: A start that is written with the end of its attempt has no event of its own, but its node in the details.
_STARTS: Final = """
WITH started AS (
    SELECT DISTINCT attempt.id, queue.slug, attempt.scheduled_at, attempt.started_at,
        greatest(
            coalesce(before.ended_at, request.created_at),
            CASE WHEN job.eligible_at <= attempt.scheduled_at THEN job.eligible_at END
        ) AS came_at
    FROM scheduler_jobevent event
        JOIN scheduler_job job ON job.number = event.job_id
        JOIN scheduler_jobrequest request ON request.number = job.number
        JOIN scheduler_queue queue ON queue.id = job.queue_id
        JOIN scheduler_attempt attempt ON attempt.job_id = event.job_id AND attempt.epoch = event.epoch
        LEFT JOIN scheduler_attempt before ON before.job_id = job.number AND before.epoch = attempt.epoch - 1
    WHERE event.id > %(after)s AND event.id <= %(until)s AND attempt.started_at IS NOT NULL
        AND (event.kind = 'job.running' OR event.details ? 'node')
), took AS (
    SELECT started.slug, figure.name, greatest(0, extract(epoch FROM figure.at - started.came_at)) AS seconds
    FROM started CROSS JOIN LATERAL (
        VALUES ('queue_wait', started.started_at), ('scheduling_latency', started.scheduled_at)
    ) figure(name, at)
), placed AS (
    -- width_bucket counts the bounds that are at or below a value; a bucket of Prometheus has its own bound inside.
    SELECT name, slug, seconds, (
        SELECT count(*) FROM unnest(%(bounds)s::float8[]) bound WHERE bound < seconds
    ) AS bucket
    FROM took
)
SELECT name, slug, bucket::text, count(*) FROM placed GROUP BY 1, 2, 3
UNION ALL
SELECT name, slug, 'sum_ms', round(sum(seconds) * 1000)::bigint FROM placed GROUP BY 1, 2
"""

#: Ends of jobs; of attempts that did not succeed, by class; and of attempts that were asked to make room.
_ENDS: Final = """
WITH ended AS (
    SELECT event.kind, event.details, queue.slug, attempt.stopped_for
    FROM scheduler_jobevent event
        JOIN scheduler_job job ON job.number = event.job_id
        JOIN scheduler_queue queue ON queue.id = job.queue_id
        LEFT JOIN scheduler_attempt attempt ON attempt.job_id = event.job_id AND attempt.epoch = event.epoch
    WHERE event.id > %(after)s AND event.id <= %(until)s
)
SELECT 'jobs_ended', slug, substr(kind, 5), count(*) FROM ended
WHERE kind = ANY(%(terminal)s) GROUP BY 2, 3
UNION ALL
SELECT 'attempts_failed', slug, details->>'failure_class', count(*) FROM ended
WHERE details ? 'attempt' AND details ? 'failure_class' GROUP BY 2, 3
UNION ALL
SELECT 'preemptions', slug, CASE WHEN stopped_for IS NOT NULL THEN 'priority'
    WHEN details->>'stop_reason' = 'evicted' THEN 'taint' WHEN details->>'stop_reason' = 'drained' THEN 'drain'
    ELSE 'asked' END, count(*) FROM ended
WHERE details ? 'attempt' AND details->>'stop_reason' IN ('preempted', 'evicted', 'drained') GROUP BY 2, 3
"""

_DRIFT: Final = """
SELECT 'quota_drift', kind, '', count(*) FROM quotas_driftfinding
WHERE id > %(after)s AND id <= %(until)s GROUP BY 2
"""


class Source(NamedTuple):
    """A table whose rows are counted in the order of their ids."""

    name: str
    table: str
    statements: Sequence[str]


SOURCES: Final = (
    Source("events", "scheduler_jobevent", (_STARTS, _ENDS)),
    Source("drift", "quotas_driftfinding", (_DRIFT,)),
)
#: The kinds of events with which a job ends.
TERMINAL_KINDS: Final = ("job.completed", "job.failed", "job.cancelled")


def count() -> None:
    """Count what has settled since the last time; the first run ever begins with what comes after it."""
    for source in SOURCES:
        _count(source)


def _count(source: Source) -> None:
    found = MetricCursor.objects.filter(source=source.name).values_list("position", flat=True).first()
    if found is None:
        newest = largest_of(source.table, "id", after=0)
        first = MetricCursor(source=source.name, position=newest, moved_at=timezone.now())
        MetricCursor.objects.bulk_create([first], ignore_conflicts=True)
        return
    if largest_of(source.table, "id", after=found) <= found:
        return
    until = settled_up_to(source.table, after=found)
    if until is None:
        log.info("metrics_wait_for_a_transaction", source=source.name)
        return
    for _ in range(MOST_BATCHES):
        if not _step(source, until):
            return


def _step(source: Source, until: int) -> bool:
    """One batch; False where nothing is left, or another process is at it."""
    with transaction.atomic():
        cursor = MetricCursor.objects.select_for_update(skip_locked=True).filter(source=source.name).first()
        if cursor is None or cursor.position >= until:
            return False
        with connection.cursor() as database:
            database.execute(
                f"SELECT max(id) FROM (SELECT id FROM {source.table} WHERE id > %s AND id <= %s"  # noqa: S608
                " ORDER BY id LIMIT %s) batch",
                [cursor.position, until, BATCH],
            )
            last = database.fetchone()[0] or until
            words = {
                "after": cursor.position,
                "until": last,
                "bounds": list(map(float, WAIT_SECONDS)),
                "terminal": list(TERMINAL_KINDS),
            }
            for statement in source.statements:
                database.execute(_ADD.format(rows=statement), words)
        cursor.position, cursor.moved_at = last, timezone.now()
        cursor.save(update_fields=["position", "moved_at"])
    return True


def add_one(name: str, label: str) -> None:
    """Count one of what has no row of its own, such as a planning cycle that failed. Never raises for the database."""
    _add(name, "VALUES (%s, %s, '', 1)", [name, label])


def add_by_queue(name: str, queue_ids: Iterable[int]) -> None:
    """Count one for each of these, by its queue. Never raises for the database."""
    counted = Counter(queue_ids)
    rows = """SELECT %s, queue.slug, '', v.count FROM unnest(%s::bigint[], %s::bigint[]) v(id, count)
        JOIN scheduler_queue queue USING (id)"""
    if counted:
        _add(name, rows, [name, [*counted], [*counted.values()]])


def _add(name: str, rows: str, parameters: Sequence[Any]) -> None:
    try:
        with connection.cursor() as database:
            database.execute(_ADD.format(rows=rows), parameters)
    except DatabaseError as error:
        log.warning("metric_not_counted", name=name, error=str(error))
