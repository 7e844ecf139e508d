"""The replay of conservative backfill that keeps its reservations: nobody starts later than first told."""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right

import numpy as np

from scheduler.simulator.pool import Progress, Schedule
from scheduler.simulator.workload import Workload, WorkloadError


def replay_kept(
    workload: Workload, *, clairvoyant: bool = False, progress: Progress = lambda ended: None
) -> Schedule:
    """Run a log through one pool of processors, with a reservation for every job from the moment it arrives.

    A job that arrives gets the first time at which it fits beside all reservations. At each end the jobs that
    wait are moved forward in the order they came: each gives its own reservation back while those of all others
    stay, and takes the first that fits, which is never a later one. `pool.replay` with a promise to everybody
    plans all of them from nothing instead, and so may make one later.

    Arrivals come before ends of the same moment; of these the last to start ends first, and each is followed
    by a round of moves.
    """
    jobs = workload.jobs
    if len(jobs) and int(jobs.processors.max()) > workload.processors:
        raise WorkloadError(
            f"{workload.name} holds jobs that need more than its {workload.processors} processors"
        )
    arrivals, runs, needs = jobs.submitted_ms.tolist(), jobs.run_ms.tolist(), jobs.processors.tolist()
    lengths = runs if clairvoyant else jobs.limit_ms.tolist()
    steps = _Steps(workload.processors)
    at: list[int] = [0] * len(jobs)  # of each job, when it starts or started
    waiting: list[int] = []
    ends: list[tuple[int, int, int]] = []  # (end, how many started before, less than 0; row) of what runs
    arrived = ended = turn = 0
    while arrived < len(arrivals) or ends:
        if arrived < len(arrivals) and (not ends or arrivals[arrived] <= ends[0][0]):
            now_ms = arrivals[arrived]
            steps.begin(now_ms)
            at[arrived] = steps.reserve(needs[arrived], lengths[arrived])
            waiting.append(arrived)
            arrived += 1
        else:
            now_ms, _, row = heapq.heappop(ends)
            steps.begin(now_ms)
            steps.change(now_ms, at[row] + lengths[row], needs[row])
            ended += 1
            if ended % 1000 == 0:
                progress(ended)
            for row in waiting:
                steps.change(at[row], at[row] + lengths[row], needs[row])
                at[row] = steps.reserve(needs[row], lengths[row])
        left = []
        for row in waiting:
            if at[row] > now_ms:
                left.append(row)
                continue
            turn += 1
            heapq.heappush(ends, (now_ms + runs[row], -turn, row))
        waiting = left
    return Schedule(np.array(at, dtype=np.int64), passes=arrived + ended)


class _Steps:
    """How many processors are free from each moment on, until the next."""

    def __init__(self, processors: int) -> None:
        self._moments = [0]
        self._free = [processors]

    def begin(self, now_ms: int) -> None:
        """Forget what is over, and the moments at which nothing changes."""
        place = bisect_right(self._moments, now_ms) - 1
        moments, free = [now_ms], [self._free[place]]
        for moment, count in zip(self._moments[place + 1 :], self._free[place + 1 :], strict=True):
            if count != free[-1]:
                moments.append(moment)
                free.append(count)
        self._moments, self._free = moments, free

    def change(self, from_ms: int, until_ms: int, more: int) -> None:
        if until_ms <= from_ms:
            return
        for place in range(self._place(from_ms), self._place(until_ms)):
            self._free[place] += more

    def reserve(self, need: int, length_ms: int) -> int:
        """Take the first place that is free for so long; answers when it begins."""
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
        """Where a moment stands; it is there from now on."""
        place = bisect_left(self._moments, at_ms)
        if place == len(self._moments) or self._moments[place] != at_ms:
            self._moments.insert(place, at_ms)
            self._free.insert(place, self._free[place - 1])
        return place
