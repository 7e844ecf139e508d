"""How far a table of events may be read so that no row can still appear before that position.

Rows get their numbers when they are inserted and are seen when their transaction commits, so that a smaller number
can be seen later than a larger one; a reader that simply remembers the largest would miss it. Every inserting
transaction holds a lock on the table (ROW EXCLUSIVE) from before it takes a number until it has ended: once those
that held it when the largest number was read are gone, all rows up to that number are there, or never will be.
PostgreSQL's CREATE INDEX CONCURRENTLY waits in the same way. Nobody who writes waits for this.
"""

from __future__ import annotations

import time
from typing import Final

from django.db import connection

#: Longer transactions are waited for with the next run.
PATIENCE_SECONDS: Final = 2.0
_PAUSE_SECONDS: Final = 0.02

_WRITERS: Final = """
SELECT virtualtransaction FROM pg_locks WHERE locktype = 'relation' AND relation = %s::regclass
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND mode = 'RowExclusiveLock' AND granted AND pid <> pg_backend_pid()
"""


def settled_up_to(
    table: str, key: str = "id", *, after: int = 0, patience_seconds: float = PATIENCE_SECONDS
) -> int | None:
    """The largest number up to which no further row of this table will appear; `after` where none comes after that.

    None where a transaction that writes to it outlasts the patience. Call it outside a transaction.
    """
    with connection.cursor() as cursor:
        largest = largest_of(table, key, after=after)
        waited_for = _writers(cursor, table)
        until = time.monotonic() + patience_seconds
        while waited_for:
            if time.monotonic() > until:
                return None
            time.sleep(_PAUSE_SECONDS)
            waited_for &= _writers(cursor, table)
    return largest


def largest_of(table: str, key: str, *, after: int) -> int:
    """The largest number that is there; `after` where none comes after that.

    Rows before `after` are not looked at: an index of ranges finds those that come after it.
    """
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT coalesce(max({key}), %s) FROM {table} WHERE {key} > %s", [after, after])  # noqa: S608
        return int(cursor.fetchone()[0])


def _writers(cursor: object, table: str) -> set[str]:
    cursor.execute(_WRITERS, [table])  # type: ignore[attr-defined]
    return {row[0] for row in cursor.fetchall()}  # type: ignore[attr-defined]
