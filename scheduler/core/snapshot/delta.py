"""Differences of tables: what makes one table of columns another, by key."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TypeVar

import numpy as np

from scheduler.core.columns import Bools, Columns, Ints, find_rows
from scheduler.core.snapshot.request_classes import RequestClass
from scheduler.core.snapshot.snapshot import Snapshot

C = TypeVar("C", bound=Columns)


def difference(before: C, after: C) -> tuple[Ints, C]:
    """The keys that are gone, and the rows that are new or other; both tables rise by key."""
    old, new = _key(before), _key(after)
    same_keys = len(old) == len(new) and bool((old == new).all())
    place = np.arange(len(new)) if same_keys else find_rows(old, new)
    other: Bools = place < 0
    known = np.flatnonzero(~other)
    for column in fields(after):
        was, now = getattr(before, column.name), getattr(after, column.name)
        if isinstance(now, np.ndarray):
            other |= now != was if same_keys else _differs(was, now, place, known)
        elif was != now and not (_all_alike(was, now)):
            for row in known.tolist():
                other[row] |= now[row] != was[place.item(row)]
    gone = old[:0] if same_keys else old[find_rows(new, old) < 0]
    return gone, after.take(np.flatnonzero(other))


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


def _differs(was: Ints, now: Ints, place: Ints, known: Ints) -> Bools:
    differs = np.zeros(len(now), dtype=np.bool_)
    differs[known] = now[known] != was[place[known]]
    return differs


def _all_alike(was: tuple[object, ...], now: tuple[object, ...]) -> bool:
    """Whether every row of both has one and the same value, as names have that nobody asks for."""
    return bool(was and now) and was.count(now[0]) == len(was) and now.count(now[0]) == len(now)
