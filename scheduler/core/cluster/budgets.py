"""Budgets in a cycle: what each pending job would hold of its budgets, and which jobs go last because one is spent."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Final

import numpy as np

from quotas.core.budgets import COUNTED
from quotas.core.gpu_models import without_slice
from quotas.core.pricing import Price, Rates, cost_micros
from quotas.core.resources import Resources
from scheduler.core.columns import Bools, Ints
from scheduler.core.plan import Decision
from scheduler.core.reason_codes import ReasonCode
from scheduler.core.snapshot.request_classes import RequestClass
from scheduler.core.snapshot.snapshot import Snapshot, SpentRule

#: A cost is at most this: no budget is larger, and sums of a few stay exact.
_MOST: Final = 1 << 60


class Budgets:
    """What is left of each budget while a cycle hands things out; nothing at all where there are none.

    A job sets aside its whole time limit as it starts, in each period by the seconds that fall into it. A
    price that depends on a GPU model which is not known yet counts as the dearest.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        budgets = snapshot.budgets
        self._snapshot = snapshot
        self._enforced = [
            row for row, rule in enumerate(budgets.on_spent.tolist()) if rule == SpentRule.REFUSE
        ]
        self.left: list[int] = np.maximum(budgets.amount - budgets.used, 0).tolist()
        self._needs: list[tuple[int, Ints]] = [(row, costs(snapshot, row)) for row in self._enforced]
        #: Whether any could refuse a job.
        self.refuse = bool(self._needs)

    def short(self, row: int, *, beside: int | None = None) -> bool:
        """Whether some budget has too little left for the pending job in this row, and for one `beside` it."""
        if beside is not None:
            return any(need.item(row) + need.item(beside) > self.left[budget] for budget, need in self._needs)
        return any(need.item(row) > self.left[budget] for budget, need in self._needs)

    def short_of(self, row: int) -> list[tuple[int, Ints]]:
        """The budgets with too little left for the pending job in this row, and what each pending job needs of it."""
        return [(budget, need) for budget, need in self._needs if need.item(row) > self.left[budget]]

    def take(self, row: int, sign: int = 1) -> None:
        """Set aside what the pending job in this row needs."""
        for budget, need in self._needs:
            self.left[budget] -= sign * need.item(row)

    def allows(self, row: int, request: RequestClass, tasks: int, seconds: int) -> bool:
        """Whether the job in this row could be paid for if it asked for this instead."""
        return all(
            one_cost(self._snapshot, budget, request, tasks, seconds) <= self.left[budget]
            for budget, need in self._needs
            if need.item(row)
        )

    def blockers(self) -> Iterator[tuple[Ints, Decision]]:
        """(pending rows, why) of all that some budget has too little left for."""
        budgets = self._snapshot.budgets
        for budget, need in self._needs:
            short = np.flatnonzero(need > self.left[budget])
            for cost in np.unique(need[short]).tolist():
                facts = {
                    "budget": budgets.owner[budget],
                    "resource": budgets.resource[budget],
                    "needs": cost,
                    "limit": int(budgets.amount[budget]),
                }
                if cost > int(budgets.amount[budget]):
                    reason = ReasonCode.EXCEEDS_BUDGET
                else:
                    reason = ReasonCode.BUDGET_SPENT
                    facts |= {"left": self.left[budget], "ends_ms": int(budgets.ends_ms[budget])}
                yield short[need[short] == cost], Decision(reason, facts=tuple(sorted(facts.items())))


def demoted(snapshot: Snapshot) -> Bools:
    """The pending jobs that go last, for a budget that demotes is spent."""
    budgets, pending = snapshot.budgets, snapshot.pending
    last = np.zeros(len(pending), dtype=np.bool_)
    for row, rule in enumerate(budgets.on_spent.tolist()):
        now = int(budgets.starts_ms[row]) <= snapshot.now_ms < int(budgets.ends_ms[row])
        if rule == SpentRule.DEMOTE and now and int(budgets.used[row]) >= int(budgets.amount[row]):
            last |= np.isin(pending.project_id, budgets.project_ids[row])
    return last


def costs(snapshot: Snapshot, budget: int) -> Ints:
    """What each pending job would take from a budget if it started now; 0 for those that do not count on it."""
    budgets, pending = snapshot.budgets, snapshot.pending
    mine = np.isin(pending.project_id, budgets.project_ids[budget])
    total = np.zeros(len(pending), dtype=np.int64)
    if not mine.any():
        return total
    rows = np.flatnonzero(mine)
    place = np.searchsorted(snapshot.queues.id, pending.queue_id[rows])
    limit = np.where(
        pending.time_limit_seconds[rows] > 0,
        pending.time_limit_seconds[rows],
        snapshot.queues.max_wall_seconds[place],
    )
    limit = np.where(limit > 0, limit, int(budgets.open_seconds[budget]))
    tasks = np.maximum(pending.tasks[rows], pending.most_tasks[rows])
    keys = np.stack([pending.class_index[rows], tasks, limit])
    kinds, number = np.unique(keys, axis=1, return_inverse=True)
    each = [
        one_cost(snapshot, budget, snapshot.classes[class_index], count, seconds)
        for class_index, count, seconds in kinds.T.tolist()
    ]
    total[rows] = np.array(each, dtype=np.int64)[number.reshape(-1)]
    return total


def one_cost(snapshot: Snapshot, budget: int, request: RequestClass, tasks: int, seconds: int) -> int:
    """What a job takes from one period of a budget: by the seconds of its time limit that are within it."""
    budgets = snapshot.budgets
    begin = max(snapshot.now_ms // 1000, int(budgets.starts_ms[budget]) // 1000)
    end = min(snapshot.now_ms // 1000 + seconds, int(budgets.ends_ms[budget]) // 1000)
    if end <= begin:
        return 0
    per_task, counted = request.per_task, COUNTED[budgets.resource[budget]]
    if counted == "gpu_millis":
        return min(per_task.gpu_millis_charged * tasks * (end - begin), _MOST)
    if counted == "cpu_millis":
        return min(per_task.cpu_millis * tasks * (end - begin), _MOST)
    return min(_money(budgets.prices[budget], per_task, request.gpu_model, tasks, end - begin), _MOST)


@lru_cache(maxsize=4096)
def _money(
    prices: tuple[tuple[str, str, int], ...], per_task: Resources, model: str, tasks: int, seconds: int
) -> int:
    """At today's prices. A model that is a wish for several, or none, costs what the dearest of all does."""
    names = {name for _, name, _ in prices if name}
    models = [model] if {model, without_slice(model)} & names else ["", *sorted(names)]
    known = [Price(resource, micros, 0, None, name) for resource, name, micros in prices]
    found = [
        Rates(
            per_task.cpu_millis * tasks, per_task.memory_mib * tasks, per_task.gpu_millis_charged * tasks,
            per_task.storage_mib * tasks, one if per_task.gpus else "",
        )
        for one in models
    ]  # fmt: skip
    return max(cost_micros(rates, 0, seconds, known) for rates in found)
