"""Pending jobs in memory: one array a column, rows by rising job number, changed in place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from scheduler.core.columns import Bools, Ints, rows_taken
from scheduler.state.load.job_rows import OWN_NAMES, OwnColumns
from scheduler.state.load.resident.kinds import KINDS, Kinds

#: Free rows are given back once they are more than one in this number.
SLACK: Final = 8
_COLUMNS: Final = (*OWN_NAMES, KINDS)


class ResidentJobs:
    """The own columns of all pending jobs of a cluster.

    A row whose job waits no more is free; its number stays, so that the rows stay in order and a job that comes
    back has its row again.
    """

    def __init__(self, own: OwnColumns) -> None:
        self._kinds = Kinds()
        self._fill(self._with_kinds(own))

    def __len__(self) -> int:
        """How many jobs there are."""
        return self._count - self._free

    @property
    def nbytes(self) -> int:
        """Bytes that the columns take."""
        return sum(column.nbytes for column in self._columns.values())

    def merge(self, changed: Ints, found: OwnColumns) -> None:
        """Take in what became of the jobs `changed`: those in `found` wait, and these are their rows; others do not."""
        rows = self._rows_of(changed)
        self._release(rows[rows >= 0])
        if not len(found["id"]):
            return
        found = self._with_kinds(found)
        rows = self._rows_of(found["id"])
        known = rows >= 0
        for name in _COLUMNS:
            self._columns[name][rows[known]] = found[name][known]
        self._waits[rows[known]] = True
        self._free -= int(known.sum())
        if not known.all():
            self._insert({name: found[name][~known] for name in _COLUMNS})

    def note(self, name: str, numbers: Ints, values: Ints) -> None:
        """Set one column of these jobs to what the planner has just written itself."""
        rows = self._rows_of(numbers)
        here = rows >= 0
        self._columns[name][rows[here]] = values[here]

    def rows(self) -> Ints:
        """The rows of all jobs, by rising number."""
        return np.flatnonzero(self._waits[: self._count])

    def column(self, name: str) -> Ints:
        """One column, free rows included: only to be read."""
        return self._columns[name][: self._count]

    def take(self, rows: Ints) -> dict[str, Ints]:
        """The own columns of these rows, as a copy."""
        return {name: rows_taken(self._columns[name], rows) for name in OWN_NAMES}

    def columns(self) -> dict[str, Ints]:
        """The own columns of all jobs, as a copy."""
        return self.take(self.rows())

    # -------------------------------------------------------------- rows

    def _rows_of(self, numbers: Ints) -> Ints:
        """The row of each job, -1 for one that never had one."""
        ids = self._columns["id"][: self._count]
        if not len(ids):
            return np.full(len(numbers), -1, dtype=np.int64)
        rows = np.searchsorted(ids, numbers)
        rows[ids[np.minimum(rows, len(ids) - 1)] != numbers] = -1
        return rows

    def _release(self, rows: Ints) -> None:
        held = rows[self._waits[rows]]
        self._waits[held] = False
        self._free += len(held)

    def _insert(self, found: Mapping[str, Ints]) -> None:
        """Give rows to jobs that had none: behind all others where their numbers are higher, as nearly always."""
        order = np.argsort(found["id"])
        fresh = {name: column[order] for name, column in found.items()}
        more, end = len(order), self._count + len(order)
        last = self._columns["id"].item(self._count - 1) if self._count else -1
        if fresh["id"].item(0) < last or end > len(self._waits) or self._free * SLACK > end:
            rows = self.rows()
            kept = {name: self._columns[name][rows] for name in _COLUMNS}
            self._fill({name: np.concatenate([kept[name], fresh[name]]) for name in _COLUMNS})
            return
        for name in _COLUMNS:
            self._columns[name][self._count : end] = fresh[name]
        self._waits[self._count : end] = True
        self._count += more

    def _fill(self, own: Mapping[str, Ints]) -> None:
        """Lay the rows out anew, in order, with room for an eighth more behind them."""
        ids = own["id"]
        order = np.argsort(ids, kind="stable")
        self._count, self._free = len(ids), 0
        size = self._count + self._count // SLACK + 1024
        self._columns: dict[str, Ints] = {}
        for name in _COLUMNS:
            self._columns[name] = np.zeros(size, dtype=np.int64)
            self._columns[name][: self._count] = own[name][order]
        self._waits: Bools = np.zeros(size, dtype=np.bool_)
        self._waits[: self._count] = True

    def _with_kinds(self, own: OwnColumns) -> dict[str, Ints]:
        return {**own, KINDS: self._kinds.number(own)}
