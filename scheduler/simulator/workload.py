"""Workloads of rigid jobs: arrival, run time, limit and processors of each, read from SWF logs."""

from __future__ import annotations

import gzip
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import numpy as np

from scheduler.core.columns import Columns, Ints, ints

#: Seconds and counts of a log are smaller (30,000 years), so that they stay exact in milliseconds.
_LARGEST: Final = 10**12


class WorkloadError(ValueError):
    """A file that is not a workload; the message names the line."""


@dataclass(frozen=True, eq=False)
class JobColumns(Columns):
    """Rigid jobs in order of arrival, then of their ids."""

    id: Ints = ints()
    submitted_ms: Ints = ints(default=0)
    run_ms: Ints = ints(default=0)
    limit_ms: Ints = ints(default=0)  # requested time; never less than the run time
    processors: Ints = ints(default=1)
    user_id: Ints = ints(default=0)


@dataclass(frozen=True)
class Workload:
    """Jobs and the machine of their log; `waited_ms`: the wait of each that the log states (-1 = none)."""

    name: str
    processors: int
    jobs: JobColumns
    waited_ms: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    __hash__ = None  # type: ignore[assignment]

    def head(self, count: int) -> Workload:
        """The same workload with only the first `count` jobs."""
        rows = np.arange(min(count, len(self.jobs)))
        return replace(self, jobs=self.jobs.take(rows), waited_ms=self.waited_ms[rows])


def read_swf(path: Path) -> Workload:
    """A log in the Standard Workload Format, plain or gzipped. Raises WorkloadError.

    Fields used (from 1): 1 id, 2 submit, 3 wait, 4 run, 5 allocated, 8 requested processors, 9 requested time,
    12 user. Jobs that never ran or requested nothing are left out, as in published replays. Times are seconds.
    """
    opener = gzip.open if path.suffix == ".gz" else open
    size = 0
    rows: list[list[float]] = []
    with opener(path, "rt", encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, 1):
            if line.lstrip().startswith(";"):
                size = max(size, _machine_size(line))
            elif words := line.split():
                rows.append(_job_fields(f"{path.name}, line {number}", words))
    if not rows:
        raise WorkloadError(f"{path.name} holds no jobs")
    table = np.array(rows).astype(np.int64)
    processors = np.where(table[:, 7] > 0, table[:, 7], table[:, 4])
    ran = (processors > 0) & (table[:, 3] >= 0)
    table, processors = table[ran], processors[ran]
    if not len(table):
        raise WorkloadError(f"{path.name} holds no jobs that ran")
    order = np.lexsort((table[:, 0], table[:, 1]))
    run, requested = table[:, 3], table[:, 8]
    limit = np.maximum(np.where(requested > 0, requested, run), run)
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


def _machine_size(header: str) -> int:
    """The processors that a header line states (`; MaxProcs: 128`); 0 = another header."""
    name, _, value = header.lstrip("; \t").partition(":")
    known = name.strip() in {"MaxProcs", "MaxNodes"} and re.fullmatch(r"[0-9]{1,9}", value.strip())
    return int(value) if known else 0


def _job_fields(where: str, words: list[str]) -> list[float]:
    """The first 12 fields of a job."""
    try:
        found = [float(word) for word in words[:12]]
    except ValueError as error:
        raise WorkloadError(f"{where}: {error}") from error
    if not all(abs(value) <= _LARGEST for value in found):
        raise WorkloadError(f"{where}: a number that no log can mean")
    if len(found) < 12:
        raise WorkloadError(f"{where}: {len(words)} fields, not 18")
    return found
