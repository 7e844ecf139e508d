"""Timeline: free processors over time, from the expected ends of running jobs and from expected starts."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort

import numpy as np

from scheduler.core.backfill.backfill import FOREVER_MS, StartResult
from scheduler.core.columns import Bools, Ints


class Pool:
    """A timeline of one countable supply (the processors of a machine without nodes), and room for a pass.

    What runs is kept between passes. `free`, and what the promises of a pass leave, are of one moment.
    """

    def __init__(self, size: int, needs: Ints, lengths_ms: Ints) -> None:
        self.size = size
        self.started: list[int] = []
        self._needs: list[int] = needs.tolist()
        self._need_column = needs
        self._lengths: list[int] = lengths_ms.tolist()
        self._ends: list[tuple[int, int]] = []  # (expected end, amount) of what runs, the first to end first
        self._held = 0
        self._now_ms = 0
        self._left: list[int] = [size]  # what a job of each level may take; [0] = free now
        self._promised: list[tuple[int, int, int]] = []  # (from, until, amount), the first due first
        self._profile: _Steps | None = None

    # What runs.

    def begin(self, now_ms: int) -> int:
        """Open a pass: what should have ended by now is free. Answers how much that is."""
        self._now_ms = now_ms
        overdue = 0
        for end_ms, amount in self._ends:
            if end_ms > now_ms:
                break
            overdue += amount
        self._left = [self.size - self._held + overdue]
        self._promised = []
        self._profile = None
        self.started = []
        return self._left[0]

    def release(self, row: int, end_ms: int) -> None:
        """A job that was expected to end then has ended."""
        entry = (end_ms, self._needs[row])
        place = bisect_right(self._ends, entry) - 1
        del self._ends[place]
        self._held -= self._needs[row]

    def hold(self, row: int, end_ms: int) -> None:
        """A job that started before the first pass runs, and is expected to end then."""
        insort(self._ends, (end_ms, self._needs[row]))
        self._held += self._needs[row]

    def expect(self, row: int, length_ms: int) -> None:
        """Take a job that has not started to run this long."""
        self._lengths[row] = length_ms

    def lengthen(self, row: int, end_ms: int, new_end_ms: int) -> None:
        """A running job that was expected to end then is expected to end later."""
        self.release(row, end_ms)
        self.hold(row, new_end_ms)

    # Room (`backfill.Room`).

    def closed(self, rows: Ints, levels: Ints, *, asking: bool) -> Bools:
        if asking:
            return np.zeros(len(rows), dtype=np.bool_)
        needs = self._need_column[rows]
        if len(self._left) == 1:
            return needs > self._left[0]
        return needs > np.array(self._left)[levels]

    def start(self, row: int, level: int) -> StartResult:
        need = self._needs[row]
        if need > self._left[level]:
            return StartResult.NO_ROOM if need <= self.size else StartResult.BARRED
        end_ms = self._now_ms + self._lengths[row]
        insort(self._ends, (end_ms, need))
        self._held += need
        self.started.append(row)
        if self._profile is not None:
            self._profile.take(self._now_ms, end_ms, need)
        if not self._promised:
            self._left[0] -= need
        else:
            # Of each reserved start met, and of now, less is left.
            after = [self._left[0] - need]
            for place, left in enumerate(self._spare):
                self._spare[place] = left - need if place < level else left
                after.append(min(after[-1], self._spare[place]))
            self._left = after
        return StartResult.STARTED

    def earliest_ms(self, row: int) -> int | None:
        need = self._needs[row]
        if need > self.size:
            return None
        if not self._promised:
            free = self._left[0]
            for end_ms, amount in self._ends:
                if end_ms > self._now_ms:
                    free += amount
                    if free >= need:
                        return end_ms
            return None
        return self._steps().earliest_ms(need, self._lengths[row])

    def reserve(self, row: int, at_ms: int, place: int) -> None:
        need, until = self._needs[row], min(at_ms + self._lengths[row], FOREVER_MS)
        # What is left beside all promises at the start of each.
        if self._promised:
            steps = self._steps()
            steps.take(at_ms, until, need)
            self._promised.insert(place, (at_ms, until, need))
            self._spare = [steps.free_at(start) for start, _, _ in self._promised]
        else:
            self._promised.append((at_ms, until, need))
            ended = sum([amount for end_ms, amount in self._ends if end_ms <= at_ms])
            self._spare = [self.size - self._held + ended - need]
        self._left = self._left[:1]
        for spare in self._spare:
            self._left.append(min(self._left[-1], spare))

    def _steps(self) -> _Steps:
        """What is free from now on; made for the second promise of a pass."""
        if self._profile is None:
            self._profile = _Steps(self._now_ms, self._left[0], self._ends)
            for from_ms, until_ms, need in self._promised:
                self._profile.take(from_ms, until_ms, need)
        return self._profile


class _Steps:
    """What is free over time: a step function of moments and what is free from each on."""

    def __init__(self, now_ms: int, free: int, ends: list[tuple[int, int]]) -> None:
        self._moments = [now_ms]
        self._free = [free]
        for end_ms, amount in ends:
            if end_ms > now_ms:
                free += amount
                if end_ms == self._moments[-1]:
                    self._free[-1] = free
                else:
                    self._moments.append(end_ms)
                    self._free.append(free)

    def take(self, from_ms: int, until_ms: int, need: int) -> None:
        begin, end = self._place(from_ms), self._place(until_ms)
        for place in range(begin, end):
            self._free[place] -= need

    def free_at(self, at_ms: int) -> int:
        return self._free[bisect_right(self._moments, at_ms) - 1]

    def earliest_ms(self, need: int, length_ms: int) -> int | None:
        """The first moment after now from which `need` is free for `length_ms`; None = never."""
        moments, free = self._moments, self._free
        place = 1
        while place < len(moments):
            until = moments[place] + length_ms
            last = place
            while last < len(moments) and moments[last] < until and free[last] >= need:
                last += 1
            if last == len(moments) or moments[last] >= until:
                return moments[place]
            place = last + 1
        return None

    def _place(self, at_ms: int) -> int:
        """Where a moment stands; it is there from now on."""
        place = bisect_left(self._moments, at_ms)
        if place == len(self._moments) or self._moments[place] != at_ms:
            self._moments.insert(place, at_ms)
            self._free.insert(place, self._free[place - 1])
        return place
