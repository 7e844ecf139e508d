"""Reserved view: what nodes have free for the jobs that reservations of parts of nodes concern."""

from __future__ import annotations

import numpy as np

from quotas.core.resources import GPU_MILLIS, Resources
from scheduler.core.cluster.index import ClusterIndex
from scheduler.core.cluster.workspace import NodeAmounts, Workspace
from scheduler.core.columns import Ints
from scheduler.core.context.reserved_parts import ReservedParts, View


class ReservedView(Workspace):
    """The workspace of a cycle as the jobs of one view see it.

    Free is what they have now *and* at each moment at which a reservation begins that they would run into. `sync`
    follows the workspace of the cycle; what is taken here is taken there. Only nodes and devices are its own.
    """

    def __init__(self, cluster: ClusterIndex, base: Workspace, parts: ReservedParts, view: View) -> None:
        self._base, self._parts, self._view = base, parts, view
        now_ms = cluster.snapshot.now_ms
        self._later = parts.begins(view, now_ms)
        rows = np.arange(cluster.node_count)
        cpu, memory = self._amounts(rows)
        used = parts.kept(view, now_ms).devices_used(base.devices.used)
        for at_ms in self._later:
            used = parts.kept(view, at_ms).devices_used(used)
        super().__init__(cluster, NodeAmounts(cpu, memory, base.free_storage_mib, used))
        self.limits, self.budgets, self.affinity_state = base.limits, base.budgets, base.affinity_state
        if self.numa is not None and base.numa is not None:
            self.numa.free = base.numa.free
            for row in rows.tolist():
                self.numa.update(row)
        self._seen = base.columns.log_length
        self._parts_seen = len(parts.log)

    @property
    def unreserved(self) -> Workspace:
        return self._base

    def _amounts(self, rows: Ints) -> tuple[Ints, Ints]:
        """Free CPU and memory of some nodes: the least of all moments that count."""
        parts, view, base = self._parts, self._view, self._base
        now = parts.kept(view, base.cluster.snapshot.now_ms)
        cpu = now.cpu_left(base.free_cpu_millis[rows], rows)
        memory = now.memory_left(base.free_memory_mib[rows], rows)
        for at_ms in self._later:
            kept, (cpu_back, memory_back) = parts.kept(view, at_ms), parts.released_by(at_ms)
            cpu = np.minimum(cpu, kept.cpu_left(base.free_cpu_millis[rows] + cpu_back[rows], rows))
            memory = np.minimum(
                memory, kept.memory_left(base.free_memory_mib[rows] + memory_back[rows], rows)
            )
        return cpu, memory

    def sync(self) -> None:
        """Bring the nodes up to date that the cycle has touched since the last time."""
        base, parts = self._base, self._parts
        if self._seen == base.columns.log_length and self._parts_seen == len(parts.log):
            return
        touched = (
            base.columns.log[self._seen : base.columns.log_length].tolist() + parts.log[self._parts_seen :]
        )
        self._seen, self._parts_seen = base.columns.log_length, len(parts.log)
        rows = sorted(set(touched))
        cpu, memory = self._amounts(np.array(rows, dtype=np.int64))
        for row, cpu_millis, memory_mib in zip(rows, cpu.tolist(), memory.tolist(), strict=True):
            self._match(row, cpu_millis, memory_mib)

    def _match(self, row: int, cpu_millis: int, memory_mib: int) -> None:
        base, index = self._base, self.cluster.devices
        begin, end = index.first[row], index.first[row + 1]
        used = base.devices.used[begin:end]
        for at_ms in (self.cluster.snapshot.now_ms, *self._later):
            closed = self._parts.kept(self._view, at_ms).devices[begin:end]
            used = np.where(closed, np.maximum(used, GPU_MILLIS), used)
        self._tasks[row] = base.tasks_on.item(row)
        self.set_free(row, cpu_millis, memory_mib, base.free_storage_mib.item(row), used.tolist())

    def take(
        self, row: int, per_task: Resources, devices: list[int], gpu_millis: int, who: int = 0, domain: int = -1,
    ) -> None:  # fmt: skip
        self._base.take(row, per_task, devices, gpu_millis, who, domain)
        self.sync()
