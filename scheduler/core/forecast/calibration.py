"""Calibration: ranges of starts are corrected by the errors of earlier ones, so that four of five starts are inside."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from scheduler.core.columns import Ints
from scheduler.core.forecast.forecast import Forecast

#: What part of the starts may be earlier than a range, and what part later.
MISSES: Final = 0.1
#: With fewer judged ranges nothing is calibrated.
LEAST_OUTCOMES: Final = 20
#: Added to a wait before its logarithm is taken, in ms: people see minutes, and smaller differences count little.
_MINUTE_MS: Final = 60_000


@dataclass(frozen=True, slots=True)
class Calibration:
    """By which factors the ends of a range are multiplied, counted from the moment of the forecast."""

    earliest: float = 1.0
    latest: float = 1.0
    outcomes: int = 0  # judged ranges that the factors are from; 0 = too few, the factors are 1

    def range_ms(self, p10_ms: int, p90_ms: int, now_ms: int) -> tuple[int, int]:
        """The calibrated ends of a range that was found at `now_ms`; neither is before that moment."""
        if not self.outcomes:
            return p10_ms, p90_ms
        first, last = (
            now_ms + max(round((max(at_ms - now_ms, 0) + _MINUTE_MS) * factor) - _MINUTE_MS, 0)
            for at_ms, factor in ((p10_ms, self.earliest), (p90_ms, self.latest))
        )
        return first, max(first, last)


def learn(p10_ms: Ints, p90_ms: Ints, waited_ms: Ints) -> Calibration:
    """The factors from ranges as the planner found them and from the real starts, all in ms from each forecast on.

    This is conformalized quantile regression with one bound for each side (Romano, Patterson, Candes, "Conformalized
    quantile regression", NeurIPS 2019, theorem 2), on logarithms of waits, since errors grow with waits. Of n
    errors the (n + 1)(1 - 0.1)-th smallest is the correction of a side: it widens ranges that were too narrow and
    narrows those that were too wide. Called with recent outcomes alone, so that it follows a workload that
    changes.
    """
    count = len(waited_ms)
    if count < LEAST_OUTCOMES:
        return Calibration()
    first, last, real = (np.log(np.maximum(ms, 0) + float(_MINUTE_MS)) for ms in (p10_ms, p90_ms, waited_ms))
    return Calibration(math.exp(-_correction(first - real)), math.exp(_correction(real - last)), count)


def calibrated(found: Forecast, calibration: Calibration, now_ms: int) -> Forecast:
    """The forecast with a calibrated range; one without both ends stays as it is. `raw_*` keep the ends as found."""
    if found.p10_ms is None or found.p90_ms is None:
        return found
    first, last = calibration.range_ms(found.p10_ms, found.p90_ms, now_ms)
    middle = None if found.p50_ms is None else min(max(found.p50_ms, first), last)
    return replace(
        found, p10_ms=first, p50_ms=middle, p90_ms=last, raw_p10_ms=found.p10_ms, raw_p90_ms=found.p90_ms
    )


def _correction(errors: npt.NDArray[np.float64]) -> float:
    rank = min(math.ceil((len(errors) + 1) * (1 - MISSES)), len(errors))
    return float(np.partition(errors, rank - 1)[rank - 1])
