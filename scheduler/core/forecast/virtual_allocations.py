"""What running jobs hold under a virtual clock: their allocations, and the usage of nodes and limits by them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final, NamedTuple

import numpy as np

from quotas.core.limits import charge
from quotas.core.resources import Resources
from scheduler.core.cluster.numa import bind, bound_column, bound_in
from scheduler.core.columns import Ints
from scheduler.core.plan import Start
from scheduler.core.snapshot.snapshot import AllocationColumns, Pause, Snapshot

_NODE_AMOUNTS: Final = ("cpu_millis", "memory_mib", "storage_mib")


class TaskRow(NamedTuple):
    """A row of `AllocationColumns`, its columns in their order."""

    id: int
    job_id: int
    rank: int
    node_id: int
    cpu_millis: int
    memory_mib: int
    storage_mib: int
    device_ids: tuple[int, ...]
    gpu_millis: int
    leaving: bool
    numa: int


@dataclass(frozen=True, slots=True)
class _Charge:
    """What one job counts for in queues, quota lines and pools."""

    queue_id: int
    project_id: int
    user_id: int
    job_type: int
    per_task: Resources
    tasks: int
    #: Thousandths of GPUs by model; empty where no quota line asks for a model.
    devices: Mapping[str, int]


class VirtualAllocations:
    """The allocations of running jobs, and the usage columns of a snapshot that change with them."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._base = snapshot
        self.used: dict[str, Ints] = {
            name: getattr(snapshot.nodes, f"used_{name}").copy() for name in _NODE_AMOUNTS
        }
        self.device_used: Ints = snapshot.devices.used_millis.copy()
        self._bound = bound_in(snapshot.nodes)
        self._quota_used: Ints = snapshot.quotas.used.copy()
        self._queue_running: Ints = snapshot.queues.running_jobs.copy()
        self._pool_used: Ints = snapshot.pools.used.copy()
        self._models = bool(any(snapshot.quotas.gpu_model))
        self._tasks: dict[int, list[TaskRow]] = {number: [] for number in snapshot.running.id.tolist()}
        self._charges: dict[int, _Charge] = {}
        self._next_id = int(snapshot.allocations.id.max(initial=0)) + 1
        self._adopt(snapshot)

    def _adopt(self, snapshot: Snapshot) -> None:
        """Take the jobs that run in the snapshot; its columns count them already."""
        held, running = snapshot.allocations, snapshot.running
        columns = [getattr(held, f.name) for f in fields(held)]
        plain = [column.tolist() if isinstance(column, np.ndarray) else column for column in columns]
        for values in zip(*plain, strict=True):
            row = TaskRow(*values)
            self._tasks[row.job_id].append(row)
        for place, number in enumerate(running.id.tolist()):
            per_task = snapshot.classes[running.class_index.item(place)].per_task
            if running.pause.item(place) == Pause.SUSPENDED:
                per_task = replace(per_task, cpu_millis=0)
            self._charges[number] = _Charge(
                queue_id=running.queue_id.item(place),
                project_id=running.project_id.item(place),
                user_id=running.user_id.item(place),
                job_type=running.job_type.item(place),
                per_task=per_task,
                tasks=len(self._tasks[number]),
                devices=self._devices(self._tasks[number]),
            )

    def start(self, start: Start, *, user_id: int, job_type: int, one_domain: bool) -> None:
        """Give a starting job its placements; `one_domain`: each task is bound to its NUMA domain."""
        per_task, number = start.per_task, start.job_id
        rows = [
            TaskRow(
                self._next_id + place, number, placement.rank, placement.node_id, per_task.cpu_millis,
                per_task.memory_mib, per_task.storage_mib, placement.device_ids, placement.gpu_millis, False,
                placement.numa if one_domain else -1,
            )
            for place, placement in enumerate(start.placements)
        ]  # fmt: skip
        self._next_id += len(rows)
        self._put(
            number,
            rows,
            _Charge(
                queue_id=start.queue_id,
                project_id=start.project_id,
                user_id=user_id,
                job_type=job_type,
                per_task=per_task,
                tasks=len(rows),
                devices=self._devices(rows),
            ),
        )

    def release(self, job_id: int) -> None:
        """Take everything that a job holds back."""
        self._use_nodes(self._tasks.pop(job_id), -1)
        self._use_limits(self._charges.pop(job_id), -1)

    def release_tasks(self, job_id: int, ranks: Sequence[int]) -> None:
        """Take what some tasks of a job hold back."""
        left, counted = [row for row in self._tasks[job_id] if row.rank not in ranks], self._charges[job_id]
        self.release(job_id)
        self._put(job_id, left, replace(counted, tasks=len(left), devices=self._devices(left)))

    def set_cpus(self, job_id: int, cpu_millis: int) -> None:
        """Change the CPUs that each task of a job holds: none while it is suspended."""
        rows = [row._replace(cpu_millis=cpu_millis) for row in self._tasks[job_id]]
        counted = self._charges[job_id]
        self.release(job_id)
        self._put(job_id, rows, replace(counted, per_task=replace(counted.per_task, cpu_millis=cpu_millis)))

    def tasks(self, job_id: int) -> int:
        """How many tasks of a job hold something."""
        return len(self._tasks[job_id])

    def amounts(self, job_id: int) -> tuple[int, int]:
        """Thousandths of GPUs and of cores that a job holds."""
        held = self._tasks[job_id]
        return sum(len(row.device_ids) * row.gpu_millis for row in held), sum(row.cpu_millis for row in held)

    def groups(self) -> dict[str, Any]:
        """The tables of a snapshot that tell the usage of this moment."""
        base = self._base
        used: dict[str, Any] = {f"used_{name}": column for name, column in self.used.items()}
        if self._bound:
            used["bound"] = bound_column(self._bound, len(base.nodes))
        return {
            "nodes": replace(base.nodes, **used),
            "devices": replace(base.devices, used_millis=self.device_used),
            "allocations": AllocationColumns.from_rows(
                [row for rows in self._tasks.values() for row in rows]
            ),
            "queues": replace(base.queues, running_jobs=self._queue_running),
            "quotas": replace(base.quotas, used=self._quota_used),
            "pools": replace(base.pools, used=self._pool_used),
        }

    def _put(self, job_id: int, rows: list[TaskRow], counted: _Charge) -> None:
        self._tasks[job_id], self._charges[job_id] = rows, counted
        self._use_nodes(rows, 1)
        self._use_limits(counted, 1)

    def _devices(self, rows: Sequence[TaskRow]) -> Mapping[str, int]:
        """Thousandths of GPUs by model, where a quota line asks for a model."""
        found: Counter[str] = Counter()
        devices = self._base.devices
        for row in rows if self._models else ():
            for device in row.device_ids:
                found[devices.model[int(np.searchsorted(devices.id, device))]] += row.gpu_millis
        return found

    def _use_nodes(self, rows: Sequence[TaskRow], sign: int) -> None:
        nodes, devices = self._base.nodes, self._base.devices
        for row in rows:
            node = int(np.searchsorted(nodes.id, row.node_id))
            self.used["cpu_millis"][node] += sign * row.cpu_millis
            self.used["memory_mib"][node] += sign * row.memory_mib
            self.used["storage_mib"][node] += sign * row.storage_mib
            bind(self._bound, node, row.numa, sign * row.cpu_millis, sign * row.memory_mib)
            for device in row.device_ids:
                self.device_used[int(np.searchsorted(devices.id, device))] += sign * row.gpu_millis

    def _use_limits(self, counted: _Charge, sign: int) -> None:
        snapshot, quotas = self._base, self._base.quotas
        self._queue_running[int(np.searchsorted(snapshot.queues.id, counted.queue_id))] += sign
        project = int(np.searchsorted(snapshot.projects.id, counted.project_id))
        for line_id in snapshot.projects.quota_line_ids[project]:
            line = int(np.searchsorted(quotas.id, line_id))
            if quotas.user_id[line] in (0, counted.user_id) and quotas.job_type[line] in (
                0,
                counted.job_type,
            ):
                self._quota_used[line] += sign * charge(
                    quotas.resource[line], counted.per_task, counted.tasks,
                    gpu_model=quotas.gpu_model[line], devices=counted.devices,
                )  # fmt: skip
        for name, amount in counted.per_task.extras:
            if name in snapshot.pools.name:
                self._pool_used[snapshot.pools.name.index(name)] += sign * amount * counted.tasks
