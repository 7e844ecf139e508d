"""Workspace: the scratch capacity, devices and limits of one cycle, with a log of the nodes it touched."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from quotas.core.resources import GPU_MILLIS, Resources
from scheduler.core.cluster.affinity import AffinityState
from scheduler.core.cluster.budgets import Budgets
from scheduler.core.cluster.column_answers import ColumnAnswers
from scheduler.core.cluster.free_columns import FreeColumns
from scheduler.core.cluster.free_devices import FreeDevices
from scheduler.core.cluster.index import ClusterIndex
from scheduler.core.cluster.limits_ledger import LimitsLedger
from scheduler.core.cluster.numa import DomainCapacity
from scheduler.core.columns import Ints, cells
from scheduler.core.snapshot.request_classes import RequestClass


class NodeAmounts(NamedTuple):
    """What nodes have free and what is held of devices, at one moment."""

    free_cpu_millis: Ints
    free_memory_mib: Ints
    free_storage_mib: Ints
    device_used: Ints


#: A node before a trial: the arguments of `Workspace._set`. A plain tuple, for every placement makes one.
_Before = tuple[int, int, int, list[int], int, int]


@dataclass(slots=True)
class Trial:
    """Whether what was done inside `Workspace.trial()` stays."""

    kept: bool = False

    def keep(self) -> None:
        self.kept = True


class Workspace:
    """What is still free while a cycle hands out capacity.

    `take` and `give_back` change nodes and devices, `limits.take` and `budgets.take` the limits. `columns` have the
    log of the nodes that were touched. Single numbers of a column are read and written through `cells`, which share
    its memory.
    """

    def __init__(self, cluster: ClusterIndex, amounts: NodeAmounts | None = None) -> None:
        """`amounts` are those of another moment than the snapshot's; they are copied."""
        self.cluster = cluster
        free = amounts if amounts is not None else free_now(cluster)
        self.free_cpu_millis: Ints = free.free_cpu_millis.copy()
        self.free_memory_mib: Ints = free.free_memory_mib.copy()
        self.free_storage_mib: Ints = free.free_storage_mib.copy()
        self.devices = FreeDevices(cluster.devices, free.device_used)
        #: Thousandths of working devices that each node has free, and tasks that run on it.
        index = cluster.devices
        self.free_gpu_millis: Ints = index.per_node((index.share - free.device_used) * index.healthy)
        self.tasks_on: Ints = cluster.allocations.tasks_on.copy()
        self.columns = FreeColumns(
            cluster.snapshot.nodes,
            self.devices,
            self.free_cpu_millis,
            self.free_memory_mib,
            self.free_gpu_millis,
        )
        #: Where the jobs are that affinity terms select; None when no job has such terms.
        self.affinity_state: AffinityState | None = None
        if cluster.affinity.is_there:
            self.affinity_state = AffinityState(
                cluster.affinity, cluster.nodes, cluster.snapshot, cluster.allocations
            )
        #: What NUMA domains have free; None when no job demands one.
        self.numa: DomainCapacity | None = None
        if cluster.asks_one_domain:
            self.numa = DomainCapacity(cluster.numa, self.devices, self.free_cpu_millis, self.free_memory_mib)
        self.limits = LimitsLedger(cluster.snapshot, cluster.paths)
        self.budgets = Budgets(cluster.snapshot)
        #: What scorers keep for as long as this workspace lives, by their own names.
        self.memo: dict[str, object] = {}

        self._cpu, self._memory = cells(self.free_cpu_millis), cells(self.free_memory_mib)
        self._gpu, self._tasks = cells(self.free_gpu_millis), cells(self.tasks_on)
        self._answers = ColumnAnswers()
        self._answers_at = 0
        #: The nodes touched in each open trial, as they were before it.
        self._trials: list[dict[int, _Before]] = []

    # Reading.

    @property
    def answers(self) -> ColumnAnswers:
        """Answers about live columns as of now: found once for as long as nothing is handed out."""
        if self._answers_at != self.columns.log_length:
            self._answers.forget()
            self._answers_at = self.columns.log_length
        return self._answers

    def shares_left(self, model: str, memory_mib: int) -> Ints:
        """Of each node, what is left of all its devices of a model together, as of now."""
        index, used = self.cluster.devices, self.devices.used

        def work_out() -> Ints:
            return index.per_node(index.usable(model, memory_mib) * (GPU_MILLIS - used))

        return self.answers.find("shares_left", (used,), (model, memory_mib), work_out)

    def pick_devices(self, row: int, request: RequestClass) -> list[int]:
        """Device rows for one task on a node that all filters have passed, as `FreeDevices.pick` chooses."""
        if not request.per_task.gpus:
            return []
        return self.devices.pick(row, request, self.columns.gpu_features(request).bits[row])

    def free_on(self, row: int) -> tuple[int, int, int, list[int]]:
        """CPU, memory and storage that a node has free, and what is held of its devices."""
        return (
            self._cpu[row],
            self._memory[row],
            self.free_storage_mib.item(row),
            self.devices.held_on(row),
        )

    @property
    def unreserved(self) -> Workspace:
        """What is free with all that reservations of parts of nodes hold."""
        return self

    def sync(self) -> None:
        """Nothing to do: this is what a cycle hands out. A view of it follows it."""

    # Changing.

    def take(
        self, row: int, per_task: Resources, devices: list[int], gpu_millis: int, who: int = 0, domain: int = -1,
    ) -> None:  # fmt: skip
        """Hand out one task's amounts, `gpu_millis` of each device.

        `who` is the job's profile in the affinity index; `domain` the NUMA domain that the task is bound to.
        """
        if self._trials:
            self._remember(row)
        if domain >= 0 and self.numa is not None:
            self.numa.hold(domain, per_task)
        self._tasks[row] += 1
        self._cpu[row] -= per_task.cpu_millis
        self._memory[row] -= per_task.memory_mib
        if per_task.storage_mib:
            self.free_storage_mib[row] -= per_task.storage_mib
        if devices:
            self.devices.hold(row, devices, gpu_millis)
            self._gpu[row] -= gpu_millis * len(devices)
        self.columns.update(row)
        if self.numa is not None:
            self.numa.update(row)
        if who and self.affinity_state is not None:
            self._touch_all(self.affinity_state.count(row, who, 1))

    def give_back(
        self, row: int, per_task: Resources, devices: list[int], gpu_millis: int, who: int = 0, domain: int = -1,
    ) -> None:  # fmt: skip
        """The reverse of `take`, for a job that is removed in simulation.

        Only inside a trial: what caches know to fail holds while capacity shrinks.
        """
        self._remember(row)
        if domain >= 0 and self.numa is not None:
            self.numa.hold(domain, per_task, -1)
        self._tasks[row] -= 1
        self._cpu[row] += per_task.cpu_millis
        self._memory[row] += per_task.memory_mib
        if per_task.storage_mib:
            self.free_storage_mib[row] += per_task.storage_mib
        if devices:
            self.devices.hold(row, devices, -gpu_millis)
            healthy = self.cluster.devices.healthy_list
            self._gpu[row] += gpu_millis * sum([healthy[device] for device in devices])
        self.columns.update(row)
        if self.numa is not None:
            self.numa.update(row)
        if who and self.affinity_state is not None:
            self._touch_all(self.affinity_state.count(row, who, -1))

    def set_free(
        self, row: int, cpu_millis: int, memory_mib: int, storage_mib: int, device_used: list[int]
    ) -> None:
        """Let a node have exactly this free, and its devices held by exactly these amounts."""
        index, gpu_millis = self.cluster.devices, 0
        for device, millis in enumerate(device_used, index.first[row]):
            if index.healthy_list[device]:
                gpu_millis += max(index.share.item(device) - millis, 0)
        self._set(row, cpu_millis, memory_mib, storage_mib, device_used, gpu_millis, self._tasks[row])

    def follow(self, other: Workspace) -> None:
        """Let the same jobs run where they run in another workspace of this cluster, for affinity terms."""
        if self.affinity_state is not None and other.affinity_state is not None:
            self._touch_all(self.affinity_state.become(other.affinity_state.copy()))

    @contextmanager
    def trial(self) -> Iterator[Trial]:
        """Try something: unless `keep()` is called, everything is as before on leaving."""
        limits, budgets = self.limits.counts(), list(self.budgets.left)
        domains = list(self.numa.free) if self.numa is not None else []
        affinity = self.affinity_state.copy() if self.affinity_state is not None else None
        before: dict[int, _Before] = {}
        self._trials.append(before)
        trial = Trial()
        try:
            yield trial
        finally:
            self._trials.pop()
            if not trial.kept:
                # In place: caches hold these very lists and columns.
                self.limits.restore(limits)
                self.budgets.left[:] = budgets
                if self.numa is not None:
                    self.numa.free[:] = domains
                if self.affinity_state is not None and affinity is not None:
                    self._touch_all(self.affinity_state.become(affinity))
                for row, was in before.items():
                    self._set(row, *was)  # what was cached during the trial is stale again
            elif self._trials:
                for row, was in before.items():
                    self._trials[-1].setdefault(row, was)

    def _remember(self, row: int) -> None:
        before = self._trials[-1]
        if row not in before:
            before[row] = (*self.free_on(row), self._gpu[row], self._tasks[row])

    def _set(
        self,
        row: int,
        cpu_millis: int,
        memory_mib: int,
        storage_mib: int,
        device_used: list[int],
        gpu_millis: int,
        tasks: int,
    ) -> None:
        self._cpu[row], self._memory[row] = cpu_millis, memory_mib
        self.free_storage_mib[row] = storage_mib
        self.devices.hold_just(row, device_used)
        self._gpu[row], self._tasks[row] = gpu_millis, tasks
        self._touch(row)

    def _touch_all(self, rows: list[int]) -> None:
        for row in rows:
            self._touch(row)

    def _touch(self, row: int) -> None:
        """Bring everything that is kept of this node up to date. `take` and `give_back` do it without this call."""
        self.columns.update(row)
        if self.numa is not None:
            self.numa.update(row)


def free_now(cluster: ClusterIndex) -> NodeAmounts:
    """What is free as the snapshot says."""
    nodes = cluster.snapshot.nodes
    return NodeAmounts(
        nodes.cpu_millis - nodes.used_cpu_millis,
        nodes.memory_mib - nodes.used_memory_mib,
        nodes.storage_mib - nodes.used_storage_mib,
        cluster.devices.used,
    )
