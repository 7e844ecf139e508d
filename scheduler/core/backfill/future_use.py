"""Future use: what tasks hold from one moment to another, and what nodes have free at one moment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from quotas.core.resources import Resources
from scheduler.core.backfill.backfill import FOREVER_MS
from scheduler.core.cluster.workspace import Workspace
from scheduler.core.columns import Ints
from scheduler.core.context.reserved_parts import Kept


@dataclass(slots=True)
class Free:
    """Amounts of one moment, a row a node or device; `gpu_used` is in thousandths."""

    cpu_millis: Ints
    memory_mib: Ints
    storage_mib: Ints
    gpu_used: Ints
    domains: Ints  # CPU and then memory of every NUMA domain that is not bound; empty when no job demands one

    def take(self, hold: FutureUse, sign: int = 1) -> None:
        """Take what one task holds; `sign` -1 gives it back."""
        row, per_task = hold.row, hold.per_task
        self.cpu_millis[row] -= sign * per_task.cpu_millis
        self.memory_mib[row] -= sign * per_task.memory_mib
        if per_task.storage_mib:
            self.storage_mib[row] -= sign * per_task.storage_mib
        for device in hold.devices:
            self.gpu_used[device] += sign * hold.gpu_millis
        for domain, held in hold.bound(len(self.domains)):
            self.domains[domain] -= sign * held

    def copy(self) -> Free:
        return Free(
            self.cpu_millis.copy(), self.memory_mib.copy(), self.storage_mib.copy(), self.gpu_used.copy(),
            self.domains.copy(),
        )  # fmt: skip

    def least(self, other: Free) -> Free:
        """What is free at both moments."""
        return Free(
            np.minimum(self.cpu_millis, other.cpu_millis),
            np.minimum(self.memory_mib, other.memory_mib),
            np.minimum(self.storage_mib, other.storage_mib),
            np.maximum(self.gpu_used, other.gpu_used),
            np.minimum(self.domains, other.domains),
        )


class FutureUse(NamedTuple):
    """What one task holds from one moment to another: of a job that starts in this cycle, or has a reserved start."""

    from_ms: int
    until_ms: int
    row: int
    per_task: Resources
    devices: list[int]
    gpu_millis: int
    domain: int = -1  # the NUMA domain that the task is bound to

    def bound(self, places: int) -> tuple[tuple[int, int], ...]:
        """(place, amount) of what the task holds in a column of domains: the CPUs of all, then the memory of all."""
        if self.domain < 0:
            return ()
        per_task = self.per_task
        return (self.domain, per_task.cpu_millis), (places // 2 + self.domain, per_task.memory_mib)


def least_of(free: Free, kept: Kept) -> Free:
    """What is free of this for the jobs of a view."""
    return Free(
        kept.cpu_left(free.cpu_millis), kept.memory_left(free.memory_mib), free.storage_mib,
        kept.devices_used(free.gpu_used), free.domains,
    )  # fmt: skip


def after_ms(at_ms: int, length_ms: int) -> int:
    """The end of what begins then and takes this long; FOREVER_MS when that is unknown."""
    return FOREVER_MS if length_ms >= FOREVER_MS - at_ms else at_ms + length_ms


def free_in(workspace: Workspace) -> Free:
    """What a workspace has free now; live columns, not to be written to."""
    return Free(
        workspace.free_cpu_millis,
        workspace.free_memory_mib,
        workspace.free_storage_mib,
        workspace.devices.used,
        np.array(workspace.numa.free if workspace.numa is not None else [], dtype=np.int64),
    )
