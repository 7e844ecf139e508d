"""The fast replay of a log through one pool of processors, with the backfill passes of the planner."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from scheduler.core.backfill.backfill import BackfillLimits, run_backfill
from scheduler.core.backfill.timeline import Pool
from scheduler.core.columns import Ints
from scheduler.simulator.workload import Workload

#: Called now and then with the number of jobs that have ended.
Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Schedule:
    """When each job of a workload started, in the order of its rows."""

    started_ms: Ints
    passes: int = 0

    __hash__ = None  # type: ignore[assignment]


EASY = BackfillLimits(promises=1)


def replay(
    workload: Workload,
    limits: BackfillLimits = EASY,
    *,
    clairvoyant: bool = False,
    every_arrival: bool | None = None,
    progress: Progress = lambda ended: None,
) -> Schedule:
    """Run a log through one pool of processors.

    Arrivals come before ends of the same moment. A backfill pass follows each end, and each arrival of a job that
    would fit now. With `every_arrival` a pass follows every arrival; that is the default where short jobs go first,
    since a new job may then be the next. `clairvoyant` plans with run times instead of requested times.
    """
    jobs = workload.jobs
    lengths = jobs.run_ms if clairvoyant else jobs.limit_ms
    pool = Pool(workload.processors, jobs.processors, lengths)
    always = limits.shortest_first if every_arrival is None else every_arrival
    arrivals, runs, needs = jobs.submitted_ms.tolist(), jobs.run_ms.tolist(), jobs.processors.tolist()
    planned = lengths.tolist()
    started = np.full(len(jobs), -1, dtype=np.int64)
    waiting = np.zeros(len(jobs), dtype=np.int64)
    count = passes = ended = arrived = begun = 0
    ends: list[tuple[int, int, int, int]] = []  # (end, number of its start, row, planned end) of running jobs
    while arrived < len(arrivals) or ends:
        if arrived < len(arrivals) and (not ends or arrivals[arrived] <= ends[0][0]):
            now_ms = arrivals[arrived]
            waiting[count] = arrived
            count += 1
            arrived += 1
            if pool.begin(now_ms) < needs[arrived - 1] and not always:
                continue
        else:
            now_ms, _, row, expected_ms = heapq.heappop(ends)
            pool.release(row, expected_ms)
            ended += 1
            if ended % 1000 == 0:
                progress(ended)
            if not count:
                continue
            pool.begin(now_ms)
        rows = waiting[:count]
        run_backfill(rows, now_ms + lengths[rows], pool, limits)
        passes += 1
        if pool.started:
            for row in pool.started:
                started[row] = now_ms
                heapq.heappush(ends, (now_ms + runs[row], begun, row, now_ms + planned[row]))
                begun += 1
            left = rows[started[rows] < 0]
            count = len(left)
            waiting[:count] = left
    return Schedule(started, passes)
