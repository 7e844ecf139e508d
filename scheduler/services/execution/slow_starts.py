"""Starts that take longer than most: their attempts and jobs become starting, with the event of that."""

from __future__ import annotations

from typing import Final

from django.db import transaction
from django.utils import timezone

from scheduler import outbox
from scheduler.state.db.sql import int_array, run
from scheduler.state.settle.events import Event, write_events

#: From when a job has its nodes. Most have begun or ended by then, with a move less and an event less.
SLOW_SECONDS: Final = 2.0


@transaction.atomic
def note_slow_starts() -> int:
    """Make jobs starting that an agent has accepted and that have not begun; answers how many.

    Safe to call again and from several processes: jobs are locked before their attempts, and one that somebody else
    has locked is left for the next call. It can begin, end or be stopped before.
    """
    found = run(_ACCEPTED, [SLOW_SECONDS, None])
    if not found:
        return 0
    locked = [row[0] for row in run(_LOCK_JOBS, [int_array(row[1] for row in found)])]
    accepted = run(_ACCEPTED, [SLOW_SECONDS, int_array(locked)])
    numbers = int_array(row[1] for row in accepted)
    run(_START_ATTEMPTS, [numbers])
    run(_START_JOBS, [numbers])
    write_events(
        [Event(number, epoch, "job.starting", f"accepted by {node}") for node, number, epoch in accepted],
        at=timezone.now(),
    )
    outbox.announce_many(outbox.job_topic(number) for _, number, _ in accepted)
    return len(accepted)


#: By job the node of the lowest rank that an agent has fetched; of these jobs, or of all where it is null.
_ACCEPTED: Final = """
SELECT DISTINCT ON (a.job_id) n.name, a.job_id, a.epoch
FROM scheduler_attempt a JOIN scheduler_task t ON t.attempt_id = a.id JOIN scheduler_node n ON n.id = t.node_id
WHERE t.released_at IS NULL AND a.is_live AND a.state = 'assigned'
    AND a.scheduled_at < clock_timestamp() - make_interval(secs => %s)
    AND a.stop_asked_at IS NULL AND t.state = 'starting' AND a.job_id = ANY(coalesce(%s::bigint[], ARRAY[a.job_id]))
ORDER BY a.job_id, t.rank
"""
_LOCK_JOBS: Final = """
SELECT number FROM scheduler_job WHERE number = ANY(%s::bigint[]) AND state = 'scheduled'
ORDER BY number FOR NO KEY UPDATE SKIP LOCKED
"""
_START_ATTEMPTS: Final = """
UPDATE scheduler_attempt SET state = 'starting' WHERE job_id = ANY(%s::bigint[]) AND is_live
"""
_START_JOBS: Final = """
UPDATE scheduler_job SET state = 'starting', generation = generation + 1 WHERE number = ANY(%s::bigint[])
"""
