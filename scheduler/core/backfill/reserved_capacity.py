"""Reserved capacity: what expected starts leave to the jobs that still run when these begin."""

from __future__ import annotations

import numpy as np

from scheduler.core.backfill.future_use import Free, FutureUse


class ReservedCapacity:
    """Reserved starts, the first due first, each with what is free beside all of them when it begins.

    A job of level k must fit beside the first k, so the least of those is kept for every k: with many reserved
    starts a node that changes is looked at once for all of them.
    """

    def __init__(self) -> None:
        self.at_ms: list[int] = []
        self._each: Free | None = None  # a row a reserved start
        self._least: Free | None = None  # row k - 1 for level k; the same columns while there is one

    def __len__(self) -> int:
        return len(self.at_ms)

    def insert(self, place: int, at_ms: int, free: Free) -> None:
        """Add a reserved start at this place in the order."""
        self.at_ms.insert(place, at_ms)
        old = self._each
        each = self._each = Free(
            *(
                new[np.newaxis].copy() if before is None else np.insert(before, place, new, axis=0)
                for new, before in zip(
                    (free.cpu_millis, free.memory_mib, free.storage_mib, free.gpu_used, free.domains),
                    (old.cpu_millis, old.memory_mib, old.storage_mib, old.gpu_used, old.domains)
                    if old
                    else (None,) * 5,
                    strict=True,
                )
            )
        )
        self._least = each if len(self) == 1 else Free(
            np.minimum.accumulate(each.cpu_millis, axis=0),
            np.minimum.accumulate(each.memory_mib, axis=0),
            np.minimum.accumulate(each.storage_mib, axis=0),
            np.maximum.accumulate(each.gpu_used, axis=0),
            np.minimum.accumulate(each.domains, axis=0),
        )  # fmt: skip

    def least(self, level: int) -> Free:
        """What the first `level` reserved starts all leave."""
        least = self._least
        assert least is not None
        place = level - 1
        return Free(
            least.cpu_millis[place], least.memory_mib[place], least.storage_mib[place], least.gpu_used[place],
            least.domains[place],
        )  # fmt: skip

    def each(self, level: int) -> list[tuple[int, Free]]:
        """The moment of each of the first `level` reserved starts, and what it leaves then."""
        each = self._each
        assert each is not None
        return [
            (
                self.at_ms[place],
                Free(
                    each.cpu_millis[place], each.memory_mib[place], each.storage_mib[place],
                    each.gpu_used[place], each.domains[place],
                ),
            )
            for place in range(level)
        ]  # fmt: skip

    def take(self, hold: FutureUse, places: slice | list[int]) -> None:
        """Take what a task still holds when the reserved starts of these places begin."""
        each, least, row, per_task = self._each, self._least, hold.row, hold.per_task
        assert each is not None
        assert least is not None
        each.cpu_millis[places, row] -= per_task.cpu_millis
        each.memory_mib[places, row] -= per_task.memory_mib
        if per_task.storage_mib:
            each.storage_mib[places, row] -= per_task.storage_mib
        for device in hold.devices:
            each.gpu_used[places, device] += hold.gpu_millis
        bound = hold.bound(each.domains.shape[1])
        for domain, held in bound:
            each.domains[places, domain] -= held
        if least is each:
            return
        for domain, _ in bound:
            least.domains[:, domain] = np.minimum.accumulate(each.domains[:, domain])
        least.cpu_millis[:, row] = np.minimum.accumulate(each.cpu_millis[:, row])
        least.memory_mib[:, row] = np.minimum.accumulate(each.memory_mib[:, row])
        if per_task.storage_mib:
            least.storage_mib[:, row] = np.minimum.accumulate(each.storage_mib[:, row])
        for device in hold.devices:
            least.gpu_used[:, device] = np.maximum.accumulate(each.gpu_used[:, device])
