"""Ordering: which pending job is considered next."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from quotas.core.fairshare import NOTHING, flat_share
from scheduler.core.cluster.budgets import demoted
from scheduler.core.cluster.free_columns import Floats
from scheduler.core.cluster.index import ClusterIndex
from scheduler.core.columns import Bools, Ints, stable_order
from scheduler.core.ordering.fair_queue import tenant_turns
from scheduler.core.placement.plugins import Orders, Rules
from scheduler.core.policy import Policy

#: Keys of an order, most important first; all ascending. The job id comes after them all. The number is the queue
#: whose own policy it is, 0 for the cluster's.
Order = Callable[[ClusterIndex, Policy, int], tuple[Ints, ...]]

#: Later than every moment: no deadline, no time limit.
_NEVER: Final = int(np.iinfo(np.int64).max)

#: The highest priority of the bands below the highest: Low, Normal.
_BANDS: Final = np.array([33, 66], dtype=np.int64)

#: A factor of 0 to 1 in whole steps, so that sums do not depend on the order they are made in.
_STEPS: Final = 1_000_000


def order_jobs(cluster: ClusterIndex, policy: Policy, rules: Rules) -> Ints:
    """Rows of the pending jobs, first to last, each queue in its own order.

    The cluster's policy says which places in line a queue's jobs have; among these its own deals them out.
    """
    order = job_order(cluster, policy, rules.orders)
    own_rules = dict(rules.queues)
    for queue_id, own in policy.queues:
        here = cluster.snapshot.pending.queue_id[order] == queue_id
        if here.any():
            mine = job_order(cluster, own, own_rules[queue_id].orders, queue_id)
            order[here] = mine[cluster.snapshot.pending.queue_id[mine] == queue_id]
    return order


def job_order(
    cluster: ClusterIndex, policy: Policy, outside: tuple[Orders, ...] = (), queue_id: int = 0
) -> Ints:
    """Rows of the pending jobs, first to last.

    Outside orders come first, then the jobs of a spent budget go last, then queues by their priority, the policy,
    its tie-breakers and the job id. `queue_id` is the queue whose own policy this is, 0 for the cluster's.
    """
    keys: list[Ints] = []
    for plugin in outside:
        numbers = np.asarray(plugin.order(cluster.snapshot.pending), dtype=np.float64)
        keys.append(np.unique(-numbers, return_inverse=True)[1].astype(np.int64))
    last = demoted(cluster.snapshot)
    if last.any():
        keys.append(last.astype(np.int64))
    if (tier := _queue_tier(cluster, policy)) is not None:
        keys.append(tier)
    keys.extend(ORDERS[policy.name](cluster, policy, queue_id))
    keys.extend(_tie_breaker(cluster, name) for name in policy.tie_breakers)
    return _sorted_rows(keys, len(cluster.snapshot.pending))


def _queue_tier(cluster: ClusterIndex, policy: Policy) -> Ints | None:
    """Queues of higher priority first, whatever the policy (as Slurm's PriorityTier of partitions); None = all equal.

    A policy whose factors weigh the queue has said by how much it counts: then the weighted sum alone orders.
    """
    if any(name == "queue" for name, _ in policy.factors):
        return None
    priority = cluster.snapshot.queues.priority
    if not len(priority) or (priority == priority[0]).all():
        return None
    tier: Ints = -priority[cluster.pending.queue]
    return tier


def _fifo(cluster: ClusterIndex, policy: Policy, queue_id: int) -> tuple[Ints, ...]:
    """As they came in."""
    return (cluster.snapshot.pending.submitted_ms,)


def _priority(cluster: ClusterIndex, policy: Policy, queue_id: int) -> tuple[Ints, ...]:
    """Job priority (or its band), then who could start first; or the weighted sum of factors."""
    pending = cluster.snapshot.pending
    since = np.maximum(pending.submitted_ms, pending.eligible_ms)
    if policy.factors:
        total = np.zeros(len(pending), dtype=np.int64)
        for name, weight in policy.factors:
            total += factor(cluster, policy, name) * weight
        return (-total, since)
    if policy.priority_by == "band":
        return (-np.searchsorted(_BANDS, pending.priority).astype(np.int64), since)
    return (-pending.priority, since)


def factor(cluster: ClusterIndex, policy: Policy, name: str) -> Ints:
    """One factor of every pending job, 0 to 1,000,000 (= 1)."""
    snapshot = cluster.snapshot
    pending = snapshot.pending
    if name == "priority":
        return pending.priority * _STEPS // 100
    if name == "queue":
        return snapshot.queues.priority[cluster.pending.queue] * _STEPS // 100
    if name == "age":
        since = np.maximum(pending.submitted_ms, pending.eligible_ms)
        cap = policy.age_cap_seconds * 1000
        waited: Ints = np.clip(snapshot.now_ms - since, 0, cap)
        return waited * _STEPS // cap
    if name == "size":
        return _cost(cluster) * _STEPS // max(int(cluster.devices.share.sum()), 1)
    if (of_tree := _tree_factor(cluster)) is not None:
        return of_tree
    share = fair_share(snapshot.projects.share_weight, snapshot.projects.used_gpu_seconds)
    best = float(share.max(initial=0.0))
    scaled = (share / best * _STEPS).astype(np.int64) if best else np.zeros(len(share), dtype=np.int64)
    return scaled[cluster.pending.project]


def fair_share(weight: Ints, used_gpu_seconds: Ints) -> Floats:
    """`weight / (usage + 1.0)` with the usage in GPU-hours: the less was used, the sooner it is one's turn."""
    return flat_share(weight, used_gpu_seconds / 3600)


def _tree_factor(cluster: ClusterIndex) -> Ints | None:
    """Everybody's factor in the tree of shares, 0 for who has passed a soft limit; None where shares are flat."""
    shares, row = cluster.snapshot.shares, cluster.pending.share
    if not len(shares) or (shares.factor < 0).any():
        return None
    known = np.where((row >= 0) & (shares.over[row] == NOTHING), shares.factor[row], 0)
    return known.astype(np.int64)


def _fairshare(cluster: ClusterIndex, policy: Policy, queue_id: int) -> tuple[Ints, ...]:
    """Who used least for their share first: the person in the tree, or the project where shares are flat.

    A project over a soft limit goes after all others; within one standing, as they came in.
    """
    shares, row = cluster.snapshot.shares, cluster.pending.share
    submitted = cluster.snapshot.pending.submitted_ms
    over = np.where(row >= 0, shares.over[row], NOTHING) if len(shares) else np.zeros_like(submitted)
    if (of_tree := _tree_factor(cluster)) is not None:
        return (over, -of_tree, submitted)
    projects = cluster.snapshot.projects
    share = fair_share(projects.share_weight, projects.used_gpu_seconds)
    rank = np.unique(-share, return_inverse=True)[1].astype(np.int64)
    return (over, rank[cluster.pending.project], submitted)


def _sjf(cluster: ClusterIndex, policy: Policy, queue_id: int) -> tuple[Ints, ...]:
    """Shortest time limit first; those without any last."""
    snapshot = cluster.snapshot
    limit, bound = (
        snapshot.pending.time_limit_seconds,
        snapshot.queues.max_wall_seconds[cluster.pending.queue],
    )
    limit = np.where(limit > 0, limit, bound)
    return (np.where(limit > 0, limit, _NEVER), snapshot.pending.submitted_ms)


def _edf(cluster: ClusterIndex, policy: Policy, queue_id: int) -> tuple[Ints, ...]:
    """Earliest deadline first; those without any last."""
    pending = cluster.snapshot.pending
    return (np.where(pending.deadline_ms > 0, pending.deadline_ms, _NEVER), pending.submitted_ms)


def _fair_queue(cluster: ClusterIndex, policy: Policy, queue_id: int) -> tuple[Ints, ...]:
    """Tenants take turns by weight: smallest virtual start first, then smallest virtual finish."""
    turns = tenant_turns(cluster, policy, queue_id)
    return (turns.start, turns.start + turns.charge, cluster.snapshot.pending.submitted_ms)


def _cost(cluster: ClusterIndex) -> Ints:
    """Thousandths of GPUs that each pending job asks for; at least 1, so that work without GPUs counts too."""
    pending = cluster.snapshot.pending
    each = np.array(
        [request.per_task.gpu_millis_charged for request in cluster.snapshot.classes] or [0], dtype=np.int64
    )
    cost: Ints = np.maximum(each[pending.class_index] * pending.tasks, 1)
    return cost


ORDERS: Final[Mapping[str, Order]] = {
    "fifo": _fifo,
    "priority": _priority,
    "fairshare": _fairshare,
    "sjf": _sjf,
    "edf": _edf,
    "fair_queue": _fair_queue,
}


def _tie_breaker(cluster: ClusterIndex, name: str) -> Ints:
    column: Ints = getattr(cluster.snapshot.pending, name.removeprefix("-"))
    return -column if name.startswith("-") else column


def _sorted_rows(keys: list[Ints], count: int) -> Ints:
    """np.lexsort of the keys with the row (= job id) last; a key already in order costs one look."""
    rows = np.arange(count, dtype=np.int64)
    for key in reversed(keys):
        values = key[rows]
        if (values[1:] >= values[:-1]).all():
            continue
        low = int(values.min())
        if int(values.max()) - low < 2**15:
            values = (values - low).astype(np.int16)  # NumPy sorts these by radix, ten times faster
            rows = rows[np.argsort(values, kind="stable")]
        else:
            rows = rows[stable_order(values)]
    return rows


def strict_queues(cluster: ClusterIndex, policy: Policy) -> Bools:
    """By queue, whether a waiting job stops all behind it; never under backfill, which protects the order itself."""
    if policy.backfill != "none":
        return np.zeros(len(cluster.snapshot.queues), dtype=np.bool_)
    queues = cluster.snapshot.queues.id.tolist()
    return np.array([policy.of_queue(queue_id).strict_order for queue_id in queues], dtype=np.bool_)
