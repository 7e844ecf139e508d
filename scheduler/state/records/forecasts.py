"""Forecasts in rows: written in one statement, judged once their jobs have started."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Final, NamedTuple

from django.db import transaction

from scheduler.core.forecast.forecast import Forecast
from scheduler.core.forecast.runtimes import Prediction
from scheduler.core.lifecycle import AttemptState, JobState
from scheduler.state.db.parameter_rows import ParameterRows
from scheduler.state.db.query import RowQuery, fetch
from scheduler.state.db.sql import run

#: Ends that say how long a job of its kind runs: not those that were cut off.
_RAN: Final = [AttemptState.SUCCEEDED.value, AttemptState.FAILED.value]

#: Rows of one statement.
_CHUNK: Final = 2000

_FORECASTS: Final[ParameterRows[Forecast]] = ParameterRows(
    "forecast",
    {
        "number": ("bigint", lambda one: one.job_id),
        "p10_ms": ("bigint", lambda one: one.p10_ms or 0),
        "p50_ms": ("bigint", lambda one: one.p50_ms or 0),
        "p90_ms": ("bigint", lambda one: one.p90_ms or 0),
        "unknown": ("text", lambda one: one.unknown[:400]),
        "ends_first": ("int", lambda one: one.ends_first),
        "ahead_jobs": ("int", lambda one: one.ahead_jobs),
        "raw_p10_ms": ("bigint", lambda one: one.raw_p10_ms or 0),
        "raw_p90_ms": ("bigint", lambda one: one.raw_p90_ms or 0),
    },
)
#: A range is written anew where one of its ends has moved by more than this share of the time until then, and by
#: more than these seconds; the counts beside it are as of then.
MOVED_SHARE: Final = 0.1
MOVED_SECONDS: Final = 60


def _moved(name: str) -> str:
    return f"""(shown.{name}_at IS NULL) <> (moment.{name} IS NULL)
            OR abs(extract(epoch FROM moment.{name} - shown.{name}_at))
                > greatest({MOVED_SECONDS}, {MOVED_SHARE} * extract(epoch FROM moment.{name} - now.at))"""


#: The range that a job was shown first stays as it was.
STORE: Final = f"""
INSERT INTO scheduler_startforecast AS kept (job_id, p10_at, p50_at, p90_at, unknown, ends_first,
    ahead_jobs, computed_at, first_p10_at, first_p90_at, first_told_at, first_raw_p10_at, first_raw_p90_at)
SELECT number, p10, p50, p90, unknown, ends_first, ahead_jobs, at, p10, p90, CASE WHEN whole THEN at END,
    raw_p10, raw_p90
FROM (SELECT job.number, forecast.unknown, forecast.ends_first, forecast.ahead_jobs, now.at,
        moment.p10, moment.p50, moment.p90, moment.raw_p10, moment.raw_p90,
        forecast.p10_ms > 0 AND forecast.p90_ms > 0 AS whole
    FROM (SELECT %s::timestamptz AS at) now CROSS JOIN {_FORECASTS.source}
        JOIN scheduler_job job ON job.number = forecast.number
        LEFT JOIN scheduler_startforecast shown ON shown.job_id = job.number
        CROSS JOIN LATERAL (SELECT to_timestamp(nullif(forecast.p10_ms, 0) / 1000.0) AS p10,
            to_timestamp(nullif(forecast.p50_ms, 0) / 1000.0) AS p50,
            to_timestamp(nullif(forecast.p90_ms, 0) / 1000.0) AS p90,
            to_timestamp(nullif(forecast.raw_p10_ms, 0) / 1000.0) AS raw_p10,
            to_timestamp(nullif(forecast.raw_p90_ms, 0) / 1000.0) AS raw_p90) moment
    WHERE job.state = %s AND (shown.job_id IS NULL OR shown.unknown <> forecast.unknown
        OR {_moved("p10")}
        OR {_moved("p50")}
        OR {_moved("p90")})
    ORDER BY job.number) AS waiting
ON CONFLICT (job_id) DO UPDATE SET p10_at = excluded.p10_at, p50_at = excluded.p50_at,
    p90_at = excluded.p90_at, unknown = excluded.unknown, ends_first = excluded.ends_first,
    ahead_jobs = excluded.ahead_jobs, computed_at = excluded.computed_at,
    first_p10_at = CASE WHEN kept.first_told_at IS NULL THEN excluded.p10_at ELSE kept.first_p10_at END,
    first_p90_at = CASE WHEN kept.first_told_at IS NULL THEN excluded.p90_at ELSE kept.first_p90_at END,
    first_raw_p10_at = CASE WHEN kept.first_told_at IS NULL THEN excluded.first_raw_p10_at
        ELSE kept.first_raw_p10_at END,
    first_raw_p90_at = CASE WHEN kept.first_told_at IS NULL THEN excluded.first_raw_p90_at
        ELSE kept.first_raw_p90_at END,
    first_told_at = coalesce(kept.first_told_at, excluded.first_told_at)
WHERE kept.computed_at <= excluded.computed_at
RETURNING job_id
"""


def store_forecasts(found: Iterable[Forecast], *, at: datetime) -> int:
    """Write the forecasts of jobs that still wait and show another one; answers how many were written."""
    written = 0
    rows = sorted(found, key=lambda one: one.job_id)
    for begin in range(0, len(rows), _CHUNK):
        some = rows[begin : begin + _CHUNK]
        written += len(run(STORE, [at, *_FORECASTS.parameters(some), JobState.QUEUED.value]))
    return written


#: Ends the forecasts of jobs that no longer wait, and keeps by how much those of started jobs were missed.
JUDGE: Final = """
WITH gone AS (
    DELETE FROM scheduler_startforecast forecast USING scheduler_job job
    WHERE job.number = forecast.job_id AND job.state <> %s
    RETURNING forecast.job_id, forecast.first_told_at, forecast.first_p10_at, forecast.first_p90_at,
        forecast.first_raw_p10_at, forecast.first_raw_p90_at
), judged AS (
    INSERT INTO scheduler_forecastoutcome
        (cluster_id, job_number, told_at, p10_at, p90_at, raw_p10_at, raw_p90_at, started_at, missed_seconds)
    SELECT queue.cluster_id, job.number, gone.first_told_at, gone.first_p10_at, gone.first_p90_at,
        gone.first_raw_p10_at, gone.first_raw_p90_at, job.scheduled_at,
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
"""


#: When a paused queue goes on is not known: its jobs show no range. Until it was paused, they showed one.
_IN_PAUSED_QUEUES: Final = """
DELETE FROM scheduler_startforecast forecast USING scheduler_job job
WHERE job.number = forecast.job_id AND job.queue_id IN (
    SELECT queue.id FROM scheduler_queue queue JOIN scheduler_cluster cluster ON cluster.id = queue.cluster_id
    WHERE queue.paused OR cluster.paused)
"""


def settle_forecasts() -> int:
    """Judge the forecasts of jobs that have started since, and forget those of all that no longer wait.

    A job that was held or cancelled, or whose queue was paused, before it started says nothing. Answers how many
    were judged.
    """
    run(_IN_PAUSED_QUEUES, [])
    judged: int = run(JUDGE, [JobState.QUEUED.value])[0][0]
    return judged


class OutcomeRow(NamedTuple):
    """A judged start, in ms from its forecast on: the first range as the planner found it, and the real start."""

    p10_ms: int
    p90_ms: int
    waited_ms: int


def _since_forecast(moment: str) -> str:
    return f"(1000 * extract(epoch FROM {moment} - outcome.told_at))::bigint"


_OUTCOMES: Final = RowQuery(
    OutcomeRow,
    {
        "p10_ms": _since_forecast("coalesce(outcome.raw_p10_at, outcome.p10_at)"),
        "p90_ms": _since_forecast("coalesce(outcome.raw_p90_at, outcome.p90_at)"),
        "waited_ms": _since_forecast("outcome.started_at"),
    },
    """SELECT {columns} FROM scheduler_forecastoutcome outcome
WHERE outcome.cluster_id = %s AND outcome.started_at > %s ORDER BY outcome.started_at DESC LIMIT %s""",
)


def outcomes(*, cluster_id: int, since: datetime, most: int) -> list[OutcomeRow]:
    """The last judged starts of this cluster, at most `most`."""
    return fetch(_OUTCOMES, [cluster_id, since, most])


#: One row a cluster, from the judged starts and from runs that ended by themselves.
_ACCURACY: Final = """
INSERT INTO scheduler_predictionaccuracy (cluster_id, updated_at, starts, inside, width_seconds, waited_seconds,
    runs, longer, ratio_millis)
SELECT %s, statement_timestamp(), starts, inside, width, waited, %s, %s, %s
FROM (SELECT count(*) AS starts, count(*) FILTER (WHERE missed_seconds = 0) AS inside,
        percentile_disc(0.5) WITHIN GROUP (ORDER BY extract(epoch FROM p90_at - p10_at))::bigint AS width,
        percentile_disc(0.5) WITHIN GROUP (ORDER BY extract(epoch FROM started_at - told_at))::bigint AS waited
    FROM (SELECT missed_seconds, p10_at, p90_at, started_at, told_at FROM scheduler_forecastoutcome
        WHERE cluster_id = %s AND started_at > %s ORDER BY started_at DESC LIMIT %s) latest) judged
ON CONFLICT (cluster_id) DO UPDATE SET updated_at = excluded.updated_at, starts = excluded.starts,
    inside = excluded.inside, width_seconds = excluded.width_seconds, waited_seconds = excluded.waited_seconds,
    runs = excluded.runs, longer = excluded.longer, ratio_millis = excluded.ratio_millis
RETURNING 1
"""


def store_accuracy(
    *, cluster_id: int, since: datetime, most: int, runs: int, longer: int, ratio_millis: int | None
) -> None:
    """Count the last judged starts of a cluster, at most `most`, and write that beside what its run times were."""
    run(_ACCURACY, [cluster_id, runs, longer, ratio_millis, cluster_id, since, most])


class RanRow(NamedTuple):
    """How long a job ran that ended by itself, and how long it asked for (0 = no limit).

    `predicted_seconds`: what was predicted as it started; 0 = nothing from earlier runs.
    """

    user_id: int
    project_id: int
    name: str
    asked_seconds: int
    ran_seconds: int
    predicted_seconds: int


_LAST_RUNS: Final = RowQuery(
    RanRow,
    {
        "user_id": "job.user_id",
        "project_id": "job.project_id",
        "name": "request.name",
        "asked_seconds": "coalesce(request.time_limit_seconds, 0)",
        "ran_seconds": "greatest(extract(epoch FROM attempt.ended_at - attempt.started_at), 1)::bigint",
        "predicted_seconds": """CASE WHEN attempt.predicted_from_runs > 0 THEN attempt.predicted_seconds
        ELSE 0 END""",
    },
    """SELECT {columns}
FROM scheduler_attempt attempt JOIN scheduler_job job ON job.number = attempt.job_id
    JOIN scheduler_jobrequest request ON request.number = attempt.job_id
    JOIN scheduler_queue queue ON queue.id = job.queue_id
WHERE queue.cluster_id = %s AND attempt.state = ANY(%s) AND attempt.ended_at > %s
    AND attempt.started_at IS NOT NULL
ORDER BY attempt.id DESC LIMIT %s""",
)


def ran(*, cluster_id: int, since: datetime, most: int) -> list[RanRow]:
    """The last jobs of this cluster that ended by themselves, at most `most`."""
    return fetch(_LAST_RUNS, [cluster_id, _RAN, since, most])


#: How long pending jobs without a time limit are expected to run, where earlier runs say it.
_PLANNED: Final = """
SELECT job.number, prediction.planned_seconds
FROM scheduler_job job JOIN scheduler_jobrequest request ON request.number = job.number
    JOIN scheduler_runtimeprediction prediction ON prediction.user_id = job.user_id
        AND prediction.name = request.name AND prediction.cluster_id = %s
WHERE job.number = ANY(%s::bigint[]) AND request.time_limit_seconds IS NULL
"""


def planned_seconds(numbers: Iterable[int], *, cluster_id: int) -> dict[int, int]:
    """The predictions of these jobs in seconds, by job number; a job without one is not in the answer."""
    return dict(run(_PLANNED, [cluster_id, list(numbers)]))


_PREDICTIONS: Final[ParameterRows[tuple[tuple[int, str], Prediction]]] = ParameterRows(
    "made",
    {
        "user_id": ("bigint", lambda one: one[0][0]),
        "name": ("text", lambda one: one[0][1]),
        "runs": ("int", lambda one: one[1].runs),
        "usual": ("bigint", lambda one: one[1].usual_seconds),
        "planned": ("bigint", lambda one: one[1].planned_seconds),
    },
)
#: A prediction whose numbers are as before is not written.
_PREDICT: Final = f"""
INSERT INTO scheduler_runtimeprediction AS kept (cluster_id, user_id, name, runs, usual_seconds, planned_seconds,
    version, updated_at)
SELECT %s, user_id, name, runs, usual, planned, 1, statement_timestamp() FROM {_PREDICTIONS.source}
    JOIN accounts_user person ON person.id = user_id
ORDER BY user_id, name
ON CONFLICT ON CONSTRAINT prediction_once DO UPDATE SET runs = excluded.runs, usual_seconds = excluded.usual_seconds,
    planned_seconds = excluded.planned_seconds, version = kept.version + 1, updated_at = excluded.updated_at
WHERE (kept.runs, kept.usual_seconds, kept.planned_seconds)
    <> (excluded.runs, excluded.usual_seconds, excluded.planned_seconds)
RETURNING 1
"""
#: Those that no recent run speaks for.
_UNPREDICT: Final = f"""
DELETE FROM scheduler_runtimeprediction old WHERE old.cluster_id = %s AND NOT EXISTS (
    SELECT FROM {_PREDICTIONS.source} WHERE made.user_id = old.user_id AND made.name = old.name)
"""


def store_predictions(found: Mapping[tuple[int, str], Prediction], *, cluster_id: int) -> int:
    """Replace the predictions of a cluster, by person and job name; answers how many are new or other than before."""
    rows = sorted(found.items(), key=lambda one: one[0])
    parameters = [cluster_id, *_PREDICTIONS.parameters(rows)]
    with transaction.atomic():
        written = len(run(_PREDICT, parameters))
        run(_UNPREDICT, parameters)
    return written
