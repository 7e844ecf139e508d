"""Calibrated ranges: four of five starts are inside, whether the planner's ranges are too narrow or too wide."""

from __future__ import annotations

import numpy as np
import pytest

from scheduler.core.forecast.calibration import LEAST_OUTCOMES, Calibration, calibrated, learn
from scheduler.core.forecast.forecast import Forecast

HOUR_MS = 3_600_000


@pytest.mark.parametrize(
    ("low", "high"), [(0.9, 1.1), (0.001, 50.0), (3.0, 9.0)], ids=["narrow", "wide", "late"]
)
def test_four_of_five_starts_are_inside_whatever_the_errors_are(low: float, high: float) -> None:
    dice = np.random.default_rng(7)
    middle = dice.uniform(600_000, 20 * HOUR_MS, 4000)
    p10, p90 = (middle * low).astype(np.int64), (middle * high).astype(np.int64)
    waited = (middle * np.exp(dice.normal(0, 0.8, 4000))).astype(np.int64)
    calibration = learn(p10[:2000], p90[:2000], waited[:2000])

    inside = widths = 0
    for first, last, real in zip(
        p10[2000:].tolist(), p90[2000:].tolist(), waited[2000:].tolist(), strict=True
    ):
        shown = calibration.range_ms(first, last, 0)
        inside += shown[0] <= real <= shown[1]
        widths += shown[1] - shown[0]

    assert 0.77 < inside / 2000 < 0.83
    assert widths / 2000 < 3 * middle.mean()  # a range that holds everything would be no range


def test_few_outcomes_correct_nothing() -> None:
    few = np.full(LEAST_OUTCOMES - 1, HOUR_MS)

    assert learn(few, few, few * 5) == Calibration()
    assert Calibration().range_ms(5, 9, 3) == (5, 9)


def test_no_range_begins_before_its_forecast_and_the_middle_stays_inside() -> None:
    early = Calibration(earliest=0.01, latest=0.5, outcomes=50)
    found = Forecast(1, p10_ms=HOUR_MS + 60_000, p50_ms=2 * HOUR_MS, p90_ms=HOUR_MS + 120_000)

    shown = calibrated(found, early, HOUR_MS)

    assert (shown.p10_ms, shown.p50_ms, shown.p90_ms) == (HOUR_MS, HOUR_MS + 30_000, HOUR_MS + 30_000)
    assert (shown.raw_p10_ms, shown.raw_p90_ms) == (found.p10_ms, found.p90_ms)


def test_a_range_without_an_end_stays_unknown() -> None:
    unknown = Forecast(1, p10_ms=5, unknown="A job without a time limit is ahead.")

    assert calibrated(unknown, Calibration(0.5, 2.0, 50), 0) == unknown
