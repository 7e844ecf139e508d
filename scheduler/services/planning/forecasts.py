"""Forecasts of starts: made in the background for every pending job, judged when the job starts."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final

import numpy as np
import structlog
from django.conf import settings
from django.db.models import Count, Q
from django.utils import timezone

from scheduler.core.forecast.calibration import Calibration, calibrated, learn
from scheduler.core.forecast.forecast import Forecast, RunTimes, forecast, points_of
from scheduler.core.forecast.runtimes import predict
from scheduler.core.policy import Policy
from scheduler.core.snapshot.snapshot import Snapshot
from scheduler.models import (
    Attempt,
    Cluster,
    ForecastOutcome,
    ForecastRun,
    Job,
    PredictionAccuracy,
    RuntimePrediction,
    StartForecast,
)
from scheduler.services.planning.cycles import installed_plugins
from scheduler.services.planning.profiles import leaving_out_failing
from scheduler.state.load.snapshots import load_snapshot
from scheduler.state.records import forecasts

log = structlog.get_logger(__name__)

#: How far back run times of finished jobs and outcomes of forecasts are read.
DAYS: Final = 30
#: Finished jobs whose run times are read, and for how long these are cached.
MOST_RUNS: Final = 20_000
RUNS_SECONDS: Final = 300.0
#: Judged starts that ranges are calibrated by.
MOST_OUTCOMES: Final = 5_000
#: Run times are predicted anew so often.
PREDICT_SECONDS: Final = 60.0
#: A cluster is forecast again after this many times as long as the last round took.
REST: Final = 9
#: Cycles of one simulated future, by the rows that each looks at: in the background, and while a person waits.
_WORK: Final = 3_000_000
_FEWEST, _MOST = 60, 400
LIVE_WORK: Final = 30_000
_LIVE_FEWEST, _LIVE_MOST = 25, 120
#: For how long the record is cached.
RECORD_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class StartRange:
    """When a job is likely to start; None = not known, and `unknown` says why."""

    p10_at: datetime | None = None
    p50_at: datetime | None = None
    p90_at: datetime | None = None
    unknown: str = ""
    #: Running jobs whose limits it was counted from, and jobs that go first.
    running_jobs: int = 0
    ahead_jobs: int = 0
    computed_at: datetime | None = None

    @property
    def is_range(self) -> bool:
        return self.p10_at is not None and self.p90_at is not None


@dataclass(frozen=True, slots=True)
class ExpectedRuntime:
    """How long a job without a time limit is expected to run: what plans count with, never a limit."""

    seconds: int  # the median of earlier runs; after the start as planned then
    planned_seconds: int  # what the planner counts with; doubled while the job runs longer
    runs: int  # earlier runs that this is from; 0 = none, the site's setting
    version: int | None = None  # of the prediction; None once the job has started

    @property
    def source(self) -> str:
        """Where it is from, in words."""
        if not self.runs:
            return "site default, no earlier runs"
        return f"from {self.runs} earlier {'run' if self.runs == 1 else 'runs'}"


@dataclass(frozen=True, slots=True)
class Record:
    """How the first range that each job showed turned out, over the last days."""

    days: int = DAYS
    starts: int = 0
    inside: int = 0
    earlier: int = 0
    later: int = 0
    #: None while no start has been judged.
    inside_percent: int | None = None


def forecast_all() -> int:
    """Judge what has started, then forecast every cluster whose turn it is; answers how many jobs have a forecast."""
    forecasts.settle_forecasts()
    forecast_jobs = 0
    runs = {run.cluster_id: run for run in ForecastRun.objects.all()}
    for cluster_id in Cluster.objects.order_by("id").values_list("id", flat=True):
        if time.monotonic() - _predicted.get(cluster_id, -PREDICT_SECONDS) >= PREDICT_SECONDS:
            predict_run_times(cluster_id=cluster_id)
        last = runs.get(cluster_id)
        if last is not None and timezone.now() < last.ended_at + timedelta(milliseconds=REST * last.took_ms):
            continue
        try:
            forecast_jobs += forecast_cluster(cluster_id=cluster_id)
        except Exception:
            log.exception("forecast_failed", cluster=cluster_id)
    return forecast_jobs


def predict_run_times(*, cluster_id: int) -> int:
    """Predict how long the next job of each person and job name runs, from the last jobs of the cluster.

    Answers how many predictions changed. How good earlier ones were is written beside them. A job that starts
    without a time limit keeps the prediction of that moment with its attempt.
    """
    earlier: dict[tuple[int, str], list[int]] = defaultdict(list)
    since = timezone.now() - timedelta(days=DAYS)
    ratios: list[int] = []  # predicted by real run times, in thousandths
    for row in forecasts.ran(cluster_id=cluster_id, since=since, most=MOST_RUNS):  # the latest first
        earlier[row.user_id, row.name].append(row.ran_seconds)
        if row.predicted_seconds:
            ratios.append(1000 * row.predicted_seconds // row.ran_seconds)
    forecasts.store_accuracy(
        cluster_id=cluster_id,
        since=since,
        most=MOST_RUNS,
        runs=len(ratios),
        longer=sum(ratio < 1000 for ratio in ratios),
        ratio_millis=statistics.median_low(ratios) if ratios else None,
    )
    found = {key: made for key, seconds in earlier.items() if (made := predict(seconds)) is not None}
    changed = forecasts.store_predictions(found, cluster_id=cluster_id)
    _predicted[cluster_id] = time.monotonic()
    return changed


_predicted: dict[int, float] = {}


def forecast_cluster(*, cluster_id: int) -> int:
    """Forecast every pending job of a cluster but those of paused queues, and store what is new; answers how many.

    Jobs of a paused queue are not read: they take no turn in any future that this can see.
    """
    began = time.monotonic()
    loaded = load_snapshot(cluster_id=cluster_id, paused_queues=False)
    snapshot = with_predictions(loaded.snapshot, cluster_id=cluster_id)
    jobs = len(snapshot.pending)
    if jobs:
        size = jobs + len(snapshot.running) + len(snapshot.nodes)
        times, most = run_times(cluster_id), min(max(_WORK // size, _FEWEST), _MOST)
        found = leaving_out_failing(
            loaded,
            lambda left: forecast(
                snapshot, left.policy, times, most_cycles=most, plugins=installed_plugins()
            ),
        )
        calibration = calibration_of(cluster_id)
        ranges = [calibrated(one, calibration, snapshot.now_ms) for one in found.values()]
        forecasts.store_forecasts(ranges, at=_moment(snapshot.now_ms))
    took_ms = int(1000 * (time.monotonic() - began))
    ForecastRun.objects.update_or_create(
        cluster_id=cluster_id, defaults={"ended_at": timezone.now(), "took_ms": took_ms, "jobs": jobs}
    )
    log.debug("forecast", cluster=cluster_id, jobs=jobs, took_ms=took_ms)
    return jobs


def range_now(snapshot: Snapshot, policy: Policy, job_id: int, *, cluster_id: int) -> StartRange | None:
    """The forecast of one job while a person waits for it; None where the cluster is too large for that."""
    cycles = live_cycles(snapshot)
    if not cycles:
        return None
    found = forecast(
        with_predictions(snapshot, cluster_id=cluster_id),
        policy,
        run_times(cluster_id),
        jobs=[job_id],
        most_cycles=cycles,
        plugins=installed_plugins(),
    )
    return _range_of(calibrated(found[job_id], calibration_of(cluster_id), snapshot.now_ms), snapshot.now_ms)


def with_predictions(snapshot: Snapshot, *, cluster_id: int) -> Snapshot:
    """The snapshot in which pending jobs without a time limit are expected to run as long as earlier runs say.

    Cycles do not need it: a prediction becomes part of the plan with the attempt, as the job starts.
    """
    pending = snapshot.pending
    unlimited = np.flatnonzero(pending.predicted_seconds > 0)
    if not len(unlimited):
        return snapshot
    known = forecasts.planned_seconds(pending.id[unlimited].tolist(), cluster_id=cluster_id)
    seconds = pending.predicted_seconds.copy()
    for row, number in zip(unlimited.tolist(), pending.id[unlimited].tolist(), strict=True):
        seconds[row] = known.get(number, seconds.item(row))
    return replace(snapshot, pending=replace(pending, predicted_seconds=seconds))


def live_cycles(snapshot: Snapshot) -> int:
    """How many cycles of a simulated future fit into the time that a person waits; 0 = too few to be of use."""
    cycles = LIVE_WORK // (len(snapshot.pending) + len(snapshot.running) + len(snapshot.nodes) + 100)
    return min(cycles, _LIVE_MOST) if cycles >= _LIVE_FEWEST else 0


def kept_range(job_number: int) -> StartRange | None:
    """The stored forecast of a job; None while it has none."""
    row = StartForecast.objects.filter(pk=job_number).first()
    return range_of(row) if row is not None else None


def range_of(row: StartForecast) -> StartRange:
    return StartRange(
        row.p10_at, row.p50_at, row.p90_at, row.unknown, row.ends_first, row.ahead_jobs, row.computed_at
    )


def expected_runtime(job: Job, latest: Attempt | None) -> ExpectedRuntime | None:
    """How long a job is expected to run, as of its latest start or as of now; None for a job with a time limit."""
    if job.time_limit_seconds is not None:
        return None
    if latest is not None:  # one that started before predictions were kept counts by the site's setting
        seconds = latest.predicted_seconds or settings.UNLIMITED_JOB_SECONDS
        return ExpectedRuntime(seconds, seconds, latest.predicted_from_runs or 0)
    known = RuntimePrediction.objects.filter(
        user_id=job.user_id, name=job.name, cluster_id=job.queue.cluster_id
    ).first()
    if known is None:
        return ExpectedRuntime(settings.UNLIMITED_JOB_SECONDS, settings.UNLIMITED_JOB_SECONDS, 0)
    return ExpectedRuntime(known.usual_seconds, known.planned_seconds, known.runs, known.version)


def run_times(cluster_id: int) -> RunTimes:
    """How long the jobs of this cluster ran lately, by person and project."""
    known = _runs.get(cluster_id)
    if known is not None and time.monotonic() - known[0] < RUNS_SECONDS:
        return known[1]
    parts: dict[str, dict[int, list[int]]] = {"user": defaultdict(list), "project": defaultdict(list)}
    seconds: dict[str, dict[int, list[int]]] = {"user": defaultdict(list), "project": defaultdict(list)}
    all_parts: list[int] = []
    all_seconds: list[int] = []
    since = timezone.now() - timedelta(days=DAYS)
    for row in forecasts.ran(cluster_id=cluster_id, since=since, most=MOST_RUNS):
        if row.asked_seconds:
            kinds, everybody = parts, all_parts
            value = min(1000 * row.ran_seconds // row.asked_seconds, 1000)
        else:
            kinds, everybody, value = seconds, all_seconds, row.ran_seconds
        kinds["user"][row.user_id].append(value)
        kinds["project"][row.project_id].append(value)
        everybody.append(value)
    found = RunTimes(
        parts_of_user=_points(parts["user"]),
        parts_of_project=_points(parts["project"]),
        parts=points_of(all_parts),
        seconds_of_user=_points(seconds["user"]),
        seconds_of_project=_points(seconds["project"]),
        seconds=points_of(all_seconds),
    )
    _runs[cluster_id] = (time.monotonic(), found)
    return found


_runs: dict[int, tuple[float, RunTimes]] = {}


def calibration_of(cluster_id: int) -> Calibration:
    """How the ranges of a cluster are corrected, by the starts that were judged lately."""
    known = _calibrations.get(cluster_id)
    if known is not None and time.monotonic() - known[0] < PREDICT_SECONDS:
        return known[1]
    since = timezone.now() - timedelta(days=DAYS)
    rows = forecasts.outcomes(cluster_id=cluster_id, since=since, most=MOST_OUTCOMES)
    table = np.array(rows, dtype=np.int64).reshape(-1, 3)
    found = learn(table[:, 0], table[:, 1], table[:, 2])
    _calibrations[cluster_id] = (time.monotonic(), found)
    return found


_calibrations: dict[int, tuple[float, Calibration]] = {}


@dataclass(frozen=True, slots=True)
class Accuracy:
    """How good the predictions of one cluster were over the last days; None where nothing has been judged."""

    cluster: str
    days: int
    starts: int
    inside_percent: int | None
    width_seconds: int | None  # the median of the first ranges
    waited_seconds: int | None  # the median, from the forecast to the start
    runs: int  # ended runs without a time limit that had a prediction from earlier runs
    longer_percent: int | None  # of them, those that ran longer than predicted
    shorter_percent: int | None
    median_ratio: float | None  # predicted by real run time


def accuracies(cluster_ids: Collection[int]) -> list[Accuracy]:
    """The accuracy of predictions of these clusters, by name; from one row each."""
    rows = PredictionAccuracy.objects.filter(cluster__in=cluster_ids).select_related("cluster")
    return [_accuracy_of(row) for row in rows.order_by("cluster__name", "cluster_id")]


def _accuracy_of(row: PredictionAccuracy) -> Accuracy:
    longer = _percent(row.longer, row.runs)
    return Accuracy(
        cluster=row.cluster.name,
        days=DAYS,
        starts=row.starts,
        inside_percent=_percent(row.inside, row.starts),
        width_seconds=row.width_seconds,
        waited_seconds=row.waited_seconds,
        runs=row.runs,
        longer_percent=longer,
        shorter_percent=None if longer is None else 100 - longer,
        median_ratio=None if row.ratio_millis is None else row.ratio_millis / 1000,
    )


def _percent(part: int, whole: int) -> int | None:
    return round(100 * part / whole) if whole else None


def record(*, fresh: bool = False) -> Record:
    """How often starts fell inside the first range that their jobs showed, over all clusters."""
    if not fresh and _record and time.monotonic() - _record[0][0] < RECORD_SECONDS:
        return _record[0][1]
    since = timezone.now() - timedelta(days=DAYS)
    counts = ForecastOutcome.objects.filter(started_at__gte=since).aggregate(
        starts=Count("pk"),
        inside=Count("pk", filter=Q(missed_seconds=0)),
        earlier=Count("pk", filter=Q(missed_seconds__lt=0)),
        later=Count("pk", filter=Q(missed_seconds__gt=0)),
    )
    starts = counts["starts"]
    found = Record(
        days=DAYS, **counts, inside_percent=round(100 * counts["inside"] / starts) if starts else None
    )
    _record[:] = [(time.monotonic(), found)]
    return found


_record: list[tuple[float, Record]] = []


def forget_history() -> None:
    """Read run times and the record anew: for tests, whose rows are gone a moment later."""
    _runs.clear()
    _predicted.clear()
    _record.clear()
    _calibrations.clear()


def _points(values: dict[int, list[int]]) -> dict[int, tuple[int, ...]]:
    return {key: points_of(some) for key, some in values.items()}


def _range_of(found: Forecast, now_ms: int) -> StartRange:
    p10, p50, p90 = (
        _moment(at_ms) if at_ms is not None else None for at_ms in (found.p10_ms, found.p50_ms, found.p90_ms)
    )
    return StartRange(p10, p50, p90, found.unknown, found.ends_first, found.ahead_jobs, _moment(now_ms))


def _moment(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1000, tz=UTC)
