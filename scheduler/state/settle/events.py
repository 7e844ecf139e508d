"""Events of jobs, many in one statement."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final, NamedTuple

from infra.db.prepared import ask
from scheduler.state.db.parameter_rows import ParameterRows
from scheduler.state.db.sql import Statement


class Event(NamedTuple):
    """One event of a job; `details` are JSON."""

    job_number: int
    epoch: int
    kind: str
    because: str
    details: str = "{}"


_ROWS: Final[ParameterRows[tuple[Event, datetime]]] = ParameterRows(
    "event",
    {
        "number": ("bigint", lambda row: row[0].job_number),
        "epoch": ("int", lambda row: row[0].epoch),
        "kind": ("text", lambda row: row[0].kind),
        "because": ("text", lambda row: row[0].because),
        "details": ("text", lambda row: row[0].details),
        "at": ("timestamptz", lambda row: row[1]),
    },
)
_INSERT: Final = f"""
INSERT INTO scheduler_jobevent (job_id, epoch, kind, because, details, at)
SELECT number, epoch, kind, because, details::jsonb, at FROM {_ROWS.source} ORDER BY place
"""


def write_events(events: Sequence[Event], *, at: datetime | Sequence[datetime]) -> None:
    """Write events in this order, in one statement; `at` is the moment of all, or of each."""
    for statement in event_statements(events, at=at):
        ask(*statement)


def unzipped(events: Sequence[tuple[Event, datetime]]) -> tuple[list[Event], list[datetime]]:
    """Events with their moments, as `event_statements` takes them."""
    return [event for event, _ in events], [at for _, at in events]


def event_statements(events: Sequence[Event], at: datetime | Sequence[datetime]) -> list[Statement]:
    """The statement that writes them, if there are any."""
    if not events:
        return []
    moments = [at] * len(events) if isinstance(at, datetime) else at
    return [(_INSERT, _ROWS.parameters(zip(events, moments, strict=True)))]
