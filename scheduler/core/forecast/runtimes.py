"""Run times: how long the next run of a job is likely to take, from the last runs of the same person and job name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

#: The number of recent runs that count.
RECENT: Final = 20
#: Fewer say nothing about the next one.
LEAST: Final = 2
#: What part of the runs may be longer than the quantile that plans count with.
_QUANTILE: Final = 0.9
#: The weight of the latest run in the moving average.
_WEIGHT: Final = 0.3


@dataclass(frozen=True, slots=True)
class Prediction:
    """What earlier runs say, in whole seconds, each at least 1."""

    runs: int  # how many they are
    usual_seconds: int  # their median
    #: What plans count with: 9 of 10 recent runs were as short, and so is their exponentially weighted moving
    #: average, which follows sooner where runs have become longer.
    planned_seconds: int


def predict(seconds: Sequence[float]) -> Prediction | None:
    """The prediction from run times in seconds, the latest first; None from fewer than two.

    Quantiles are the nearest rank: the smallest run time that at least this part of the runs does not exceed.
    """
    recent = list(seconds[:RECENT])
    if len(recent) < LEAST:
        return None
    average = recent[-1]
    for one in reversed(recent[:-1]):
        average += _WEIGHT * (one - average)
    ordered = sorted(recent)
    return Prediction(
        len(recent),
        _whole(ordered[_rank(0.5, len(ordered))]),
        _whole(max(ordered[_rank(_QUANTILE, len(ordered))], average)),
    )


def _rank(part: float, count: int) -> int:
    return max(-int(-part * count // 1), 1) - 1


def _whole(seconds: float) -> int:
    return max(-int(-seconds // 1), 1)
