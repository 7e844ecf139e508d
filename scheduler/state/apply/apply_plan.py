"""Plan to rows: one transaction, compare-and-set, and what no longer holds comes back as data."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.core.plan import Plan, Preempt, Resize, Start
from scheduler.state.apply import (
    apply_gang_reservations,
    apply_preemption,
    apply_resizes,
    apply_starts,
    fair_queue,
)
from scheduler.state.apply.apply_context import ApplyContext
from scheduler.state.apply.refusals import Refusal
from scheduler.state.db.sql import Rows
from scheduler.state.lease import leases
from scheduler.state.load import locked_snapshot


@dataclass(frozen=True, slots=True)
class Applied:
    """What was written of a plan, and what was refused."""

    started: tuple[Start, ...] = ()
    refused: tuple[Refusal, ...] = ()
    stopped: tuple[Preempt, ...] = ()
    resized: tuple[Resize, ...] = ()


def apply_plan(plan: Plan, context: ApplyContext) -> Applied:
    """Write the decisions that still hold; call it inside a transaction, which may hold the recording too.

    The lease is fenced first and cannot be taken over until the transaction ends. Starts are decided again on
    freshly locked rows by the planner's own filters; a job starts whole or not at all. For one pending job all its
    victims are stopped, suspended or resized, or none. Gangs that have changed keep what they have.

    Raises LeaseLost, and has written nothing, when another planner may have taken over.
    """
    if not (plan.starts or plan.preempts or plan.resizes or plan.reserves or plan.given_back):
        return Applied()
    cluster_row = _fence(plan, context)
    starts = apply_starts.check(plan, context, cluster_row)
    started, refused_by_rows = apply_starts.write(starts, context)
    fair_queue.write(started, context)
    resizes = apply_resizes.check(plan.resizes)
    preemption = apply_preemption.check(plan.preempts, except_for=resizes.refused)
    resizes = resizes.without(preemption.refused)
    apply_preemption.write(preemption, context)
    apply_resizes.write(resizes, context)
    apply_gang_reservations.write(plan, context)
    return Applied(
        started=tuple(started),
        refused=(
            *starts.refused, *refused_by_rows, *preemption.refused.values(), *resizes.refused.values(),
        ),
        stopped=preemption.accepted,
        resized=resizes.accepted,
    )  # fmt: skip


def _fence(plan: Plan, context: ApplyContext) -> Rows:
    """Fence the lease; with starts, answer in the same round trip the cluster's row that their check needs."""
    if not plan.starts:
        leases.fence(context.lease)
        return []
    (cluster_row,) = leases.fence_and_read(context.lease, locked_snapshot.applied_to(context.cluster_id))
    return cluster_row
