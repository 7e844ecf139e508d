"""The memory of fair queueing, written with the starts that move it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from django.db import connection

from scheduler.core.cluster.index import ClusterIndex
from scheduler.core.ordering.fair_queue import CLOCK, FAR, WHOLE, fair_queues, turns_after
from scheduler.core.plan import Start
from scheduler.state.apply.apply_context import ApplyContext
from scheduler.state.db.sql import int_array

_WRITE: Final = """
INSERT INTO scheduler_fairqueueturn AS turn (cluster_id, queue_id, by_user, tenant_id, virtual, waiting)
SELECT %s, * FROM unnest(%s::bigint[], %s::boolean[], %s::bigint[], %s::bigint[], %s::boolean[])
ON CONFLICT (cluster_id, queue_id, by_user, tenant_id) DO UPDATE SET
    virtual = excluded.virtual, waiting = excluded.waiting
"""
#: Of a memory: all tenants keep their distances, but for those that are more than the whole cluster behind.
_MOVE_BACK: Final = """
UPDATE scheduler_fairqueueturn SET virtual = greatest(virtual - %s, 0)
WHERE cluster_id = %s AND queue_id = %s AND by_user = %s
"""


def write(started: Sequence[Start], context: ApplyContext) -> None:
    """Write how far the tenants are once these jobs have started; nothing where no policy takes turns.

    The lease is fenced: no other planner of the cluster writes here until this transaction ends.
    """
    if not started or not fair_queues(context.policy):
        return
    numbers = [start.job_id for start in started]
    turns = list(turns_after(ClusterIndex(context.snapshot), context.policy, numbers))
    if not turns:
        return
    queues, by_user, tenants, virtual, waiting = zip(*turns, strict=True)
    with connection.cursor() as cursor:
        cursor.execute(
            _WRITE,
            [
                context.cluster_id, int_array(queues), list(by_user), int_array(tenants), int_array(virtual),
                list(waiting),
            ],
        )  # fmt: skip
        for turn in turns:
            if turn.tenant_id == CLOCK and turn.virtual >= FAR:
                back = [turn.virtual - WHOLE, context.cluster_id, turn.queue_id, turn.by_user]
                cursor.execute(_MOVE_BACK, back)
