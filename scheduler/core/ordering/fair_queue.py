"""Fair queueing: tenants take turns by weight in a virtual time that is kept from cycle to cycle.

Start-time fair queueing (Goyal, Vin, Cheng: Start-time Fair Queuing, SIGCOMM 1996, section 2), with a job for a packet
and its dominant share (Ghodsi et al.: Dominant Resource Fairness, NSDI 2011) for the length: the largest part that it
asks for of the cluster's CPUs, memory or GPUs. A job of a tenant that waits starts, in virtual time, where the one
before it ends: its cost over the tenant's weight later. The job with the smallest virtual start is next, and the
virtual time is that of the last job that started. A tenant that had nothing to start begins at the virtual time when
it comes back, or where its last job ended if that is later: nobody saves up by being idle.

A tenant whose jobs wait for something else, such as quota, keeps its place, but is never more than one whole cluster
behind the virtual time. Turns count starts and what these ask for; how long a job runs is what fair share counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from scheduler.core.cluster.index import ClusterIndex
from scheduler.core.columns import Bools, Ints
from scheduler.core.policy import Policy
from scheduler.core.reasons.job_reasons import job_reasons
from scheduler.core.snapshot.snapshot import Snapshot, TurnColumns, turn_key

#: Of virtual time in a millionth of the cluster: divisible by every weight up to 16, so that their turns are exact.
SCALE: Final = 720_720

#: What the whole cluster costs a tenant of weight 1.
WHOLE: Final = 1_000_000 * SCALE

#: The tenant whose row is the virtual time.
CLOCK: Final = 0

#: Where the virtual time has come this far, all of a memory moves back, before 64 bits are too few for it: on a
#: cluster whose jobs take all of it and a second each, after a month.
FAR: Final = 2**61


class Turn(NamedTuple):
    """A row of the memory as it is to be written."""

    queue_id: int
    by_user: bool
    tenant_id: int
    virtual: int
    waiting: bool


@dataclass(frozen=True)
class TenantTurns:
    """By pending job: where it starts in virtual time and how far it takes its tenant; by tenant, where it is."""

    start: Ints
    charge: Ints  # of every pending job
    tenants: Ints  # ids, ascending
    tenant: Ints  # of each pending job, the row among the tenants
    virtual: Ints  # of each tenant
    open: Bools  # of each pending job: nothing of its own stops it
    clock: int

    __hash__ = None  # type: ignore[assignment]


def tenant_turns(cluster: ClusterIndex, policy: Policy, queue_id: int = 0) -> TenantTurns:
    """Where tenants and their jobs are in virtual time, for the cluster's policy or a queue's own.

    Jobs that their own rows or queues stop take no turn, least of all one of their tenant.
    """
    snapshot = cluster.snapshot
    pending, by_user = snapshot.pending, policy.tenant == "user"
    tenants, tenant = np.unique(pending.user_id if by_user else pending.project_id, return_inverse=True)
    is_open = np.ones(len(pending), dtype=np.bool_)
    for rows, _ in job_reasons(cluster):
        is_open[rows] = False
    if queue_id:
        is_open &= pending.queue_id == queue_id
    clock, virtual, weight = _remembered(snapshot, tenants, queue_id, by_user=by_user)
    if not by_user:
        row = np.searchsorted(snapshot.projects.id, tenants)
        weight = snapshot.projects.share_weight[row]
    charge = np.maximum(dominant_cost(cluster) * SCALE // np.maximum(weight, 1)[tenant], 1)
    taken = np.where(is_open, charge, 0)
    tier = -snapshot.queues.priority[cluster.pending.queue]
    order = np.lexsort((pending.id, pending.submitted_ms, tier, tenant))
    before = np.cumsum(taken[order]) - taken[order]
    first = np.flatnonzero(np.diff(tenant[order], prepend=-1))
    start = np.empty(len(pending), dtype=np.int64)
    ahead = before - np.repeat(before[first], np.diff(first, append=len(order)))
    start[order] = virtual[tenant[order]] + ahead
    return TenantTurns(start, charge, tenants, tenant, virtual, is_open, clock)


def _remembered(snapshot: Snapshot, tenants: Ints, queue_id: int, *, by_user: bool) -> tuple[int, Ints, Ints]:
    """The virtual time, where each tenant is in it, and the weights that the memory knows."""
    turns = snapshot.turns
    known = turns.take((turns.queue_id == queue_id) & (turns.by_user == by_user))
    clock = int(known.virtual[known.tenant_id == CLOCK].max(initial=0))
    virtual = np.full(len(tenants), clock, dtype=np.int64)
    weight = np.ones(len(tenants), dtype=np.int64)
    place = np.searchsorted(known.tenant_id, tenants)
    there = place < len(known)
    there[there] = known.tenant_id[place[there]] == tenants[there]
    row = place[there]
    least = np.where(known.waiting[row], clock - WHOLE, clock)
    virtual[there] = np.maximum(known.virtual[row], least)
    weight[there] = known.weight[row]
    return clock, virtual, weight


def dominant_cost(cluster: ClusterIndex) -> Ints:
    """Of each pending job, the largest part that it asks for of any one resource of the cluster, in millionths.

    At least 1, so that a job which asks for nothing takes a turn too.
    """
    snapshot = cluster.snapshot
    pending = snapshot.pending
    whole = (
        int(snapshot.nodes.cpu_millis.sum()),
        int(snapshot.nodes.memory_mib.sum()),
        int(cluster.devices.share.sum()),
    )
    each = np.array(
        [
            (one.per_task.cpu_millis, one.per_task.memory_mib, one.per_task.gpu_millis_charged)
            for one in snapshot.classes
        ]
        or [(0, 0, 0)],
        dtype=np.int64,
    )
    asked = each[pending.class_index] * pending.tasks[:, np.newaxis]
    parts = asked * 1_000_000 // np.maximum(np.array(whole, dtype=np.int64), 1)
    cost: Ints = np.clip(parts.max(axis=1, initial=0), 1, 1_000_000)
    return cost


def turns_after(cluster: ClusterIndex, policy: Policy, started: Iterable[int]) -> Iterator[Turn]:
    """What the memory is to hold once these pending jobs have started: the rows that change, by their key."""
    rows = np.flatnonzero(np.isin(cluster.snapshot.pending.id, np.fromiter(started, dtype=np.int64)))
    for queue_id, own in fair_queues(policy):
        turns = tenant_turns(cluster, own, queue_id)
        counted = rows[turns.open[rows]]
        if len(counted):
            yield from _changed(cluster, turns, counted, queue_id, by_user=own.tenant == "user")


def fair_queues(policy: Policy) -> list[tuple[int, Policy]]:
    """The policies by which tenants take turns: the cluster's as queue 0, and those of queues."""
    every = ((0, policy), *policy.queues)
    return [(queue_id, own) for queue_id, own in every if own.name == "fair_queue"]


def remembered(before: TurnColumns, changes: Iterable[Turn]) -> TurnColumns:
    """The memory with these rows in the place of those of the same tenants; weights stay."""
    rows = {
        row[0]: row
        for row in zip(
            before.id.tolist(), before.queue_id.tolist(), before.by_user.tolist(), before.tenant_id.tolist(),
            before.virtual.tolist(), before.waiting.tolist(), before.weight.tolist(), strict=True,
        )
    }  # fmt: skip
    for turn in changes:
        key = turn_key(turn.queue_id, turn.by_user, turn.tenant_id)
        rows[key] = (key, *turn, rows[key][-1] if key in rows else 1)
    return TurnColumns.from_rows(rows[key] for key in sorted(rows))


def _changed(
    cluster: ClusterIndex, turns: TenantTurns, rows: Ints, queue_id: int, *, by_user: bool
) -> Iterator[Turn]:
    snapshot = cluster.snapshot
    order = rows[np.argsort(turns.start[rows], kind="stable")]
    virtual, clock = turns.virtual.copy(), turns.clock
    for row in order.tolist():  # as many as have started
        tenant = turns.tenant.item(row)
        clock = max(clock, virtual.item(tenant))
        virtual[tenant] += turns.charge[row]
    left = turns.open.copy()
    left[rows] = False
    waiting = np.bincount(turns.tenant[left], minlength=len(turns.tenants)) > 0
    acts = waiting | (np.bincount(turns.tenant[rows], minlength=len(turns.tenants)) > 0)
    known = {
        (queue, user, tenant): (at, waits)
        for queue, user, tenant, at, waits in zip(
            snapshot.turns.queue_id.tolist(), snapshot.turns.by_user.tolist(), snapshot.turns.tenant_id.tolist(),
            snapshot.turns.virtual.tolist(), snapshot.turns.waiting.tolist(), strict=True,
        )
        if queue == queue_id and user == by_user
    }  # fmt: skip
    wanted = {(queue_id, by_user, CLOCK): (clock, False)}
    for tenant, at, waits, is_active in zip(
        turns.tenants.tolist(), virtual.tolist(), waiting.tolist(), acts.tolist(), strict=True
    ):
        if is_active:
            wanted[queue_id, by_user, tenant] = (at, waits)
    for key, (at, waits) in known.items():
        if waits and key not in wanted:
            wanted[key] = (at, False)  # it has nothing left: it begins at the virtual time when it comes back
    for key, now in sorted(wanted.items()):
        if known.get(key) != now:
            yield Turn(*key, *now)
