"""Timeline: what will be free when, from the expected ends of running jobs and from promises."""

from __future__ import annotations

from bisect import bisect_right, insort

import numpy as np

from scheduler.core.backfill import FOREVER_MS, Outcome
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
        self._left: list[int] = [size]  # at most so much for a job of each level; [0] = free now
        self._promised: list[tuple[int, int, int]] = []  # (from, until, amount), the first due first

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
        self.started = []
        return self._left[0]

    def release(self, row: int, end_ms: int) -> None:
        """A job that was expected to end then has ended."""
        entry = (end_ms, self._needs[row])
        place = bisect_right(self._ends, entry) - 1
        del self._ends[place]
        self._held -= self._needs[row]

    # Room (`backfill.Room`).

    def closed(self, rows: Ints, levels: Ints, *, asking: bool) -> Bools:
        if asking:
            return np.zeros(len(rows), dtype=np.bool_)
        needs = self._need_column[rows]
        if len(self._left) == 1:
            return needs > self._left[0]
        return needs > np.array(self._left)[levels]

    def start(self, row: int, level: int) -> Outcome:
        need = self._needs[row]
        if need > self._left[level]:
            return Outcome.NO_ROOM if need <= self.size else Outcome.BARRED
        end_ms = self._now_ms + self._lengths[row]
        insort(self._ends, (end_ms, need))
        self._held += need
        self.started.append(row)
        if not self._promised:
            self._left[0] -= need
        else:
            # Of each promise met, and of now, so much less is left.
            after = [self._left[0] - need]
            for place, left in enumerate(self._spare):
                self._spare[place] = left - need if place < level else left
                after.append(min(after[-1], self._spare[place]))
            self._left = after
        return Outcome.STARTED

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
        length = self._lengths[row]
        moments = sorted(
            {end for end, _ in self._ends if end > self._now_ms} | {until for _, until, _ in self._promised}
        )
        for at_ms in moments:
            met = [start for start, _, _ in self._promised if at_ms < start < at_ms + length]
            if all(self._free_at(moment) >= need for moment in (at_ms, *met)):
                return at_ms
        return None

    def promise(self, row: int, at_ms: int, place: int) -> None:
        need, until = self._needs[row], min(at_ms + self._lengths[row], FOREVER_MS)
        self._promised.insert(place, (at_ms, until, need))
        # What is left beside all promises at the start of each.
        self._spare = [self._free_at(start) for start, _, _ in self._promised]
        self._left = self._left[:1]
        for spare in self._spare:
            self._left.append(min(self._left[-1], spare))

    def _free_at(self, at_ms: int) -> int:
        ended = sum(amount for end_ms, amount in self._ends if end_ms <= at_ms)
        promised = sum(amount for start, until, amount in self._promised if start <= at_ms < until)
        return self.size - self._held + ended - promised
