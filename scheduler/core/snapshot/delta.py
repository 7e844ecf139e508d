"""Differences of tables: what makes one table of columns another, by key."""

from __future__ import annotations

from dataclasses import fields, replace
from itertools import pairwise
from typing import Final, NamedTuple, TypeVar

import numpy as np

from scheduler.core.columns import Bools, Columns, Ints, find_rows
from scheduler.core.snapshot.request_classes import RequestClass
from scheduler.core.snapshot.snapshot import Snapshot

C = TypeVar("C", bound=Columns)

#: Slices of at most this number of runs are compared faster than rows picked one by one.
_MOST_RUNS: Final = 64


def difference(before: C, after: C) -> tuple[Ints, C]:
    """The keys that are gone, and the rows that are new or other; both tables rise by key."""
    old, new = _key(before), _key(after)
    same_keys = len(old) == len(new) and bool((old == new).all())
    place = np.arange(len(new)) if same_keys else find_rows(old, new)
    other: Bools = place < 0
    common = _Common.of(place)
    for column in fields(after):
        was, now = getattr(before, column.name), getattr(after, column.name)
        if isinstance(now, np.ndarray):
            common.mark_other(other, was, now)
        elif was != now and not (_all_alike(was, now)):
            for row, place_before in zip(common.after.tolist(), common.before.tolist(), strict=True):
                other[row] |= now[row] != was[place_before]
    gone = old[:0] if same_keys else old[find_rows(new, old) < 0]
    return gone, after.take(np.flatnonzero(other))


class _Common(NamedTuple):
    """The rows whose keys both tables have, by rising key."""

    after: Ints
    before: Ints
    #: Those that follow each other in both: first row and last + 1 in the table after, first row in the one before.
    runs: list[tuple[int, int, int]]

    @classmethod
    def of(cls, place: Ints) -> _Common:
        """`place` has for each row after the row before, -1 where there was none."""
        after = np.flatnonzero(place >= 0)
        before = place[after]
        ends = np.flatnonzero((np.diff(after) != 1) | (np.diff(before) != 1)) + 1
        bounds = [0, *ends.tolist(), len(after)] if len(after) else []
        runs = [
            (after.item(first), after.item(last - 1) + 1, before.item(first))
            for first, last in pairwise(bounds)
        ] if len(bounds) <= _MOST_RUNS else []  # fmt: skip
        return cls(after, before, runs)

    def mark_other(self, other: Bools, was: Ints, now: Ints) -> None:
        """Set `other` for each common row whose values differ."""
        if not self.runs:
            other[self.after] |= now[self.after] != was[self.before]
        for first, last, before in self.runs:
            other[first:last] |= now[first:last] != was[before : before + last - first]


def changed(before: C, gone: Ints, rows: C) -> C:
    """The table after: `before` without the keys that are gone, and with these rows."""
    if not len(gone) and not len(rows):
        return before
    keys = _key(before)
    kept = before.take((find_rows(_sorted(gone), keys) < 0) & (find_rows(_key(rows), keys) < 0))
    if not len(rows):
        return kept
    words = {}
    for column in fields(before):
        left, right = getattr(kept, column.name), getattr(rows, column.name)
        words[column.name] = left + right if isinstance(left, tuple) else np.concatenate([left, right])
    return type(before)(**words).sorted_by_key()


def with_classes(base: Snapshot, classes: tuple[RequestClass, ...]) -> Snapshot:
    """The snapshot with its jobs' classes numbered as another one numbers them; -1 for those it does not have."""
    if base.classes == classes:
        return base
    place = {request: number for number, request in enumerate(classes)}
    numbers = np.array([place.get(request, -1) for request in base.classes], dtype=np.int64)
    return replace(
        base,
        classes=classes,
        pending=replace(base.pending, class_index=numbers[base.pending.class_index]),
        running=replace(base.running, class_index=numbers[base.running.class_index]),
    )


def _key(table: Columns) -> Ints:
    keys: Ints = getattr(table, fields(table)[0].name)
    return keys


def _sorted(keys: Ints) -> Ints:
    return np.sort(keys)


def _all_alike(was: tuple[object, ...], now: tuple[object, ...]) -> bool:
    """Whether every row of both has one and the same value, as names have that nobody asks for."""
    return bool(was and now) and was.count(now[0]) == len(was) and now.count(now[0]) == len(now)
