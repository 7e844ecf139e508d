"""Forecasts in rows: written in one statement, judged once their jobs have started."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Final

from scheduler.core.forecast.forecast import Forecast
from scheduler.core.lifecycle import AttemptState, JobState
from scheduler.state.db.sql import Rows, int_array, run

#: Ends that say how long a job of its kind runs: not those that were cut off.
_RAN: Final = [AttemptState.SUCCEEDED.value, AttemptState.FAILED.value]

_ROWS: Final = 2000


def store_forecasts(found: Iterable[Forecast], *, at: datetime) -> None:
    """Write the forecasts of jobs that still wait; what each was told first stays as it was."""
    rows = sorted(found, key=lambda one: one.job_id)
    for begin in range(0, len(rows), _ROWS):
        some = rows[begin : begin + _ROWS]
        run(
            """
            INSERT INTO scheduler_startforecast AS kept (job_id, p10_at, p50_at, p90_at, unknown, ends_first,
                ahead_jobs, computed_at, first_p10_at, first_p90_at, first_told_at)
            SELECT number, p10, p50, p90, why, ends_first, ahead, %s, p10, p90, CASE WHEN whole THEN %s END
            FROM (SELECT job.number, told.why, told.ends_first, told.ahead,
                    to_timestamp(nullif(told.p10, 0) / 1000.0) AS p10,
                    to_timestamp(nullif(told.p50, 0) / 1000.0) AS p50,
                    to_timestamp(nullif(told.p90, 0) / 1000.0) AS p90,
                    told.p10 > 0 AND told.p90 > 0 AS whole
                FROM unnest(%s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::text[], %s::int[], %s::int[])
                    AS told(number, p10, p50, p90, why, ends_first, ahead)
                JOIN scheduler_job job ON job.number = told.number
                WHERE job.state = %s ORDER BY job.number) AS told
            ON CONFLICT (job_id) DO UPDATE SET p10_at = excluded.p10_at, p50_at = excluded.p50_at,
                p90_at = excluded.p90_at, unknown = excluded.unknown, ends_first = excluded.ends_first,
                ahead_jobs = excluded.ahead_jobs, computed_at = excluded.computed_at,
                first_p10_at = CASE WHEN kept.first_told_at IS NULL THEN excluded.p10_at ELSE kept.first_p10_at END,
                first_p90_at = CASE WHEN kept.first_told_at IS NULL THEN excluded.p90_at ELSE kept.first_p90_at END,
                first_told_at = coalesce(kept.first_told_at, excluded.first_told_at)
            WHERE kept.computed_at <= excluded.computed_at
            RETURNING job_id
            """,
            [
                at, at,
                int_array(one.job_id for one in some),
                int_array(one.p10_ms or 0 for one in some),
                int_array(one.p50_ms or 0 for one in some),
                int_array(one.p90_ms or 0 for one in some),
                [one.unknown[:400] for one in some],
                int_array(one.ends_first for one in some),
                int_array(one.ahead_jobs for one in some),
                JobState.QUEUED.value,
            ],
        )  # fmt: skip


def settle_forecasts() -> int:
    """Judge the forecasts of jobs that have started since, and forget those of all that no longer wait.

    A job that was held or cancelled before it started says nothing. Answers how many were judged.
    """
    return run(
        """
        WITH gone AS (
            DELETE FROM scheduler_startforecast forecast USING scheduler_job job
            WHERE job.number = forecast.job_id AND job.state <> %s
            RETURNING forecast.job_id, forecast.first_told_at, forecast.first_p10_at, forecast.first_p90_at
        ), judged AS (
            INSERT INTO scheduler_forecastoutcome
                (cluster_id, job_number, told_at, p10_at, p90_at, started_at, missed_seconds)
            SELECT queue.cluster_id, job.number, gone.first_told_at, gone.first_p10_at, gone.first_p90_at,
                job.scheduled_at,
                extract(epoch FROM
                    least(date_trunc('minute', job.scheduled_at) - date_trunc('minute', gone.first_p10_at),
                        interval '0')
                    + greatest(date_trunc('minute', job.scheduled_at)
                        - date_trunc('minute', gone.first_p90_at + interval '59.999 seconds'), interval '0'))::bigint
            FROM gone JOIN scheduler_job job ON job.number = gone.job_id
                JOIN scheduler_queue queue ON queue.id = job.queue_id
            WHERE gone.first_told_at IS NOT NULL AND job.scheduled_at >= gone.first_told_at
            RETURNING 1
        )
        SELECT count(*) FROM judged
        """,
        [JobState.QUEUED.value],
    )[0][0]


def ran(*, cluster_id: int, since: datetime, most: int) -> Rows:
    """(user, project, seconds asked for or 0, seconds run) of the last jobs that ended by themselves."""
    return run(
        """
        SELECT job.user_id, job.project_id, coalesce(job.time_limit_seconds, 0),
            greatest(extract(epoch FROM attempt.ended_at - attempt.started_at), 1)::bigint
        FROM scheduler_attempt attempt JOIN scheduler_job job ON job.number = attempt.job_id
            JOIN scheduler_queue queue ON queue.id = job.queue_id
        WHERE queue.cluster_id = %s AND attempt.state = ANY(%s) AND attempt.ended_at > %s
            AND attempt.started_at IS NOT NULL
        ORDER BY attempt.id DESC LIMIT %s
        """,
        [cluster_id, _RAN, since, most],
    )
