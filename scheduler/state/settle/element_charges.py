"""What a job that runs several elements of an array is charged, as a line of the ledger for each element."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from quotas.core.ledger import Kind, split
from scheduler.state.db.query import Answer, Batch, RowQuery
from scheduler.state.db.sql import int_array
from scheduler.state.ledger.ledger import Line


class EndedElementRow(NamedTuple):
    """An element that an attempt ran, and the second in which it ended."""

    attempt_id: int
    element: int
    ended_s: int


_ENDED: Final = RowQuery(
    EndedElementRow,
    {"attempt_id": "a.id", "element": "e.index", "ended_s": "floor(extract(epoch FROM e.ended_at))::bigint"},
    """SELECT {columns} FROM scheduler_attempt a
    JOIN scheduler_elementend e ON e.job_id = a.job_id AND e.epoch = a.epoch
WHERE a.id = ANY(%s::bigint[]) ORDER BY a.id, e.ended_at, e.index""",
)


def ask_elements(batch: Batch, attempt_ids: Iterable[int]) -> Answer[list[EndedElementRow]]:
    """Add to a batch which elements these attempts have run."""
    return batch.add(_ENDED, [int_array(attempt_ids)])


def by_element(lines: Iterable[Line], rows: Sequence[EndedElementRow]) -> list[Line]:
    """Each charge as one for each element, which has the time since the element before it ended.

    An attempt is charged for whole seconds, and in one there may be hundreds of elements: the second belongs to the one
    that it ends with. All lines of an attempt together are what one line for it would be.
    """
    ran = _by_attempt(rows)
    if not ran:
        return list(lines)
    found: list[Line] = []
    begun: set[tuple[int, str]] = set()
    for line in lines:
        elements = ran.get(line.attempt_id)
        if line.entry.kind is not Kind.CHARGE or elements is None:
            found.append(line)
            continue
        # Of each model of GPU there is a charge, or one a day: the first has what ended in its first second, too.
        first = (line.attempt_id, line.entry.rates.gpu_model)
        found += _parts(line, elements, since=line.entry.from_s if first in begun else -1)
        begun.add(first)
    return found


def _parts(line: Line, elements: Sequence[EndedElementRow], *, since: int) -> list[Line]:
    """One charge, divided by the elements that ended in its time; what is left is of the one that ended next."""
    own = [one for one in elements if since < one.ended_s <= line.entry.until_s]
    following = next((one for one in elements if one.ended_s > line.entry.until_s), None)
    parts = split(line.entry, [one.ended_s for one in own])
    reasons = [f"element {one.element}" for one in own]
    if len(parts) > len(own):
        reasons.append(f"element {following.element}" if following is not None else "after its elements")
    return [line._replace(entry=part, reason=why) for part, why in zip(parts, reasons, strict=True)]


def _by_attempt(rows: Iterable[EndedElementRow]) -> dict[int, list[EndedElementRow]]:
    found: defaultdict[int, list[EndedElementRow]] = defaultdict(list)
    for row in rows:
        found[row.attempt_id].append(row)
    return dict(found)
