"""How a queue keeps deadlines: jobs that met and missed theirs, by how much, and how long jobs waited."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from django.db.models import F
from django.utils import timezone

from scheduler.core.lifecycle import JobState
from scheduler.models import Job
from scheduler.state.db.sql import run

MOST_DAYS: Final = 366
MOST_MISSED: Final = 50

_READ: Final = """
WITH due AS (
    SELECT r.number, r.deadline_at, j.state, j.outcome, j.completed_at, j.eligible_at, j.started_at, r.created_at,
        extract(epoch FROM coalesce(j.completed_at, %(now)s) - r.deadline_at) AS late
    FROM scheduler_jobrequest r JOIN scheduler_job j ON j.number = r.number
    WHERE r.deadline_at >= %(since)s AND r.deadline_at < %(now)s AND j.queue_id = %(queue)s
), judged AS (
    SELECT *, CASE WHEN outcome = %(completed)s AND late <= 0 THEN 'met'
        WHEN outcome = %(cancelled)s AND late <= 0 THEN 'cancelled'
        WHEN outcome = %(failed)s AND late <= 0 THEN 'failed' ELSE 'late' END AS verdict FROM due
)
SELECT count(*), count(*) FILTER (WHERE verdict = 'met'), count(*) FILTER (WHERE verdict = 'failed'),
    count(*) FILTER (WHERE verdict = 'late'), count(*) FILTER (WHERE verdict = 'cancelled'),
    percentile_disc(ARRAY[0.5, 0.9, 1]) WITHIN GROUP (ORDER BY late::bigint) FILTER (WHERE verdict = 'late'),
    percentile_disc(ARRAY[0.5, 0.9, 0.99]) WITHIN GROUP (
        ORDER BY extract(epoch FROM started_at - created_at)::bigint) FILTER (WHERE started_at IS NOT NULL)
FROM judged
"""
_AHEAD: Final = """
SELECT count(*) FROM scheduler_jobrequest r JOIN scheduler_job j ON j.number = r.number
WHERE r.deadline_at >= %s AND j.queue_id = %s AND j.outcome IS NULL
"""


class Quantiles(NamedTuple):
    """Seconds."""

    half: int
    most: int
    longest: int


@dataclass(frozen=True, slots=True)
class DeadlineReport:
    """Jobs of one queue whose deadlines lie in the last `days` days.

    `late` jobs were not over at their deadlines, `failed` ones had failed before; both have missed theirs.
    """

    days: int
    since: datetime
    jobs: int
    met: int
    failed: int
    late: int
    cancelled: int
    #: Jobs that wait or run, with their deadlines ahead.
    ahead: int
    #: Of the late jobs: median, 90th percentile, maximum; None where there are none.
    late_by: Quantiles | None
    #: From submission to the first start: median, 90th and 99th percentile.
    waits: Quantiles | None

    @property
    def missed(self) -> int:
        return self.failed + self.late

    @property
    def met_percent(self) -> int | None:
        """Of the deadlines that were met or missed; None where there are none."""
        judged = self.met + self.missed
        return round(100 * self.met / judged) if judged else None


def deadline_report(queue_id: int, *, days: int) -> DeadlineReport:
    """The report of one queue, from rows of jobs that are kept; two statements."""
    now = timezone.now()
    since = now - timedelta(days=days)
    words = {
        "now": now, "since": since, "queue": queue_id, "completed": JobState.COMPLETED.value,
        "failed": JobState.FAILED.value, "cancelled": JobState.CANCELLED.value,
    }  # fmt: skip
    ((jobs, met, failed, late, cancelled, late_by, waits),) = run(_READ, words)
    ((ahead,),) = run(_AHEAD, [now, queue_id])
    return DeadlineReport(
        days, since, jobs, met, failed, late, cancelled, ahead, _quantiles(late_by), _quantiles(waits)
    )


def missed_numbers(queue_id: int, since: datetime) -> list[int]:
    """Numbers of the jobs of a queue that missed deadlines since then, the latest deadline first; some of them."""
    now = timezone.now()
    found = Job.objects.filter(queue=queue_id, deadline_at__gte=since, deadline_at__lt=now).order_by(
        "-deadline_at"
    )
    judged = found.exclude(
        outcome__in=[JobState.COMPLETED, JobState.CANCELLED], completed_at__lte=F("deadline_at")
    )
    return list(judged.values_list("number", flat=True)[:MOST_MISSED])


def _quantiles(values: Sequence[int] | None) -> Quantiles | None:
    return Quantiles(*values) if values and None not in values else None
