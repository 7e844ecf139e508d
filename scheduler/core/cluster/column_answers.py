"""Answers about columns, found once: which nodes reach an amount, what some nodes have together."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import numpy as np

from scheduler.core.columns import Bools, Ints

Answer = TypeVar("Answer")


class ColumnAnswers:
    """Answers by the identity of the columns that a question is about, for as long as these do not change.

    An answer is kept together with its columns: an array that is freed would leave its id to another one.
    """

    def __init__(self) -> None:
        self._known: dict[Hashable, tuple[object, Any]] = {}
        self._reaching: dict[tuple[int, int], tuple[Ints, Bools]] = {}

    def forget(self) -> None:
        """Drop all answers: some column has changed."""
        self._known.clear()
        self._reaching.clear()

    def find(
        self, name: str, columns: tuple[Any, ...], key: Hashable, work_out: Callable[[], Answer]
    ) -> Answer:
        """The answer to the question `name` about these columns, worked out when it is asked first.

        `key` is everything else that the answer depends on.
        """
        place = (name, *map(id, columns), key)
        known = self._known.get(place)
        if known is None:
            known = self._known[place] = columns, work_out()
        answer: Answer = known[1]
        return answer

    def reaches(self, column: Ints, need: int) -> Bools:
        """Where a column is at least `need`. Every class of jobs asks this: `find` would take twice as long."""
        key = (id(column), need)
        known = self._reaching.get(key)
        if known is None:
            known = self._reaching[key] = column, column >= need
        return known[1]

    def sum_over(self, column: Ints, nodes: Bools) -> int:
        """What these nodes have together; an amount below 0 counts as 0."""
        return self.find(
            "sum_over", (column,), nodes.tobytes(), lambda: int(np.maximum(column[nodes], 0).sum())
        )

    def where(self, masks: tuple[Bools, ...]) -> tuple[Bools | None, Bools | None]:
        """The nodes where all masks hold, and the others; (None, None) when that is everywhere."""
        if not masks:
            return None, None
        return self.find("where", masks, None, lambda: _where(masks))


def _where(masks: tuple[Bools, ...]) -> tuple[Bools | None, Bools | None]:
    keep = masks[0]
    for mask in masks[1:]:
        keep = keep & mask
    return (None, None) if keep.all() else (keep, ~keep)
