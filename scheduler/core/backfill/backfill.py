"""Backfill: later jobs into gaps, never so that an expected start ahead of them is delayed."""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Protocol

import numpy as np

from scheduler.core.columns import Bools, Ints
from scheduler.core.policy import Policy

#: An unknown end: later than every moment that can be named.
FOREVER_MS: Final = int(np.iinfo(np.int64).max)

#: Jobs that cannot fit are dropped from the order a number at a time: few at first and after each reserved start,
#: when most of what there is to learn is still unknown, then more and more.
_FEW: Final = 16
_MANY: Final = 4096


class StartResult(IntEnum):
    """The result of trying to start one job."""

    STARTED = 0
    NO_ROOM = 1  # only capacity is missing: a start may be reserved
    BARRED = 2  # a limit or its own request keeps it: no start may be reserved


@dataclass(frozen=True, slots=True)
class BackfillLimits:
    """How far a pass looks, and how many starts it reserves."""

    promises: int = 0  # jobs for which a start may be reserved; 0 = no backfill, first fit in order
    grace_ms: int = 0  # how much later a reserved start may become
    shortest_first: bool = False  # once all starts are reserved, the shortest go first
    scan: int = 0  # jobs looked at after that; 0 = all of them


@dataclass(frozen=True, slots=True)
class ReservedStart:
    """A job that cannot start now, and when it can if everything ends when it is expected to."""

    row: int
    at_ms: int
    until_ms: int  # jobs that end by then do not count as in its way


class CapacityModel(Protocol):
    """Something that jobs fit into: a pool of processors, or nodes with their devices.

    A *level* is how many of the reserved starts, in the order of their time, a job would still be running at: a
    job of level 0 needs capacity now only, one of level 2 must leave the first two what is reserved for these.
    """

    def closed(self, rows: Ints, levels: Ints, *, asking: bool) -> Bools:
        """Jobs known to get nothing; while `asking`, only those for which no start could be reserved."""
        ...

    def start(self, row: int, level: int) -> StartResult:
        """Start a job with all it asks for, or change nothing."""
        ...

    def earliest_ms(self, row: int) -> int | None:
        """When a job fits for its whole length, beside all reserved starts; None when that is never."""
        ...

    def reserve(self, row: int, at_ms: int, place: int) -> None:
        """Reserve a start for a job; `place` is its place among the reserved starts, the first due first."""
        ...


def limits_of(policy: Policy) -> BackfillLimits:
    """What a policy's backfill mode means for a pass."""
    if policy.backfill == "none":
        return BackfillLimits()
    return BackfillLimits(
        promises=1 if policy.backfill in {"easy", "aggressive"} else policy.backfill_promises,
        grace_ms=policy.backfill_delay_seconds * 1000 if policy.backfill == "aggressive" else 0,
        shortest_first=policy.backfill_order == "shortest",
        scan=policy.backfill_scan,
    )


def run_backfill(
    rows: Ints,
    ends_ms: Ints,
    capacity: CapacityModel,
    limits: BackfillLimits,
    *,
    promised_ms: Ints | None = None,
    wanted: Bools | None = None,
    given: Sequence[ReservedStart] = (),
) -> list[ReservedStart]:
    """Go through the jobs in order: start what fits and delays no reserved start; reserve starts for the first others.

    `ends_ms` is when each job would end if it started now. `promised_ms` is the start that was reserved for a job
    in an earlier pass (0 = none): grace counts from it, so that delays do not add up. `wanted` restricts reserved
    starts to some jobs besides the first (deadlines); None = any. `given` are the reserved starts of an earlier part
    of the order in the same pass; they are among those returned.
    """
    reserved = list(given)
    due = sorted(start.until_ms for start in reserved)  # of the reserved starts, ascending
    if reserved and len(reserved) >= limits.promises:
        rows, ends_ms = _rest(rows, ends_ms, 0, limits)
    levels = np.searchsorted(due, ends_ms) if due else np.zeros(len(rows), dtype=np.int64)
    position, chunk = 0, _FEW
    while position < len(rows):
        asking = len(reserved) < limits.promises
        chunk = min(chunk * 4, _MANY)
        some = rows[position : position + chunk]
        at_level = levels[position : position + chunk]
        places = np.flatnonzero(~capacity.closed(some, at_level, asking=asking))
        following = position + len(some)
        for place, row, level in zip(
            places.tolist(), some[places].tolist(), at_level[places].tolist(), strict=True
        ):
            if capacity.start(row, level) is not StartResult.NO_ROOM or not asking:
                continue
            if reserved and wanted is not None and not wanted[position + place]:
                continue
            at_ms = capacity.earliest_ms(row)
            if at_ms is None:
                continue
            start = _reserved_start(
                row, at_ms, limits, 0 if promised_ms is None else int(promised_ms[position + place])
            )
            insort(due, start.until_ms)
            capacity.reserve(row, at_ms, due.index(start.until_ms))
            reserved.append(start)
            following, chunk = position + place + 1, _FEW
            if len(reserved) == limits.promises:
                rows, ends_ms = _rest(rows, ends_ms, following, limits)
                levels = np.zeros(len(rows), dtype=np.int64)
            levels[following:] = np.searchsorted(due, ends_ms[following:])
            break
        position = following
    return reserved


def _reserved_start(row: int, at_ms: int, limits: BackfillLimits, promised_ms: int) -> ReservedStart:
    """Grace counts from the start reserved first, and a start that is late already is not made later still."""
    if not limits.grace_ms or at_ms == FOREVER_MS:
        return ReservedStart(row, at_ms, at_ms)
    return ReservedStart(row, at_ms, max(at_ms, min(promised_ms or at_ms, at_ms) + limits.grace_ms))


def _rest(rows: Ints, ends_ms: Ints, begin: int, limits: BackfillLimits) -> tuple[Ints, Ints]:
    """The jobs still to be looked at once all starts are reserved, in the order in which they are."""
    rest, ends = rows[begin:], ends_ms[begin:]
    if limits.scan:
        rest, ends = rest[: limits.scan], ends[: limits.scan]
    if limits.shortest_first:
        order = np.argsort(ends, kind="stable")
        rest, ends = rest[order], ends[order]
    elif not limits.scan:
        return rows, ends_ms
    return np.concatenate([rows[:begin], rest]), np.concatenate([ends_ms[:begin], ends])
