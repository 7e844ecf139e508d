"""The memory of fair queueing for a cycle: not read where no policy is "fair_queue"."""

from __future__ import annotations

from typing import Final, NamedTuple

from scheduler.core.ordering.fair_queue import CLOCK, fair_queues
from scheduler.core.policy import Policy
from scheduler.core.snapshot.snapshot import TurnColumns, turn_key
from scheduler.state.db.query import RowQuery, fetch


class TurnRow(NamedTuple):
    """A tenant in virtual time, or a person with a weight (`virtual` is None)."""

    queue_id: int
    by_user: bool
    tenant_id: int
    virtual: int | None
    waiting: bool
    weight: int


#: What has no job left and is behind the virtual time begins there: as if there were no row.
_TURNS: Final = RowQuery(
    TurnRow,
    {
        "queue_id": "turn.queue_id",
        "by_user": "turn.by_user",
        "tenant_id": "turn.tenant_id",
        "virtual": "turn.virtual",
        "waiting": "turn.waiting",
        "weight": "coalesce(CASE WHEN turn.by_user THEN person.share_weight END, 1)",
    },
    """SELECT {columns} FROM scheduler_fairqueueturn turn
    LEFT JOIN accounts_user person ON person.id = turn.tenant_id
WHERE turn.cluster_id = %s AND (turn.waiting OR turn.tenant_id = 0 OR turn.virtual > (
    SELECT clock.virtual FROM scheduler_fairqueueturn clock WHERE clock.cluster_id = turn.cluster_id
        AND clock.queue_id = turn.queue_id AND clock.by_user = turn.by_user AND clock.tenant_id = 0))
ORDER BY turn.queue_id, turn.by_user, turn.tenant_id""",
)
_WEIGHTS: Final = RowQuery(
    TurnRow,
    {
        "queue_id": "0",
        "by_user": "true",
        "tenant_id": "person.id",
        "virtual": "NULL::bigint",
        "waiting": "false",
        "weight": "person.share_weight",
    },
    "SELECT {columns} FROM accounts_user person WHERE person.share_weight <> 1 ORDER BY person.id",
)


def turn_columns(cluster_id: int, policy: Policy) -> TurnColumns:
    """Where the tenants of the policies that take turns are in virtual time, with the weights of people."""
    taking = {(queue_id, own.tenant == "user") for queue_id, own in fair_queues(policy)}
    if not taking:
        return TurnColumns()
    rows = {
        turn_key(row.queue_id, row.by_user, row.tenant_id): row
        for row in fetch(_TURNS, [cluster_id])
        if (row.queue_id, row.by_user) in taking
    }
    people = fetch(_WEIGHTS) if any(by_user for _, by_user in taking) else []
    for queue_id in sorted(queue_id for queue_id, by_user in taking if by_user):
        clock = rows.get(turn_key(queue_id, True, CLOCK))
        for person in people:
            key = turn_key(queue_id, True, person.tenant_id)
            at = clock.virtual if clock else 0
            rows.setdefault(key, person._replace(queue_id=queue_id, virtual=at))
    return TurnColumns.from_rows((key, *rows[key]) for key in sorted(rows))
