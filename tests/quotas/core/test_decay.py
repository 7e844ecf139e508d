"""Decayed use: exact, however often and in whatever pieces it is counted."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quotas.core.decay import MODES, SLICE_SECONDS, Decay, Tally, parts_of, slice_start

DAY = 86_400
NOW = 1_800_000_123.5

decays = st.builds(
    Decay,
    mode=st.sampled_from(MODES),
    half_life_seconds=st.integers(600, 30 * DAY),
    window_seconds=st.integers(3600, 14 * DAY),
)


def tally(decay: Decay, *uses: tuple[float, float, float]) -> Tally:
    kept = Tally(decay)
    for amount, start, end in uses:
        kept.add(amount, start, end)
    return kept


def test_what_was_used_a_half_life_ago_counts_half() -> None:
    decay = Decay()

    assert decay.used(1, NOW - DAY - 1, NOW - DAY, NOW) == pytest.approx(0.5, rel=1e-5)
    assert decay.used(3, NOW - 2 * DAY - 1, NOW - 2 * DAY, NOW) == pytest.approx(0.75, rel=1e-5)


def test_a_day_counted_at_once_is_a_day_counted_by_the_second() -> None:
    start = NOW - 3 * DAY
    whole = tally(Decay(), (8, start, start + DAY))
    ticked = tally(Decay(), *((8, start + second, start + second + 1) for second in range(DAY)))

    assert ticked.used(NOW) == pytest.approx(whole.used(NOW), rel=1e-9)
    assert whole.used(NOW) == pytest.approx(Decay().used(8, start, start + DAY, NOW), rel=1e-12)


@given(
    decays, st.floats(0.001, 1000), st.floats(0, 20 * DAY), st.floats(1, 10 * DAY),
    st.lists(st.floats(0, 1), max_size=6),
)  # fmt: skip
def test_no_pattern_of_ticks_changes_what_counts(
    decay: Decay, amount: float, ago: float, lasted: float, cuts: list[float]
) -> None:
    start, end = NOW - ago - lasted, NOW - ago
    marks = [start, *sorted(start + cut * lasted for cut in cuts), end]
    pieces = tally(decay, *((amount, a, b) for a, b in itertools.pairwise(marks)))

    assert pieces.used(NOW) == pytest.approx(tally(decay, (amount, start, end)).used(NOW), rel=1e-9, abs=1e-6)
    assert pieces.used(NOW) == pytest.approx(decay.used(amount, start, end, NOW), rel=1e-9, abs=1e-6)


@given(decays, st.floats(0, 20 * DAY), st.floats(1, 10 * DAY))
def test_the_closed_form_is_the_integral(decay: Decay, ago: float, lasted: float) -> None:
    start, end = NOW - ago - lasted, NOW - ago
    steps = 2000
    width = lasted / steps
    edge = decay.edge(NOW)
    total = 0.0
    for step in range(steps):
        middle = start + (step + 0.5) * width
        if middle >= edge:
            weight = 2 ** (-(NOW - middle) / decay.half_life_seconds) if decay.mode == "exponential" else 1
            total += weight * width

    assert decay.used(1, start, end, NOW) == pytest.approx(total, rel=0.01, abs=2 * width)


@given(st.floats(0, 20 * DAY), st.floats(0.5, 30 * DAY))
def test_slices_hold_all_of_it_and_nothing_twice(ago: float, lasted: float) -> None:
    start, end = NOW - ago - lasted, NOW - ago

    parts = parts_of(start, end, Decay())

    assert math.fsum(part.seconds for part in parts) == pytest.approx(lasted, abs=1e-4)
    assert len({part.starts for part in parts}) == len(parts) <= 30


def test_the_window_ends_between_two_slices() -> None:
    decay = Decay(mode="window")
    boundary = slice_start(NOW)
    use = (1, boundary - 60, boundary + 60)
    last = boundary + decay.window_seconds + SLICE_SECONDS

    kept = tally(decay, use)

    assert kept.used(boundary + decay.window_seconds - 1) == 120
    assert kept.used(boundary + decay.window_seconds + 1) == kept.used(last - 1) == 60
    assert kept.used(last + 1) == 0


def test_half_life_and_window_agree_to_under_one_percent() -> None:
    endless = Decay(window_seconds=365 * DAY)

    cut, whole = Decay().used(1, NOW - 90 * DAY, NOW, NOW), endless.used(1, NOW - 90 * DAY, NOW, NOW)

    assert 0.99 * whole < cut < whole


def test_a_decay_without_sense_is_refused() -> None:
    for words in ({"mode": "linear"}, {"half_life_seconds": 0}, {"window_seconds": 0}):
        with pytest.raises(ValueError):
            Decay(**words)
