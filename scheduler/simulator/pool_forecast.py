"""The forecast of starts in one pool of processors: the futures of `scheduler.core.forecast`, without nodes."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np

from scheduler.core.backfill.backfill import FOREVER_MS, BackfillLimits, run_backfill
from scheduler.core.backfill.timeline import Pool
from scheduler.core.columns import Ints
from scheduler.core.forecast.forecast import (
    FARTHEST_MS,
    LEAST_STEP_MS,
    STEPS,
    Course,
    RunTimes,
    in_order,
)
from scheduler.core.snapshot.likely_ends import doubled
from scheduler.simulator.pool_replay import EASY


@dataclass(frozen=True, slots=True)
class PoolState:
    """What runs and waits in a pool at a moment. Columns of jobs: those that run first, then those that wait, in order.

    `limit_ms` is FOREVER_MS for a job without a time limit, and `predicted_ms` how long such a job is expected to run.
    """

    now_ms: int
    processors: int
    job_id: Ints
    user_id: Ints
    needs: Ints
    limit_ms: Ints
    predicted_ms: Ints
    started_ms: Ints  # of the jobs that run alone

    __hash__ = None  # type: ignore[assignment]


def pool_range(
    state: PoolState, wanted: int, history: RunTimes, *, limits: BackfillLimits = EASY, most_cycles: int = 400
) -> tuple[int | None, int | None, int | None]:
    """P10, P50 and P90 of the start of the waiting job of row `wanted`, in ms; None = unknown.

    The same as `forecast` finds in a cluster of one node, first in first out (there is a test of it), in a small part
    of its time.
    """
    latest, middle, earliest = (
        _Future(state, history, course).start_of(wanted, limits, most_cycles)
        for course in (Course.LIMITS, Course.TYPICAL, Course.SHORT)
    )
    return in_order(earliest, middle, latest)


class _Future:
    """One future of a pool while it is played."""

    def __init__(self, state: PoolState, history: RunTimes, course: Course) -> None:
        self._state, self._history, self._course = state, history, course
        self._planned: Ints = np.where(state.limit_ms == FOREVER_MS, state.predicted_ms, state.limit_ms)
        self._pool = Pool(state.processors, state.needs, self._planned)
        self._events: list[tuple[int, int, int]] = []  # (end, number of its start, row)
        self._expected: dict[int, int] = {}  # of rows that run, the end that plans count with
        self._now_ms, self._begun = state.now_ms, 0
        #: Rows that run without a limit, and when they started: their expected ends move.
        self._unlimited: dict[int, int] = {}
        running = slice(0, len(state.started_ms))
        planned, elapsed = self._planned[running], state.now_ms - state.started_ms
        factors = np.where(state.limit_ms[running] == FOREVER_MS, doubled(planned, elapsed), 1)
        expected_ms = (state.started_ms + planned * factors).tolist()
        for row, started_ms in enumerate(state.started_ms.tolist()):
            self._pool.hold(row, expected_ms[row])
            self._run(row, started_ms, expected_ms[row])

    def start_of(self, wanted: int, limits: BackfillLimits, most_cycles: int) -> int | None:
        """When the job of this row starts; None = not within the cycles and days that are looked at."""
        state, begin_ms = self._state, self._state.now_ms
        waiting = np.arange(len(state.started_ms), len(state.needs))
        for cycle in range(most_cycles):
            self._move_expected_ends()
            self._pool.begin(self._now_ms)
            lengths = state.limit_ms[waiting]
            ends_ms = np.where(lengths == FOREVER_MS, FOREVER_MS, lengths + self._now_ms)
            run_backfill(waiting, ends_ms, self._pool, limits)
            started = self._pool.started
            if wanted in started:
                return self._now_ms
            for row in started:
                self._run(row, self._now_ms, self._now_ms + self._planned.item(row))
            if started:
                waiting = waiting[~np.isin(waiting, started)]
            if not self._events or (next_ms := self._events[0][0]) > begin_ms + FARTHEST_MS:
                return None
            self._end(next_ms + int(STEPS[min(3 * cycle // most_cycles, 2)] * (next_ms - begin_ms)))
        return None

    def _run(self, row: int, started_ms: int, expected_ms: int) -> None:
        state, limit_ms = self._state, self._state.limit_ms.item(row)
        endless = limit_ms == FOREVER_MS
        length = self._history.course_ms(
            self._course,
            state.job_id.item(row),
            state.user_id.item(row),
            0,
            limit_ms,
            self._now_ms - started_ms,
            expected_ms - started_ms if endless else 0,
        )
        if endless:
            self._unlimited[row] = started_ms
        end_ms = expected_ms if length is None else started_ms + length
        self._expected[row] = expected_ms
        heapq.heappush(self._events, (max(end_ms, self._now_ms + LEAST_STEP_MS), self._begun, row))
        self._begun += 1

    def _end(self, through_ms: int) -> None:
        while self._events and self._events[0][0] <= through_ms:
            self._now_ms, _, row = heapq.heappop(self._events)
            self._pool.release(row, self._expected.pop(row))
            self._unlimited.pop(row, None)

    def _move_expected_ends(self) -> None:
        """Jobs without a limit that have outlived their prediction are expected to run twice as long."""
        for row, started_ms in self._unlimited.items():
            before = self._expected[row]
            if before <= self._now_ms:
                planned = self._planned[row : row + 1]
                factor = doubled(planned, np.array([self._now_ms - started_ms]))
                after = started_ms + int((planned * factor).item())
                self._pool.lengthen(row, before, after)
                self._expected[row] = after
