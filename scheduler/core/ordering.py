"""Ordering: which pending job is looked at first."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from scheduler.core.columns import Ints
from scheduler.core.plugins import Orders
from scheduler.core.policy import Policy
from scheduler.core.world import World

#: Keys of an order, most important first; all ascending. The job id comes after them all.
Order = Callable[[World], tuple[Ints, ...]]


def job_order(world: World, policy: Policy, outside: tuple[Orders, ...] = ()) -> Ints:
    """Rows of the pending jobs, first to last: outside orders, the policy, its tie-breakers, then job id."""
    keys: list[Ints] = []
    for plugin in outside:
        numbers = np.asarray(plugin.order(world.snapshot.pending), dtype=np.float64)
        if numbers.shape != (len(world.snapshot.pending),):
            raise ValueError(
                f"an order plugin gave {numbers.shape} numbers for {len(world.snapshot.pending)} jobs"
            )
        keys.append(np.unique(-np.nan_to_num(numbers), return_inverse=True)[1].astype(np.int64))
    keys.extend(ORDERS[policy.name](world))
    keys.extend(_tie_breaker(world, name) for name in policy.tie_breakers)
    return _sorted_rows(keys, len(world.snapshot.pending))


def _fifo(world: World) -> tuple[Ints, ...]:
    """As they came in (Q9)."""
    return (world.snapshot.pending.submitted_ms,)


def _priority(world: World) -> tuple[Ints, ...]:
    """Queue first (Q8), then job (Q10), then who could start first."""
    pending = world.snapshot.pending
    queue_priority = world.snapshot.queues.priority[world.pending_queue]
    since = np.maximum(pending.submitted_ms, pending.eligible_ms)
    return (-(queue_priority * 101 + pending.priority), since)


ORDERS: Final[Mapping[str, Order]] = {"fifo": _fifo, "priority": _priority}


def _tie_breaker(world: World, name: str) -> Ints:
    column: Ints = getattr(world.snapshot.pending, name.removeprefix("-"))
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
    return rows
