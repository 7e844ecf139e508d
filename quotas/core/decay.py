"""Decay: how much of what somebody used still counts, exactly, whenever and however often one asks.

Somebody who holds an amount from `start` to `end` has used, at the moment `at`, the integral of
`amount x 2^-((at - s) / half-life)` over that time: a closed form, so nothing has to tick, and a day that is
counted at once is the same as a day counted in 86,400 seconds.

The modes: "exponential" is that; "window" counts all use inside the window alike; "none" counts all
use there ever was, alike.

How truncation and exactness go together. Use is kept in slices of six hours of UTC: each slice has its plain
sum, and its sum decayed to the end of the slice. Both only ever grow, by the closed form; to bring a slice
to a later moment is one multiplication. So a sum over slices is exact, and the window can only end between
two slices: it reaches back to the beginning of the slice in which `at - window` lies. A window of 7 days
therefore holds 7 days to 7 days and 6 hours. With a half-life of a day what enters or leaves there counts
2^-7 = 0.8 %, which is why decay and window agree to under 1 %.

A change of use costs O(1): it touches the slices of the window it lies in, at most 29 of 7 days, however
much was used before and by how many.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

MODES: Final = ("exponential", "window", "none")
MODE_CHOICES: Final = tuple((mode, mode) for mode in MODES)

#: The grain in which use is kept and the window moves.
SLICE_SECONDS: Final = 6 * 3600


@dataclass(frozen=True, slots=True)
class Decay:
    """What counts of past use: half of it after `half_life_seconds`, nothing before the window."""

    mode: str = "exponential"
    half_life_seconds: int = 24 * 3600
    window_seconds: int = 7 * 24 * 3600

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(f"{self.mode!r} is not a decay; there are {', '.join(MODES)}")
        if self.half_life_seconds < 1 or self.window_seconds < 1:
            raise ValueError("half-life and window of fair share are 1 second or more")

    def edge(self, at: float) -> float:
        """The moment before which nothing counts any more: a boundary of slices."""
        if self.mode == "none":
            return -math.inf
        return slice_start(at - self.window_seconds)

    def used(self, amount: float, start: float, end: float, at: float) -> float:
        """What holding an amount from start to end counts at a moment, in amount-seconds."""
        start, end = max(start, self.edge(at)), min(end, at)
        if end <= start:
            return 0.0
        if self.mode != "exponential":
            return amount * (end - start)
        return self.decayed(amount, start, end) * self.left(at - end)

    def decayed(self, amount: float, start: float, end: float) -> float:
        """The same at the moment it ends, for the exponential mode and without a window."""
        scale = self.half_life_seconds / math.log(2)
        return -amount * scale * math.expm1(-(end - start) / scale)

    def left(self, seconds: float) -> float:
        """What is left of one after so long."""
        return float(2.0 ** (-seconds / self.half_life_seconds))

    def full(self, at: float) -> float:
        """What holding one thing all the time counts: the most that anybody can have of it.

        In the mode "none" there is no such bound; the window stands in for it.
        """
        edge = slice_start(at - self.window_seconds)
        if self.mode != "exponential":
            return at - edge
        return self.decayed(1.0, edge, at)


def slice_start(moment: float) -> float:
    """The beginning of the slice in which a moment lies."""
    return math.floor(moment / SLICE_SECONDS) * float(SLICE_SECONDS)


@dataclass(frozen=True, slots=True)
class Part:
    """What of some use lies in one slice: seconds of it, and those decayed to the slice's end."""

    starts: int
    seconds: float
    decayed: float


def parts_of(start: float, end: float, decay: Decay) -> tuple[Part, ...]:
    """The use of one thing from start to end, slice by slice; what lies before the window at its end is one part.

    That part is kept under the slice in which the use began: only the mode "none" ever asks for it.
    """
    found: list[Part] = []
    edge = slice_start(end - decay.window_seconds)
    if start < edge:
        begins = int(slice_start(start))
        found.append(Part(begins, min(end, edge) - start, 0.0))
        start = edge
    while start < end:
        begins = int(slice_start(start))
        ends = begins + SLICE_SECONDS
        until = min(end, float(ends))
        whole = decay.decayed(1.0, start, until) * decay.left(ends - until)
        found.append(Part(begins, until - start, whole))
        start = until
    return tuple(found)


@dataclass(slots=True)
class Tally:
    """What one account has used, in slices; the same whatever order and pieces the use came in."""

    decay: Decay
    plain: dict[int, float] = field(default_factory=dict)
    decayed: dict[int, float] = field(default_factory=dict)

    def add(self, amount: float, start: float, end: float) -> None:
        """Count that an amount was held from start to end."""
        for part in parts_of(start, end, self.decay):
            self.plain[part.starts] = self.plain.get(part.starts, 0.0) + amount * part.seconds
            self.decayed[part.starts] = self.decayed.get(part.starts, 0.0) + amount * part.decayed

    def used(self, at: float) -> float:
        """What counts at a moment that is not before any use counted."""
        edge = self.decay.edge(at)
        if self.decay.mode != "exponential":
            return math.fsum(value for begins, value in self.plain.items() if begins >= edge)
        return math.fsum(
            value * self.decay.left(at - begins - SLICE_SECONDS)
            for begins, value in self.decayed.items()
            if begins >= edge
        )
