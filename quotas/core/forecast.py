"""Forecast: when a budget will have run out, if it is used as it was of late."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from quotas.core.periods import DAY

#: The days that say how fast it is used.
LATELY: Final = 7 * DAY
#: Less than this says nothing.
_LEAST: Final = 3600


@dataclass(frozen=True, slots=True)
class Forecast:
    """At what pace a budget is used, and when nothing is left; times in whole seconds, None = not in its period."""

    per_day: int
    runs_out_s: int | None


def forecast(*, left: int, used_lately: int, since_s: int, now_s: int, ends_s: int) -> Forecast:
    """`used_lately` is what was charged from `since_s` (at most a week ago) until now.

    What is set aside for jobs that run is not left any more, so `left` counts without it.
    """
    span = now_s - since_s
    if left <= 0:
        return Forecast(used_lately * DAY // max(span, _LEAST), now_s)
    if span < _LEAST or used_lately <= 0:
        return Forecast(0, None)
    out = now_s + -(-left * span // used_lately)
    return Forecast(used_lately * DAY // span, out if out < ends_s else None)
