"""Conservative backfill with reservations that jobs keep: the rules under which published figures were measured.

Muster plans all jobs anew in each cycle (`docs/explanation/conservative.md` compares the two), so no policy of the
product needs this replay.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right

import numpy as np

from scheduler.simulator.pool_replay import Schedule
from scheduler.simulator.workload import Workload, WorkloadError


def replay_reserved(workload: Workload, *, clairvoyant: bool = False) -> Schedule:
    """Run a log through one pool of processors, with a reservation for every job from its arrival on.

    A job that arrives gets the first time at which it fits beside all reservations. At each end the waiting jobs move
    forward in order of arrival: each releases its own reservation while those of all others stay, and takes the
    first time that fits, which is never a later one. So no job starts later than its first reservation.
    `clairvoyant` reserves run times instead of limits.

    Arrivals come before ends of the same moment; of ends of one moment the job that started last ends first, and
    after each end the waiting jobs move forward. Raises WorkloadError for a job larger than the pool.
    """
    jobs = workload.jobs
    if len(jobs) and int(jobs.processors.max()) > workload.processors:
        raise WorkloadError(
            f"{workload.name} holds jobs that need more than its {workload.processors} processors"
        )
    arrivals, runs, needs = jobs.submitted_ms.tolist(), jobs.run_ms.tolist(), jobs.processors.tolist()
    lengths = runs if clairvoyant else jobs.limit_ms.tolist()
    free = _FreeProcessors(workload.processors)
    starts: list[int] = [0] * len(jobs)  # when each job starts or started
    waiting: list[int] = []
    ends: list[tuple[int, int, int]] = []  # (end, minus the number of its start, row) of running jobs
    arrived = ended = begun = 0
    while arrived < len(arrivals) or ends:
        if arrived < len(arrivals) and (not ends or arrivals[arrived] <= ends[0][0]):
            now_ms = arrivals[arrived]
            free.forget_before(now_ms)
            starts[arrived] = free.reserve(needs[arrived], lengths[arrived])
            waiting.append(arrived)
            arrived += 1
        else:
            now_ms, _, row = heapq.heappop(ends)
            ended += 1
            free.forget_before(now_ms)
            free.change(now_ms, starts[row] + lengths[row], needs[row])
            for row in waiting:
                free.change(starts[row], starts[row] + lengths[row], needs[row])
                starts[row] = free.reserve(needs[row], lengths[row])
        for row in waiting:
            if starts[row] <= now_ms:
                begun += 1
                heapq.heappush(ends, (now_ms + runs[row], -begun, row))
        waiting = [row for row in waiting if starts[row] > now_ms]
    return Schedule(np.array(starts, dtype=np.int64), passes=arrived + ended)


class _FreeProcessors:
    """How many processors are free from each moment until the next."""

    def __init__(self, processors: int) -> None:
        self._moments = [0]
        self._free = [processors]

    def forget_before(self, now_ms: int) -> None:
        """Drop the moments before now, and those at which nothing changes."""
        place = bisect_right(self._moments, now_ms) - 1
        moments, free = [now_ms], [self._free[place]]
        for moment, count in zip(self._moments[place + 1 :], self._free[place + 1 :], strict=True):
            if count != free[-1]:
                moments.append(moment)
                free.append(count)
        self._moments, self._free = moments, free

    def change(self, from_ms: int, until_ms: int, more: int) -> None:
        """Add `more` (or take, where it is negative) between two moments."""
        if until_ms <= from_ms:
            return
        for place in range(self._place(from_ms), self._place(until_ms)):
            self._free[place] += more

    def reserve(self, need: int, length_ms: int) -> int:
        """Take `need` processors for `length_ms` as early as possible; returns the start."""
        moments, free = self._moments, self._free
        place = 0
        while True:
            until = moments[place] + length_ms
            last = place
            while last < len(moments) and free[last] >= need and (moments[last] < until or last == place):
                last += 1
            if last == len(moments) or moments[last] >= until:
                break
            place = last + 1 if free[last] < need else last
        at_ms = moments[place]
        self.change(at_ms, at_ms + length_ms, -need)
        return at_ms

    def _place(self, at_ms: int) -> int:
        """The index of a moment, which is added where it is not there."""
        place = bisect_left(self._moments, at_ms)
        if place == len(self._moments) or self._moments[place] != at_ms:
            self._moments.insert(place, at_ms)
            self._free.insert(place, self._free[place - 1])
        return place
