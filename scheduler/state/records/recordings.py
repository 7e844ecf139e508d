"""Cycles kept to be explained and replayed: the very bytes that were planned from and decided."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import connection

from scheduler.core.plan import Plan
from scheduler.core.policy import Policy
from scheduler.core.snapshot import codec
from scheduler.core.snapshot.snapshot import Snapshot
from scheduler.models import Cycle


class NotRecorded(Exception):
    """There is no such cycle, or its bytes were dropped when they grew old."""


@dataclass(frozen=True, slots=True)
class Recording:
    """A cycle's snapshot, policy and plan as canonical bytes."""

    snapshot: bytes
    policy: bytes
    plan: bytes

    @property
    def snapshot_digest(self) -> str:
        return hashlib.sha256(self.snapshot).hexdigest()

    @property
    def plan_digest(self) -> str:
        return hashlib.sha256(self.plan).hexdigest()


def encode(snapshot: Snapshot, policy: Policy, plan: Plan, *, cluster_id: int) -> Recording | None:
    """The bytes to keep, or None when this cycle decided nothing new.

    A cluster where nothing moves is planned every few seconds with the same result: one recording of it
    is enough. A cycle that starts something is always kept.
    """
    encoded = codec.encode_plan(plan)
    moves = plan.starts or plan.preempts or plan.resizes or plan.reserves or plan.given_back or plan.resumes
    if not moves and hashlib.sha256(encoded).hexdigest() == _last_plan_digest(cluster_id):
        return None
    return Recording(codec.encode_snapshot(snapshot), codec.encode_policy(policy), encoded)


def next_id() -> int:
    """The number that the cycle to be recorded will have: its attempts are written before it and name it."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT nextval(pg_get_serial_sequence('scheduler_cycle', 'id'))")
        return int(cursor.fetchone()[0])


def record(
    recording: Recording,
    *,
    cycle_id: int,
    cluster_id: int,
    fencing_token: int,
    trigger: str,
    started_at: datetime,
    load_us: int,
    plan_us: int,
    apply_us: int,
    pending_count: int,
    started_count: int,
    refused: Sequence[dict[str, Any]],
) -> Cycle:
    """Keep one cycle, in the transaction that applies it."""
    return Cycle.objects.create(
        id=cycle_id,
        cluster_id=cluster_id,
        fencing_token=fencing_token,
        trigger=trigger[:32],
        started_at=started_at,
        load_us=load_us,
        plan_us=plan_us,
        apply_us=apply_us,
        pending_count=pending_count,
        started_count=started_count,
        refused_count=len(refused),
        refused=list(refused),
        snapshot_digest=recording.snapshot_digest,
        plan_digest=recording.plan_digest,
        snapshot=recording.snapshot,
        policy=recording.policy,
        plan=recording.plan,
    )


def load(cycle_id: int) -> Recording:
    """The bytes of a recorded cycle; raises NotRecorded."""
    row = Cycle.objects.filter(pk=cycle_id).values_list("snapshot", "policy", "plan", named=True).first()
    if row is None:
        raise NotRecorded(f"there is no cycle {cycle_id}")
    if row.snapshot is None or row.policy is None or row.plan is None:
        raise NotRecorded(f"cycle {cycle_id} is known, but its recording was pruned by age")
    return Recording(snapshot=bytes(row.snapshot), policy=bytes(row.policy), plan=bytes(row.plan))


def latest(cluster_id: int) -> int | None:
    """The last cycle of this cluster that can be replayed."""
    return (
        Cycle.objects.filter(cluster_id=cluster_id, snapshot__isnull=False)
        .order_by("-id")
        .values_list("id", flat=True)
        .first()
    )


def _last_plan_digest(cluster_id: int) -> str | None:
    return (
        Cycle.objects.filter(cluster_id=cluster_id)
        .order_by("-id")
        .values_list("plan_digest", flat=True)
        .first()
    )
