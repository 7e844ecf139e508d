"""Likely ends: when running jobs end by their time limits, and those without a limit by their predictions."""

from __future__ import annotations

import numpy as np

from scheduler.core.columns import Ints
from scheduler.core.snapshot.snapshot import RunningColumns


def likely_ends_ms(running: RunningColumns, now_ms: int) -> Ints:
    """Of each running job when it is likely to end; 0 = unknown: it has neither a time limit nor a prediction.

    A job that has outlived its prediction gets twice as long, as often as needed: a prediction that proved too short
    is corrected while the job runs (Tsafrir, Etsion, Feitelson, "Backfilling using system-generated predictions
    rather than user runtime estimates", IEEE TPDS 18(6), 2007, section 4.2). Nothing is stopped because of it.
    """
    ends = running.expected_end_ms
    predicted = np.flatnonzero((ends == 0) & (running.predicted_seconds > 0))
    if not len(predicted):
        return ends
    started, length = running.started_ms[predicted], running.predicted_seconds[predicted] * 1000
    ends = ends.copy()
    ends[predicted] = started + length * doubled(length, now_ms - started)
    return ends


def doubled(length: Ints, elapsed: Ints) -> Ints:
    """The smallest powers of two by which the lengths, times these, are longer than what has passed."""
    factor = np.ones(len(length), dtype=np.int64)
    while (short := length * factor <= elapsed).any():
        factor[short] *= 2
    return factor
