"""Arrays as a whole: how many elements are in which state, and whether what waits for all of them may go on.

Elements are looked up by the number of their array first and joined by their own numbers: in a young database, whose
statistics know no array, a join of both tables would look at all elements for each job.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple

from django.db import connection

from infra.db.prepared import ask
from scheduler.models import DependencyKind
from scheduler.state.db.query import RowQuery
from scheduler.state.db.sql import int_array


class ArrayEnds(NamedTuple):
    """How many elements of an array are not over, and how the others ended."""

    number: int
    open: int
    failed: int
    cancelled: int


_ENDS: Final = RowQuery(
    ArrayEnds,
    {
        "number": "listed.number",
        "open": "ends.open",
        "failed": "ends.failed",
        "cancelled": "ends.cancelled",
    },
    """SELECT {columns} FROM unnest(%s::bigint[]) AS listed(number) CROSS JOIN LATERAL (
    SELECT count(*) FILTER (WHERE job.outcome IS NULL) AS open,
        count(*) FILTER (WHERE job.outcome = 'failed') AS failed,
        count(*) FILTER (WHERE job.outcome = 'cancelled') AS cancelled
    FROM scheduler_job job WHERE job.number = ANY(ARRAY(
        SELECT request.number FROM scheduler_jobrequest request WHERE request.array_number = listed.number))
) ends""",
)
_OPEN_ELEMENTS: Final = """
SELECT job.number FROM scheduler_job job WHERE job.outcome IS NULL AND job.number = ANY(ARRAY(
    SELECT request.number FROM scheduler_jobrequest request WHERE request.array_number = ANY(%s::bigint[]))) ORDER BY 1
"""


class OpenWait(NamedTuple):
    """A wait for all elements of an array; `open`: some of these are not over."""

    id: int
    job_id: int
    on_array: int
    kind: str
    open: bool


#: From the last index on: elements start in their order, so that one of the last is most likely not over.
_STATE_OF_WAITS: Final = RowQuery(
    OpenWait,
    {
        "id": "edge.id",
        "job_id": "edge.job_id",
        "on_array": "edge.on_array",
        "kind": "edge.kind",
        "open": """EXISTS (SELECT FROM (SELECT request.number FROM scheduler_jobrequest request
            WHERE request.array_number = edge.on_array ORDER BY request.array_index DESC OFFSET 0) element
            WHERE (SELECT job.outcome FROM scheduler_job job WHERE job.number = element.number) IS NULL)""",
    },
    "SELECT {columns} FROM scheduler_jobdependency edge WHERE edge.id = ANY(%s::bigint[])",
)
_LOCK_WAITS: Final = """
SELECT id FROM scheduler_jobdependency WHERE id = ANY(%s::bigint[]) AND satisfied IS NULL ORDER BY id FOR NO KEY UPDATE
"""


def ends_of_arrays(numbers: Collection[int]) -> dict[int, ArrayEnds]:
    """How far these arrays are, by their numbers."""
    found = _ENDS.read(ask(_ENDS.sql(), [int_array(numbers)])) if numbers else []
    return {one.number: one for one in found}


def open_elements(numbers: Collection[int]) -> list[int]:
    """The numbers of the elements of these arrays that are not over."""
    return [row[0] for row in ask(_OPEN_ELEMENTS, [int_array(numbers)])] if numbers else []


def array_holds(kind: str, ends: ArrayEnds) -> bool | None:
    """Whether a dependency on all elements holds: None while that is open.

    `success` can never hold once an element did not complete; `completion` and `failure` wait for the last element,
    and `failure` holds if one of them failed.
    """
    if kind == DependencyKind.SUCCESS and ends.failed + ends.cancelled:
        return False
    if ends.open:
        return None
    return ends.failed > 0 if kind == DependencyKind.FAILURE else True


def settle_waits(waits: Collection[int], *, lost: Collection[int]) -> dict[bool, list[OpenWait]]:
    """What became of waits for arrays of which elements have just ended; `lost`: arrays with one that did not complete.

    The waits are locked first: of two elements that end at once, the second finds the end of the first.
    """
    with connection.cursor() as cursor:
        cursor.execute(_LOCK_WAITS, [int_array(waits)])
        ids = [row[0] for row in cursor.fetchall()]
    verdicts: dict[bool, list[OpenWait]] = {True: [], False: []}
    asked = _STATE_OF_WAITS.read(ask(_STATE_OF_WAITS.sql(), [int_array(ids)])) if ids else []
    ends = ends_of_arrays({wait.on_array for wait in asked if not wait.open})
    for wait in asked:
        if wait.open:
            verdict = False if wait.kind == DependencyKind.SUCCESS and wait.on_array in lost else None
        else:
            verdict = array_holds(wait.kind, ends[wait.on_array])
        if verdict is not None:
            verdicts[verdict].append(wait)
    return verdicts
