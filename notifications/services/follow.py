"""Reads what has happened since the last time, and writes who is notified, exactly once.

One transaction writes what follows from a batch of events and moves the cursor behind them: killed in the middle,
it has done neither, and the next run does both. A second run at the same time finds the cursor locked and leaves
it alone. Submitting, placing and settling jobs know nothing of this and write nothing for it.
"""

from __future__ import annotations

from typing import Final

import structlog
from django.db import transaction
from django.utils import timezone

from infra.db.commit_order import largest_of, settled_up_to
from notifications.models import Cursor
from notifications.services import job_events
from notifications.services.occurrences import take_in
from notifications.services.other_events import STREAMS, Stream

log = structlog.get_logger(__name__)

#: Batches of one run: after a long pause the next run goes on.
MOST_BATCHES: Final = 100

ALL_STREAMS: Final = (Stream(job_events.SOURCE, job_events.TABLE, "id", job_events.read), *STREAMS)


def follow() -> int:
    """Read each stream as far as it is settled; answers how many rows were written."""
    return sum(_follow(stream) for stream in ALL_STREAMS)


def _follow(stream: Stream) -> int:
    position = _begin(stream)
    if not _has_more(stream, position):
        return 0
    until = settled_up_to(stream.table, stream.key, after=position)
    if until is None:
        log.info("notifications_wait_for_a_transaction", stream=stream.name)
        return 0
    written = 0
    for _ in range(MOST_BATCHES):
        step = _step(stream, until)
        if step is None:
            break
        written += step
    return written


def _begin(stream: Stream) -> int:
    """The cursor's position; the first run ever begins with what happens from now on."""
    found = Cursor.objects.filter(source=stream.name).values_list("position", flat=True).first()
    if found is not None:
        return found
    Cursor.objects.bulk_create(
        [
            Cursor(
                source=stream.name,
                position=largest_of(stream.table, stream.key, after=0),
                moved_at=timezone.now(),
            )
        ],
        ignore_conflicts=True,
    )
    return _begin(stream)


def _has_more(stream: Stream, position: int) -> bool:
    return largest_of(stream.table, stream.key, after=position) > position


def _step(stream: Stream, until: int) -> int | None:
    """One batch; None where nothing is left, or another process is at it."""
    with transaction.atomic():
        cursor = Cursor.objects.select_for_update(skip_locked=True).filter(source=stream.name).first()
        if cursor is None or cursor.position >= until:
            return None
        now = timezone.now()
        found, cursor.position = stream.read(cursor.position, until)
        written = take_in(found, now=now)
        cursor.moved_at = now
        cursor.save(update_fields=["position", "moved_at"])
        return written
