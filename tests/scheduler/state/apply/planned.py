"""A plan of a small world, the lease and context to apply it, and what became of it."""

from __future__ import annotations

from datetime import UTC, datetime

from django.db import transaction

from scheduler.core.cycle import plan_cycle
from scheduler.core.plan import Plan
from scheduler.state.apply.apply_context import ApplyContext
from scheduler.state.apply.apply_plan import Applied, apply_plan
from scheduler.state.lease import leases
from scheduler.state.lease.leases import HeldLease
from scheduler.state.load import snapshots
from scheduler.state.load.snapshots import Loaded
from tests.scheduler.state.small import SmallWorld


def seen_and_planned(world: SmallWorld) -> tuple[Loaded, Plan]:
    loaded = snapshots.load_snapshot(cluster_id=world.cluster.pk)
    return loaded, plan_cycle(loaded.snapshot, loaded.policy)


def a_lease(world: SmallWorld, holder: str = "us") -> HeldLease:
    lease = leases.acquire(leases.cluster_scope(world.cluster.pk), holder=holder, seconds=60)
    assert lease is not None
    return lease


def applied(world: SmallWorld, loaded: Loaded, plan: Plan, lease: HeldLease) -> Applied:
    with transaction.atomic():
        return apply_plan(plan, a_context(world, loaded, lease))


def a_context(world: SmallWorld, loaded: Loaded, lease: HeldLease) -> ApplyContext:
    return ApplyContext(
        cluster_id=world.cluster.pk, backend=loaded.backend, snapshot=loaded.snapshot, policy=loaded.policy,
        lease=lease, at=datetime.now(UTC),
    )  # fmt: skip


def refused(outcome: Applied) -> dict[int, str]:
    return {refusal.job: refusal.code for refusal in outcome.refused}
