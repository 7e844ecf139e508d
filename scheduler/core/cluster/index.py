"""The cluster index: a snapshot with its ids resolved to rows, and what stays of it during a cycle by subject."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from quotas.core.resources import GPU_MILLIS
from scheduler.core.cluster.affinity import AffinityIndex
from scheduler.core.cluster.allocation_index import AllocationIndex
from scheduler.core.cluster.column_answers import ColumnAnswers
from scheduler.core.cluster.device_index import DeviceIndex
from scheduler.core.cluster.job_charges import JobCharges
from scheduler.core.cluster.node_index import NodeIndex
from scheduler.core.cluster.numa import Domains
from scheduler.core.cluster.quota_paths import QuotaPaths
from scheduler.core.columns import Ints, rows_of
from scheduler.core.snapshot.snapshot import Snapshot, share_key


class ClusterIndex:
    """The parts of an indexed snapshot. Immutable once made; what a cycle hands out is in the workspace."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.node_count = len(snapshot.nodes)
        #: Answers about columns that stay for the cycle.
        self.answers = ColumnAnswers()
        self.nodes = NodeIndex(snapshot.nodes, snapshot.reservations)
        self.devices = DeviceIndex(snapshot.nodes, snapshot.devices)
        self.allocations = AllocationIndex(snapshot, self.devices, self.answers)
        self.pending = PendingIndex(snapshot)
        self._amounts: dict[tuple[str, str, int], tuple[Ints, Ints]] = {}

    @cached_property
    def paths(self) -> QuotaPaths:
        """The quota lines that each job counts on."""
        return QuotaPaths(self.snapshot, self.pending.project)

    @cached_property
    def charges(self) -> JobCharges:
        """How much each job counts on its quota lines."""
        return JobCharges(self.snapshot, self.paths, self.devices)

    @cached_property
    def affinity(self) -> AffinityIndex:
        """The terms that jobs have about where other jobs run."""
        return AffinityIndex(self.snapshot)

    @cached_property
    def asks_one_domain(self) -> bool:
        """Whether any job demands one NUMA domain for each of its tasks."""
        return any(request.one_domain for request in self.snapshot.classes)

    @cached_property
    def numa(self) -> Domains:
        """The NUMA domains of all nodes."""
        return Domains(self.snapshot, self.devices, self.allocations)

    def amounts(self, resource: str, model: str, memory_mib: int) -> tuple[Ints, Ints]:
        """What each node has of a resource, and what each allocation holds; of GPUs, those of a model and memory."""
        key = (resource, model, memory_mib)
        known = self._amounts.get(key)
        if known is None:
            nodes, allocations = self.snapshot.nodes, self.snapshot.allocations
            if resource in {"gpus", "gpu_millis"}:
                known = self.devices.counts(model, memory_mib), self.allocations.gpus_held(model, memory_mib)
                if resource == "gpu_millis":
                    known = known[0] * GPU_MILLIS, known[1] * allocations.gpu_millis
            else:
                known = getattr(nodes, resource), getattr(allocations, resource)
            self._amounts[key] = known
        return known


class PendingIndex:
    """The rows that pending jobs refer to; a column has one entry a pending job, as in the snapshot."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    @cached_property
    def queue(self) -> Ints:
        return rows_of(self._snapshot.queues.id, self._snapshot.pending.queue_id, what="queue")

    @cached_property
    def project(self) -> Ints:
        return rows_of(self._snapshot.projects.id, self._snapshot.pending.project_id, what="project")

    @cached_property
    def share(self) -> Ints:
        """The row of the fair share of each job: of its user in its project, else of its project; -1 = none."""
        pending, keys = self._snapshot.pending, self._snapshot.shares.id
        found = np.full(len(pending), -1, dtype=np.int64)
        for user in (np.zeros(len(pending), dtype=np.int64), pending.user_id) if len(keys) else ():
            wanted = share_key(pending.project_id, user)
            place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
            found = np.where(keys[place] == wanted, place, found)
        return found
