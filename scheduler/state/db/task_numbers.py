"""Numbers of tasks, made of the time: a database that is restored from a backup hands none of them out again.

A counter of the database goes back with the database. The nodes of the fleet do not: they have processes, output and
folders under numbers that the counter would give to other tasks. So a number has the milliseconds since the beginning
of 2026 in its upper bits and the end of the counter in its lower ones. Two tasks could have the same number only if
4,096 others were written in the same millisecond, which the primary key then refuses. Numbers stay below 2^53, what a
double holds exactly, until 2095, and above those that the counter alone has given.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

_BEGIN: Final = datetime(2026, 1, 1, tzinfo=UTC)
_PER_MILLISECOND: Final = 4096
#: What an insert writes as the `id` of a task: a number that no task has or had.
NEXT_TASK: Final = (
    f"((extract(epoch FROM clock_timestamp()) * 1000)::bigint - {int(_BEGIN.timestamp() * 1000)})"
    f" * {_PER_MILLISECOND} + nextval('scheduler_task_id_seq') % {_PER_MILLISECOND}"
)


def assigned_at(task: int) -> datetime:
    """When a task was assigned, by its number; one of an earlier version: the beginning of 2026."""
    return _BEGIN + timedelta(milliseconds=task // _PER_MILLISECOND)
