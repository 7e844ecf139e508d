"""Periods: the months, weeks and days that usage is summed by; UTC, in whole seconds since 1970."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from enum import StrEnum
from itertools import pairwise
from typing import Final

DAY: Final = 86_400
WEEK: Final = 7 * DAY
#: The first Monday after 1 January 1970.
_MONDAY: Final = 4 * DAY


class Period(StrEnum):
    """How often a budget begins anew."""

    MONTH = "month"
    WEEK = "week"
    WINDOW = "window"  # once, from its start to its end


def period_at(
    period: Period, at_s: int, *, from_s: int, until_s: int | None = None
) -> tuple[int, int] | None:
    """The period that a moment is in, cut to the budget's own start and end; None outside of them."""
    if at_s < from_s or (until_s is not None and at_s >= until_s):
        return None
    if period is Period.WINDOW:
        if until_s is None:
            raise ValueError("a window has an end")
        return from_s, until_s
    if period is Period.WEEK:
        begin = at_s - (at_s - _MONDAY) % WEEK
        end = begin + WEEK
    else:
        moment = datetime.fromtimestamp(at_s, tz=UTC)
        first = moment.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        later = first.replace(year=first.year + first.month // 12, month=first.month % 12 + 1)
        begin, end = int(first.timestamp()), int(later.timestamp())
    return max(begin, from_s), end if until_s is None else min(end, until_s)


def periods_between(
    period: Period, begin_s: int, end_s: int, *, from_s: int, until_s: int | None = None
) -> Iterator[tuple[int, int]]:
    """Every period that some second from `begin_s` to `end_s` is in, in order."""
    at = max(begin_s, from_s)
    while at < end_s and (found := period_at(period, at, from_s=from_s, until_s=until_s)) is not None:
        yield found
        at = found[1]


def day_of(at_s: int) -> int:
    """The first second of the day."""
    return at_s - at_s % DAY


def days_between(begin_s: int, end_s: int) -> Iterator[tuple[int, int]]:
    """An interval cut at every midnight."""
    return cut(begin_s, end_s, range(day_of(begin_s) + DAY, end_s, DAY))


def cut(begin_s: int, end_s: int, at: Iterable[int]) -> Iterator[tuple[int, int]]:
    """An interval cut at those of these moments that are inside it."""
    edges = [begin_s, *sorted({moment for moment in at if begin_s < moment < end_s}), end_s]
    for begin, end in pairwise(edges):
        if end > begin:
            yield begin, end
