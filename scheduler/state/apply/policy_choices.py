"""Which rule of a profile is in force, written with the cycle that chose it."""

from __future__ import annotations

from typing import Final

from django.db import connection

from scheduler.core.ordering.choice import choices_of, in_force
from scheduler.core.policy import Policy
from scheduler.core.snapshot.snapshot import Snapshot
from scheduler.state.apply.apply_context import ApplyContext
from scheduler.state.db.sql import int_array
from scheduler.state.lease import leases

_WRITE: Final = """
INSERT INTO scheduler_policychoice AS choice (cluster_id, queue_id, rule, since_ms, policy, placement)
SELECT %s, * FROM unnest(%s::bigint[], %s::text[], %s::bigint[], %s::text[], %s::text[])
ON CONFLICT (cluster_id, queue_id) DO UPDATE SET rule = excluded.rule, since_ms = excluded.since_ms,
    policy = excluded.policy, placement = excluded.placement
"""
_DELETE: Final = "DELETE FROM scheduler_policychoice WHERE cluster_id = %s AND queue_id <> ALL(%s::bigint[])"


def is_new(snapshot: Snapshot, policy: Policy) -> bool:
    """Whether the cycle has chosen otherwise than the one before."""
    before, now = snapshot.choices, choices_of(policy)
    return (before.id.tolist(), before.rule, before.since_ms.tolist()) != (
        now.id.tolist(), now.rule, now.since_ms.tolist(),
    )  # fmt: skip


def write(context: ApplyContext) -> None:
    """Keep what the cycle has chosen, where that is new; call it inside the transaction that records the cycle.

    Raises LeaseLost, and has written nothing, when another planner may have taken over.
    """
    if not is_new(context.snapshot, context.policy):
        return
    leases.fence(context.lease)
    chosen = in_force(context.policy)
    policies = [context.policy.of_queue(one.queue_id) for one in chosen]
    queues = int_array([one.queue_id for one in chosen])
    with connection.cursor() as cursor:
        cursor.execute(_DELETE, [context.cluster_id, queues])
        cursor.execute(
            _WRITE,
            [
                context.cluster_id, queues, [one.rule for one in chosen],
                int_array([one.since_ms for one in chosen]),
                [policy.name for policy in policies], [policy.placement for policy in policies],
            ],
        )  # fmt: skip
