"""Replays of a log by predicted run times: EASY++ where jobs have time limits, and EASY where they have none.

EASY++ predicts from the last two jobs of each person, after D. Tsafrir, Y. Etsion, D. G. Feitelson, "Backfilling using
system-generated predictions rather than user runtime estimates", IEEE TPDS 18(6), 2007: a prediction is at most the
requested time, one that proved too short is lengthened in steps while the job runs, and of the jobs behind the first
that waits the shortest go first.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from scheduler.core.backfill.backfill import FOREVER_MS, BackfillLimits, run_backfill
from scheduler.core.backfill.timeline import Pool
from scheduler.core.columns import Ints
from scheduler.core.forecast.runtimes import RECENT, predict
from scheduler.simulator.pool_replay import EASY
from scheduler.simulator.workload import JobColumns, Workload

#: What is added to a prediction in all, in ms, each time that it proved too short: 1 minute to 100 hours.
STEPS_MS: Final = tuple(
    minutes * 60_000 for minutes in (0, 1, 5, 15, 30, 60, 120, 300, 600, 1200, 3000, 6000)
)
SJBF: Final = BackfillLimits(promises=1, shortest_first=True)
#: Events of one moment, in this order.
_TOO_SHORT, _ARRIVES, _ENDS = range(3)


@dataclass(frozen=True, slots=True)
class PredictedSchedule:
    """Of each job when it started, and how long it was expected to run as it arrived."""

    started_ms: Ints
    predicted_ms: Ints
    corrections: int

    __hash__ = None  # type: ignore[assignment]


@dataclass(slots=True)
class _LastTwo:
    """The run times of the last two jobs of each person that have ended."""

    runs: dict[int, tuple[int, int]] = field(
        default_factory=dict
    )  # the last, and the one before it (-1 = none)

    def expect(self, user: int, limit_ms: int) -> int:
        last, before = self.runs.get(user, (-1, -1))
        if before < 0:
            return limit_ms
        return min((last // 1000 + before // 1000) // 2 * 1000, limit_ms)

    def ended(self, user: int, run_ms: int) -> None:
        self.runs[user] = (run_ms, self.runs.get(user, (-1, -1))[0])


def replay_predicted(workload: Workload, limits: BackfillLimits = SJBF) -> PredictedSchedule:
    """Run a log through one pool of processors by predictions. A pass follows each arrival and each end."""
    jobs, last = workload.jobs, _LastTwo()
    lengths = jobs.limit_ms.copy()
    predicted = np.zeros(len(jobs), dtype=np.int64)
    pool = Pool(workload.processors, jobs.processors, lengths)
    users, runs, longest = jobs.user_id.tolist(), jobs.run_ms.tolist(), jobs.limit_ms.tolist()
    started = np.full(len(jobs), -1, dtype=np.int64)
    corrected: dict[int, int] = {}
    waiting: Ints = np.zeros(0, dtype=np.int64)
    events = [(at_ms, _ARRIVES, row, row) for row, at_ms in enumerate(jobs.submitted_ms.tolist())]
    begun = len(events)
    while events:
        now_ms, kind, _, row = heapq.heappop(events)
        if kind == _TOO_SHORT:
            times = corrected[row] = corrected.get(row, 0) + 1
            before, most = int(lengths[row]), min(times, len(STEPS_MS) - 1)
            lengths[row] = min(before + STEPS_MS[most] - STEPS_MS[most - 1], longest[row])
            pool.lengthen(row, started.item(row) + before, started.item(row) + lengths.item(row))
            _note_end_of_prediction(events, row, started.item(row), lengths.item(row), runs[row])
            continue
        if kind == _ARRIVES:
            lengths[row] = predicted[row] = last.expect(users[row], longest[row])
            pool.expect(row, lengths.item(row))
            waiting = np.append(waiting, row)
        else:
            last.ended(users[row], runs[row])
            pool.release(row, started.item(row) + lengths.item(row))
        if not len(waiting):
            continue
        pool.begin(now_ms)
        run_backfill(waiting, now_ms + lengths[waiting], pool, limits)
        for one in pool.started:
            started[one] = now_ms
            begun += 1
            heapq.heappush(events, (now_ms + runs[one], _ENDS, begun, one))
            _note_end_of_prediction(events, one, now_ms, lengths.item(one), runs[one])
        if pool.started:
            waiting = waiting[started[waiting] < 0]
    return PredictedSchedule(started, predicted, sum(corrected.values()))


def _note_end_of_prediction(
    events: list[tuple[int, int, int, int]], row: int, started_ms: int, length_ms: int, run_ms: int
) -> None:
    """If the job runs longer than that, the prediction is corrected when its time is over."""
    if length_ms < run_ms:
        heapq.heappush(events, (started_ms + length_ms, _TOO_SHORT, row, row))


#: What is expected of a job whose person has no two earlier runs: the default of UNLIMITED_JOB_SECONDS.
UNKNOWN_MS: Final = 86_400_000


@dataclass(frozen=True, slots=True)
class UnlimitedSchedule:
    """Of each job when it started, and how long it was expected to run as it arrived and as it started."""

    started_ms: Ints
    expected_ms: Ints
    planned_ms: Ints

    __hash__ = None  # type: ignore[assignment]


def replay_unlimited(
    processors: int, jobs: JobColumns, limits: BackfillLimits = EASY, *, unknown_ms: int = UNKNOWN_MS
) -> UnlimitedSchedule:
    """Run jobs without time limits as the planner does: only beside the reserved start, whatever is predicted.

    A prediction is that of `predict` from the last runs of the same person. A job that outlives its prediction is
    expected to run twice as long, as in `likely_ends_ms`. A pass follows each event.
    """
    planned: list[int] = [unknown_ms] * len(jobs)
    expected: Ints = np.full(len(jobs), unknown_ms, dtype=np.int64)
    pool = Pool(processors, jobs.processors, np.array(planned, dtype=np.int64))
    last: dict[int, deque[float]] = defaultdict(lambda: deque(maxlen=RECENT))
    of_user: dict[int, int] = {}
    users, runs = jobs.user_id.tolist(), jobs.run_ms.tolist()
    started: Ints = np.full(len(jobs), -1, dtype=np.int64)
    factor: dict[int, int] = {}
    waiting: Ints = np.zeros(0, dtype=np.int64)
    events = [(at_ms, _ARRIVES, row, row) for row, at_ms in enumerate(jobs.submitted_ms.tolist())]
    begun = len(events)
    while events:
        now_ms, kind, _, row = heapq.heappop(events)
        if kind == _TOO_SHORT:
            before = started.item(row) + planned[row] * factor[row]
            factor[row] *= 2
            after = started.item(row) + planned[row] * factor[row]
            pool.lengthen(row, before, after)
            if after < started.item(row) + runs[row]:
                heapq.heappush(events, (after, _TOO_SHORT, row, row))
            continue
        if kind == _ARRIVES:
            expected[row] = of_user.get(users[row], unknown_ms)
            waiting = np.append(waiting, row)
        else:
            pool.release(row, started.item(row) + planned[row] * factor.pop(row))
            last[users[row]].appendleft(runs[row] / 1000)
            prediction = predict(list(last[users[row]]))
            if prediction is not None:
                of_user[users[row]] = prediction.planned_seconds * 1000
        if not len(waiting):
            continue
        for one in waiting.tolist():
            planned[one] = of_user.get(users[one], unknown_ms)
            pool.expect(one, planned[one])
        pool.begin(now_ms)
        run_backfill(waiting, np.full(len(waiting), FOREVER_MS), pool, limits)
        for one in pool.started:
            started[one], factor[one] = now_ms, 1
            begun += 1
            heapq.heappush(events, (now_ms + runs[one], _ENDS, begun, one))
            if planned[one] < runs[one]:
                heapq.heappush(events, (now_ms + planned[one], _TOO_SHORT, one, one))
        if pool.started:
            waiting = waiting[started[waiting] < 0]
    return UnlimitedSchedule(started, expected, np.array(planned, dtype=np.int64))
