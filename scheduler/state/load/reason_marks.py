"""Reasons as numbers: whether a job shows already what a plan says, without reading the text of every job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from scheduler.core.columns import Bools, Ints
from scheduler.state.db.fragments import reason_mark
from scheduler.state.db.sql import run

_MARKS: Final = f"""
SELECT {reason_mark("code", "words")}
FROM unnest(%s::text[], %s::text[]) WITH ORDINALITY AS reason(code, words, place) ORDER BY place
"""


def reason_marks(reasons: Sequence[tuple[str, str]]) -> Ints:
    """The marks of these (code, text)."""
    if not reasons:
        return np.zeros(0, dtype=np.int64)
    rows = run(_MARKS, [[code for code, _ in reasons], [text for _, text in reasons]])
    return np.array([row[0] for row in rows], dtype=np.int64)


def same_kind(marks: Ints, others: Ints) -> Bools:
    """Whether two reasons have one code, with whatever text."""
    same: Bools = (marks >> 32) == (others >> 32)
    return same
