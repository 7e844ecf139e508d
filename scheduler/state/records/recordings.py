"""Cycles kept to be explained and replayed: the very bytes that were planned from and decided."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from django.db import connection

from scheduler.core.plan import Plan
from scheduler.core.policy import Policy
from scheduler.core.snapshot import codec
from scheduler.core.snapshot.snapshot import Snapshot
from scheduler.models import Cycle


class NotRecorded(Exception):
    """There is no such cycle, or its bytes were dropped when they grew old."""


#: A whole snapshot at least once in this number of recordings ...
WHOLE_EVERY: Final = 64
#: ... and as soon as what makes another one of it is more than this share of it.
LARGEST_DELTA: Final = 0.5


@dataclass(frozen=True, slots=True)
class Recording:
    """A cycle's snapshot, policy and plan as canonical bytes."""

    snapshot: bytes
    policy: bytes
    plan: bytes

    @property
    def plan_digest(self) -> str:
        return hashlib.sha256(self.plan).hexdigest()


@dataclass(frozen=True, slots=True)
class _Base:
    """The last snapshot of a cluster that this process recorded whole."""

    cycle_id: int
    snapshot: Snapshot
    size: int
    digest: str
    #: How many recordings have been made of it.
    used: int = 0


@dataclass(frozen=True, slots=True)
class NewRecording:
    """A recording that is not kept yet: its snapshot whole, or as what makes it of the base."""

    stored: Recording
    snapshot: Snapshot
    base: _Base | None

    @property
    def snapshot_digest(self) -> str:
        """SHA-256 of the bytes; of a delta that of the digest of its base and its bytes."""
        before = self.base.digest.encode() if self.base else b""
        return hashlib.sha256(before + self.stored.snapshot).hexdigest()


#: By cluster.
_bases: dict[int, _Base] = {}


def encode(
    snapshot: Snapshot, policy: Policy, plan: Plan, *, cluster_id: int, always: bool = False
) -> NewRecording | None:
    """The bytes to keep, or None when this cycle decided nothing new.

    A cluster where nothing moves is planned every few seconds with the same result: one recording of it
    is enough. A cycle that starts something is always kept, and with `always` every cycle is.
    """
    encoded = codec.encode_plan(plan)
    moves = plan.starts or plan.preempts or plan.resizes or plan.reserves or plan.given_back or plan.resumes
    if not (moves or always) and hashlib.sha256(encoded).hexdigest() == _last_plan_digest(cluster_id):
        return None
    written, base = codec.encode_policy(policy), _bases.get(cluster_id)
    if base and base.used < WHOLE_EVERY and _is_kept(base.cycle_id):
        delta = codec.encode_delta(base.snapshot, snapshot)
        if len(delta) < LARGEST_DELTA * base.size:
            return NewRecording(Recording(delta, written, encoded), snapshot, base)
    return NewRecording(Recording(codec.encode_snapshot(snapshot), written, encoded), snapshot, None)


def keep_base(recording: NewRecording, cluster_id: int, cycle_id: int) -> None:
    """Once it is committed: let the next recordings say only what is other than in this one, or in its base."""
    base = recording.base
    if base is not None:
        _bases[cluster_id] = replace(base, used=base.used + 1)
        return
    stored = recording.stored.snapshot
    _bases[cluster_id] = _Base(cycle_id, recording.snapshot, len(stored), recording.snapshot_digest)


def forget_bases() -> None:
    """Record the next snapshot of every cluster whole."""
    _bases.clear()


def next_id() -> int:
    """The number that the cycle to be recorded will have: its attempts are written before it and name it."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT nextval(pg_get_serial_sequence('scheduler_cycle', 'id'))")
        return int(cursor.fetchone()[0])


def record(
    recording: NewRecording,
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
    rules: Sequence[dict[str, Any]] = (),
    profiles: Sequence[Mapping[str, Any]] = (),
) -> Cycle:
    """Keep one cycle, in the transaction that applies it."""
    stored = recording.stored
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
        rules=list(rules),
        profiles=list(profiles),
        snapshot_digest=recording.snapshot_digest,
        plan_digest=stored.plan_digest,
        base_id=recording.base.cycle_id if recording.base else None,
        snapshot=stored.snapshot,
        policy=stored.policy,
        plan=stored.plan,
    )


def load(cycle_id: int) -> Recording:
    """The bytes of a recorded cycle, its snapshot whole; raises NotRecorded, CodecError."""
    row = _row(cycle_id)
    if row is None:
        raise NotRecorded(f"there is no cycle {cycle_id}")
    if row.snapshot is None or row.policy is None or row.plan is None:
        raise NotRecorded(f"cycle {cycle_id} is known, but its recording was pruned by age")
    snapshot = bytes(row.snapshot)
    if row.base_id is not None:
        base = _row(row.base_id)
        if base is None or base.snapshot is None:
            raise NotRecorded(
                f"cycle {cycle_id} was recorded on top of cycle {row.base_id}, which was pruned"
            )
        snapshot = codec.encode_snapshot(
            codec.decode_delta(codec.decode_snapshot(bytes(base.snapshot)), snapshot)
        )
    return Recording(snapshot=snapshot, policy=bytes(row.policy), plan=bytes(row.plan))


def _row(cycle_id: int) -> Any:
    words = ("snapshot", "policy", "plan", "base_id")
    return Cycle.objects.filter(pk=cycle_id).values_list(*words, named=True).first()


def latest(cluster_id: int) -> int | None:
    """The last cycle of this cluster that can be replayed."""
    return (
        Cycle.objects.filter(cluster_id=cluster_id, snapshot__isnull=False)
        .order_by("-id")
        .values_list("id", flat=True)
        .first()
    )


def _is_kept(cycle_id: int) -> bool:
    return Cycle.objects.filter(pk=cycle_id, snapshot__isnull=False).exists()


def _last_plan_digest(cluster_id: int) -> str | None:
    return (
        Cycle.objects.filter(cluster_id=cluster_id)
        .order_by("-id")
        .values_list("plan_digest", flat=True)
        .first()
    )
