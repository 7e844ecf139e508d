"""The feed of changed jobs: which pending jobs are other than they were in the last picture.

Triggers on the jobs write a row of `ChangedJob` in the transaction that changes a job, with the number of that
transaction. A picture (REPEATABLE READ) knows which transactions it sees, as PostgreSQL says in
`pg_current_snapshot()`; so the next picture asks for the rows of all transactions that the last one did not see.
Thus no change is missed, in whatever order transactions begin and commit, and none is read twice.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from scheduler.core.columns import Ints
from scheduler.core.snapshot.request_classes import ClassTable
from scheduler.state.db.fragments import OF_CLUSTER
from scheduler.state.db.query import Answer, Batch, ColumnQuery, RowQuery, Table
from scheduler.state.db.sql import run
from scheduler.state.load.job_rows import JOBS_AS_REQUESTED, PENDING_COLUMNS, own_columns


class PictureRow(NamedTuple):
    """Which picture of which server this is."""

    sees: str  # the transactions it sees, a pg_snapshot
    oldest: int  # all transactions below this number are over, and seen
    connection: str  # of which process of the server, begun when; the server, since when


PICTURE: Final = RowQuery(
    PictureRow,
    {
        "sees": "pg_current_snapshot()::text",
        "oldest": "pg_snapshot_xmin(pg_current_snapshot())::text::bigint",
        "connection": "concat_ws(' ', pg_backend_pid(), pg_postmaster_start_time(), current_database())",
    },
    "SELECT {columns}",
)

_CHANGED: Final = """SELECT changed.job_number FROM scheduler_changedjob changed
    WHERE changed.xid >= %s AND NOT pg_visible_in_snapshot(changed.xid::text::xid8, %s::pg_snapshot)
        AND changed.queue_id IN (SELECT id FROM scheduler_queue WHERE cluster_id = %s)"""


class ChangedRow(NamedTuple):
    """A job that was changed since."""

    number: int


#: Of this cluster, since a picture; those that wait no more among them.
CHANGED: Final = RowQuery(
    ChangedRow,
    {"number": "since.job_number"},
    f"SELECT DISTINCT {{columns}} FROM ({_CHANGED}) since ORDER BY 1",
)
#: The rows of those that wait.
CHANGED_PENDING: Final = ColumnQuery(
    PENDING_COLUMNS,
    f"""SELECT {{columns}}
FROM {JOBS_AS_REQUESTED}
WHERE job.number = ANY(ARRAY({_CHANGED})) AND job.state IN ('queued', 'reserved') AND {OF_CLUSTER}
ORDER BY job.number""",
)


class Changes:
    """What `ask_changes` found, once its batch was sent."""

    def __init__(self, changed: Answer[list[ChangedRow]], pending: Answer[Table]) -> None:
        self._changed, self._pending = changed, pending

    def read(self, classes: ClassTable) -> tuple[Ints, dict[str, Ints]]:
        """The numbers of all jobs that were changed, and the own columns of those that wait."""
        numbers = np.array([row.number for row in self._changed.read()], dtype=np.int64)
        return numbers, own_columns(self._pending.read(), classes)


def ask_changes(batch: Batch, last: PictureRow, cluster_id: int) -> Changes:
    """Add to a batch what has changed in this cluster since the picture `last`."""
    since = [last.oldest, last.sees, cluster_id]
    return Changes(batch.add(CHANGED, since), batch.add(CHANGED_PENDING, [*since, cluster_id]))


#: What every later picture sees; and what a restored dump brought from another server, whose transactions had
#: higher numbers than any that could be seen here.
_PRUNE: Final = """
DELETE FROM scheduler_changedjob WHERE (xid < %s OR xid >= pg_snapshot_xmax(pg_current_snapshot())::text::bigint)
    AND (queue_id IN (SELECT id FROM scheduler_queue WHERE cluster_id = %s)
        OR NOT EXISTS (SELECT FROM scheduler_queue queue WHERE queue.id = queue_id))
"""


def prune(last: PictureRow, cluster_id: int) -> None:
    """Delete what this cluster's next picture need not look at."""
    run(_PRUNE, [last.oldest, cluster_id])
