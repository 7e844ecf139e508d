"""Workloads: jobs with arrival and run times, read from Standard Workload Format logs or made from a seed."""

from __future__ import annotations

import gzip
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import numpy as np

from scheduler.core.columns import Columns, Ints, ints

#: Seconds and counts of a log are less (thirty thousand years): thousandths of them stay exact.
_LARGEST: Final = 10**12


class WorkloadError(ValueError):
    """A file that is not a workload, with the line at fault."""


@dataclass(frozen=True, eq=False)
class JobColumns(Columns):
    """Rigid jobs in the order they stand in line: by arrival, then as they stood in the file."""

    id: Ints = ints()
    submitted_ms: Ints = ints(default=0)
    run_ms: Ints = ints(default=0)
    limit_ms: Ints = ints(default=0)  # what was asked for; never less than the run
    processors: Ints = ints(default=1)
    user_id: Ints = ints(default=0)


@dataclass(frozen=True)
class Workload:
    """Jobs and the machine they were written for; `waited_ms` is the wait the file tells (-1 = it does not)."""

    name: str
    processors: int
    jobs: JobColumns
    waited_ms: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    __hash__ = None  # type: ignore[assignment]

    def head(self, count: int) -> Workload:
        """Only the first so many jobs."""
        rows = np.arange(min(count, len(self.jobs)))
        return replace(self, jobs=self.jobs.take(rows), waited_ms=self.waited_ms[rows])


def read_swf(path: Path) -> Workload:
    """A log in the Standard Workload Format, plain or gzipped.

    Fields used (from 1): 1 id, 2 submit, 3 wait, 4 run, 5 allocated, 8 requested processors, 9 requested time,
    12 user. Jobs that never ran or asked for nothing are left out, as in published replays. Times are seconds.
    """
    opener = gzip.open if path.suffix == ".gz" else open
    size = 0
    rows: list[list[float]] = []
    with opener(path, "rt", encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, 1):
            words = line.split()
            if not words:
                continue
            if words[0].startswith(";"):
                name, _, value = line.lstrip("; \t").partition(":")
                if name.strip() in {"MaxProcs", "MaxNodes"} and re.fullmatch(r"[0-9]{1,9}", value.strip()):
                    size = max(size, int(value))
                continue
            try:
                rows.append([float(word) for word in words[:12]])
            except ValueError as error:
                raise WorkloadError(f"{path.name}, line {number}: {error}") from error
            if not all(abs(value) <= _LARGEST for value in rows[-1]):
                raise WorkloadError(f"{path.name}, line {number}: a number that no log can mean")
            if len(rows[-1]) < 12:
                raise WorkloadError(f"{path.name}, line {number}: {len(words)} fields, not 18")
    if not rows:
        raise WorkloadError(f"{path.name} holds no jobs")
    table = np.array(rows).astype(np.int64)
    processors = np.where(table[:, 7] > 0, table[:, 7], table[:, 4])
    run, asked = table[:, 3], table[:, 8]
    table, processors = (column[(processors > 0) & (run >= 0)] for column in (table, processors))
    run, asked = table[:, 3], table[:, 8]
    if not len(table):
        raise WorkloadError(f"{path.name} holds no jobs that ran")
    order = np.lexsort((table[:, 0], table[:, 1]))
    limit = np.maximum(np.where(asked > 0, asked, run), run)
    return Workload(
        name=path.name.split(".")[0],
        processors=size or int(processors.max()),
        jobs=JobColumns(
            id=table[order, 0],
            submitted_ms=table[order, 1] * 1000,
            run_ms=run[order] * 1000,
            limit_ms=limit[order] * 1000,
            processors=processors[order],
            user_id=np.maximum(table[order, 11], 0),
        ),
        waited_ms=table[order, 2] * 1000,
    )
