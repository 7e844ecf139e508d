"""Jobs that run several elements of their array: what is left to run, and how each element ended."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from scheduler.agent.protocol import Assignment, ElementsToRun
from scheduler.core.lifecycle import ElementState
from scheduler.state.db.sql import Statement, int_array, run

#: The most elements of one report.
MAX_RESULTS: Final = 5000
_INT: Final = 2**31 - 1
_BIG: Final = 2**53
_HUNDRED_YEARS_MS: Final = 100 * 365 * 86400 * 1000


# ---------------------------------------------------------------- to run


class ToRun(NamedTuple):
    """The elements that have not ended, the time limit of each, and the highest exit code of those that have."""

    indices: list[int]
    limit_seconds: int | None
    worst_exit_code: int


_TO_RUN: Final = """
SELECT l.job_id, ARRAY(SELECT i FROM unnest(l.indices) AS i WHERE NOT EXISTS (
        SELECT 1 FROM scheduler_elementend e WHERE e.job_id = l.job_id AND e.index = i) ORDER BY i),
    l.limit_seconds, coalesce((
        SELECT max(coalesce(e.exit_code, 128 + e.exit_signal, 0)) FROM scheduler_elementend e
        WHERE e.job_id = l.job_id), 0)
FROM scheduler_jobelements l WHERE l.job_id = ANY(%s::bigint[])
"""


def elements_to_run(jobs: Collection[int]) -> dict[int, ToRun]:
    """What each of these jobs has left to run, by number; a job without elements is left out."""
    if not jobs:
        return {}
    return {job: ToRun(*rest) for job, *rest in run(_TO_RUN, [int_array(jobs)])}


# ---------------------------------------------------------------- ended


class ElementResult(NamedTuple):
    """How one element ended, as its agent reports it; times are ages."""

    element: int
    exit_code: int | None
    exit_signal: int | None
    started_ago_ms: int
    ended_ago_ms: int
    cpu_time_ms: int
    peak_memory_mib: int
    stdout_offset: int
    stdout_bytes: int
    stderr_offset: int
    stderr_bytes: int
    why: str

    @property
    def state(self) -> ElementState:
        return ElementState.SUCCEEDED if self.exit_code == 0 and not self.why else ElementState.FAILED


class EndedElement(NamedTuple):
    """A result, and the attempt that ran the element."""

    job: int
    epoch: int
    scheduled_at: datetime
    #: When the report came: its ages count from then.
    came_at: datetime
    result: ElementResult


def read_results(value: Any) -> list[ElementResult] | None:
    """The results of one report; None where they are no such list."""
    if not isinstance(value, list) or len(value) > MAX_RESULTS:
        return None
    found = [_read_result(row) for row in value]
    return None if None in found else [one for one in found if one is not None]


def _read_result(row: Any) -> ElementResult | None:
    if not isinstance(row, list) or len(row) != len(ElementResult._fields) or not isinstance(row[-1], str):
        return None
    result = ElementResult._make([*row[:-1], row[-1].replace("\0", "\ufffd")[:300]])
    code, number = result.exit_code, result.exit_signal
    if (code is None) == (number is None):
        return None
    counts = [result.element, code if code is not None else 0, number if number is not None else 0]
    if not all(type(n) is int and 0 <= n <= _INT for n in counts) or (number or 0) > 128:
        return None
    return result if all(type(n) is int and 0 <= n <= _BIG for n in row[3:-1]) else None


#: Column of a row -> its type, and the place of its value in a result.
_COLUMNS: Final = (
    ("cpu_time_ms", "bigint"), ("peak_memory_mib", "bigint"), ("stdout_offset", "bigint"),
    ("stdout_bytes", "bigint"), ("stderr_offset", "bigint"), ("stderr_bytes", "bigint"),
)  # fmt: skip
# Names and types come from the constant above. What was cancelled, or reported before, stays as it is.
_WRITE: Final = f"""
INSERT INTO scheduler_elementend (job_id, epoch, index, state, exit_code, exit_signal, started_at, ended_at,
    end_text, {", ".join(name for name, _ in _COLUMNS)})
SELECT v.* FROM unnest(%s::bigint[], %s::int[], %s::int[], %s::text[], %s::int[], %s::int[], %s::timestamptz[],
        %s::timestamptz[], %s::text[], {", ".join(f"%s::{kind}[]" for _, kind in _COLUMNS)})
    AS v(job_id, epoch, index, state, exit_code, exit_signal, started_at, ended_at, end_text,
        {", ".join(name for name, _ in _COLUMNS)})
    JOIN scheduler_jobelements l ON l.job_id = v.job_id AND v.index = ANY(l.indices)
ON CONFLICT DO NOTHING
"""  # noqa: S608


def write_ended(ended: Sequence[EndedElement]) -> Statement:
    """Write how elements ended; reported again, nothing changes."""
    results = [one.result for one in ended]

    def moment(one: EndedElement, ago_ms: int) -> datetime:
        when = one.came_at - timedelta(milliseconds=min(ago_ms, _HUNDRED_YEARS_MS))
        return min(one.came_at, max(when, one.scheduled_at))

    started = [moment(one, one.result.started_ago_ms) for one in ended]
    return (
        _WRITE,
        [
            int_array(one.job for one in ended),
            int_array(one.epoch for one in ended),
            int_array(r.element for r in results),
            [r.state.value for r in results],
            int_array(r.exit_code for r in results),
            int_array(r.exit_signal for r in results),
            started,
            [
                max(begin, moment(one, one.result.ended_ago_ms))
                for one, begin in zip(ended, started, strict=True)
            ],
            [r.why for r in results],
            *(int_array(getattr(r, name) for r in results) for name, _ in _COLUMNS),
        ],
    )


#: An agent that knows no elements would run the command once, and report the job as done.
_TOO_OLD: Final = (
    "echo 'The agent of this node is older than the server and runs no jobs of several elements; update it.' >&2;"
    " exit 125"
)


def add_elements(assignment: Assignment, to_run: Mapping[int, ToRun]) -> None:
    """Say in an assignment which elements its job has left to run, where it is a job of several."""
    found = to_run.get(assignment["job"])
    if found is None:
        return
    assignment["elements"] = ElementsToRun(
        indices=found.indices,
        command=assignment["command"],
        script=assignment["script"],
        limit_seconds=found.limit_seconds,
        worst_exit_code=found.worst_exit_code,
    )
    assignment["command"], assignment["script"] = _TOO_OLD, ""
