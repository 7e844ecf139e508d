"""Ranges of starts on public logs: what part of the starts is inside the first range of the job, and how wide it is."""

from __future__ import annotations

import csv
import gzip
from dataclasses import dataclass
from typing import Final

import numpy as np

from benchmarks.registry import Figures, benchmark, note
from benchmarks.replays.sim import LOGS
from benchmarks.replays.traces import trace_folder
from scheduler.core.backfill.backfill import FOREVER_MS
from scheduler.core.columns import Bools, Ints
from scheduler.core.forecast.calibration import learn
from scheduler.core.forecast.forecast import RunTimes, points_of
from scheduler.simulator.pool_forecast import PoolState, pool_range
from scheduler.simulator.pool_replay import replay
from scheduler.simulator.predicted_replay import replay_unlimited
from scheduler.simulator.workload import JobColumns, read_swf

#: Of the jobs of a log that had to wait, about this number is forecast as they arrive, at even distances.
SAMPLES: Final = 1000
#: As the portal does: the days and rows of run times and outcomes that are read, and how often those are read again.
_DAYS_MS: Final = 30 * 86_400_000
_MOST_RUNS: Final = 20_000
_MOST_OUTCOMES: Final = 5_000
_READ_AGAIN_MS: Final = 300_000
#: GPUs of the pool in which the Philly trace is replayed: 95 % of what its jobs ask for on average.
PHILLY_GPUS: Final = 1152
_MINUTE_MS: Final = 60_000


@dataclass(frozen=True)
class Replayed:
    """A log and its schedule; `expected_ms` and `planned_ms` are predictions of jobs without limits (else 0)."""

    processors: int
    jobs: JobColumns
    limit_ms: Ints
    started_ms: Ints
    expected_ms: Ints
    planned_ms: Ints

    __hash__ = None  # type: ignore[assignment]

    @property
    def waited_ms(self) -> Ints:
        return self.started_ms - self.jobs.submitted_ms

    def state_at(self, row: int) -> PoolState:
        """What ran and waited just after this job arrived; it is the last of the state."""
        now_ms = self.jobs.submitted_ms.item(row)
        started, ends = self.started_ms[:row], self.started_ms[:row] + self.jobs.run_ms[:row]
        run = np.flatnonzero((started <= now_ms) & (ends > now_ms))
        run = run[np.argsort(started[run], kind="stable")]
        rows = np.concatenate([run, np.flatnonzero(started > now_ms), [row]])
        predicted = self.planned_ms[rows].copy()
        predicted[len(run) :] = self.expected_ms[row]
        jobs = self.jobs
        return PoolState(
            now_ms, self.processors, jobs.id[rows], jobs.user_id[rows], jobs.processors[rows], self.limit_ms[rows],
            predicted, self.started_ms[run],
        )  # fmt: skip


class History:
    """How long the jobs ran that ended before a moment, as the portal reads them."""

    def __init__(self, log: Replayed) -> None:
        jobs = log.jobs
        self._unlimited = bool((log.limit_ms == FOREVER_MS).any())
        parts = jobs.run_ms * 1000 // np.maximum(log.limit_ms, 1)
        self._values = jobs.run_ms // 1000 if self._unlimited else np.minimum(parts, 1000)
        ends = log.started_ms + jobs.run_ms
        self._order = np.argsort(ends, kind="stable")
        self._ends, self._users = ends[self._order], jobs.user_id
        self._read_ms, self._times = -_READ_AGAIN_MS, RunTimes()

    def at(self, now_ms: int) -> RunTimes:
        """The run times of the last 30 days, at most five minutes old."""
        if now_ms - self._read_ms >= _READ_AGAIN_MS:
            begin, end = np.searchsorted(self._ends, [now_ms - _DAYS_MS, now_ms], side="right").tolist()
            rows = self._order[max(begin, end - _MOST_RUNS) : end]
            values, users = self._values[rows], self._users[rows]
            order = np.argsort(users, kind="stable")
            persons, first = np.unique(users[order], return_index=True)
            apart = np.split(values[order], first[1:])
            each = {
                int(person): points_of(some.tolist()) for person, some in zip(persons, apart, strict=False)
            }
            every = points_of(values.tolist())
            self._times = (
                RunTimes(seconds_of_user=each, seconds=every)
                if self._unlimited
                else RunTimes(parts_of_user=each, parts=every)
            )
            self._read_ms = now_ms
        return self._times


def measure(name: str, log: Replayed) -> Figures:
    """The figures of one log: ranges of sampled jobs as they arrive, calibrated by the outcomes known until then."""
    waited = np.flatnonzero(log.waited_ms > 0)
    rows = waited[:: max(len(waited) // SAMPLES, 1)]
    history = History(log)
    found = [
        pool_range(state, len(state.needs) - 1, history.at(state.now_ms))
        for state in (log.state_at(row) for row in rows.tolist())
    ]
    known = np.array([first is not None and last is not None for first, _, last in found])
    rows, now_ms = rows[known], log.jobs.submitted_ms[rows[known]]
    raw = np.array(
        [(one[0], one[2]) for one, is_known in zip(found, known.tolist(), strict=True) if is_known]
    )
    ranges = _calibrated(raw, now_ms, log.started_ms[rows])
    at_once = 1 - len(waited) / len(log.jobs)
    inside = float(_inside(ranges, log.started_ms[rows]).mean())
    width = ranges[:, 1] - ranges[:, 0]
    yield f"start_inside_percent_{name}", 100 * inside
    yield (
        f"start_inside_percent_of_all_{name}",
        100 * (at_once + (1 - at_once) * inside * float(known.mean())),
    )
    yield f"start_at_once_percent_{name}", 100 * at_once
    yield f"start_range_known_percent_{name}", 100 * float(known.mean())
    yield f"start_range_minutes_{name}", float(np.median(width)) / _MINUTE_MS
    yield f"start_range_by_wait_{name}", float(np.median(width / log.waited_ms[rows]))
    yield f"start_inside_percent_raw_{name}", 100 * float(_inside(raw, log.started_ms[rows]).mean())
    yield f"start_range_minutes_raw_{name}", float(np.median(raw[:, 1] - raw[:, 0])) / _MINUTE_MS
    note(f"{name}: {len(found):,} of {len(waited):,} jobs that waited were forecast as they arrived")


def _calibrated(raw: Ints, now_ms: Ints, started_ms: Ints) -> Ints:
    """The ranges as they would have been shown: each calibrated by the starts before its moment."""
    order = np.argsort(started_ms, kind="stable")
    starts, ranges = started_ms[order], raw.copy()
    for place, at_ms in enumerate(now_ms.tolist()):
        begin, end = np.searchsorted(starts, [at_ms - _DAYS_MS, at_ms], side="right").tolist()
        past = order[max(begin, end - _MOST_OUTCOMES) : end]
        calibration = learn(
            raw[past, 0] - now_ms[past], raw[past, 1] - now_ms[past], started_ms[past] - now_ms[past]
        )
        ranges[place] = calibration.range_ms(int(raw[place, 0]), int(raw[place, 1]), at_ms)
    return ranges


def _inside(ranges: Ints, started_ms: Ints) -> Bools:
    """Whether each start is in its range, by the minutes that people see."""
    minute = started_ms // _MINUTE_MS
    within: Bools = (minute >= ranges[:, 0] // _MINUTE_MS) & (minute <= -(-ranges[:, 1] // _MINUTE_MS))
    return within


@benchmark(*(f"start_inside_percent_{log}" for log in LOGS))
def start_ranges() -> Figures:
    """Five logs under EASY: the range of about 1,000 jobs of each as they arrive, and whether they start inside."""
    for name in LOGS:
        workload = read_swf(trace_folder("swf-easy-gold") / f"{name}.easy.swf.gz")
        nothing: Ints = np.zeros(len(workload.jobs), dtype=np.int64)
        jobs = workload.jobs
        yield from measure(
            name,
            Replayed(workload.processors, jobs, jobs.limit_ms, replay(workload).started_ms, nothing, nothing),
        )


@benchmark("start_inside_percent_Philly")
def start_ranges_philly() -> Figures:
    """The Philly trace, whose jobs have no limits, in a pool of 1,152 GPUs: about 1,000 ranges as jobs arrive."""
    jobs = read_philly()
    found = replay_unlimited(PHILLY_GPUS, jobs)
    limits: Ints = np.full(len(jobs), FOREVER_MS, dtype=np.int64)
    yield from measure(
        "Philly",
        Replayed(PHILLY_GPUS, jobs, limits, found.started_ms, found.expected_ms, found.planned_ms),
    )


def read_philly() -> JobColumns:
    """The jobs of the trace that ask for GPUs; its times are minutes, and a virtual cluster counts as a person."""
    path = trace_folder("philly") / "chronus_trace_job_Philly_SLO.csv.gz"
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        table = [row for row in csv.DictReader(lines) if int(row["num_gpu"]) > 0]
    persons = sorted({row["user"] for row in table})
    return JobColumns.from_rows(
        sorted(
            (
                (int(row["job_id"]) + 1, int(row["submit_time"]) * _MINUTE_MS, int(row["duration"]) * _MINUTE_MS, 0,
                 int(row["num_gpu"]), persons.index(row["user"]))
                for row in table
            ),
            key=lambda row: (row[1], row[0]),
        )
    )  # fmt: skip
