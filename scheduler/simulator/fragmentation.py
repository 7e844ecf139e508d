"""Fragmentation: how much of the idle GPUs is of no use to the usual requests, measured as FGD does (ATC 2023)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from quotas.core.gpu_models import share_of
from quotas.core.resources import GPU_MILLIS
from scheduler.core.cluster.index import ClusterIndex
from scheduler.core.columns import Ints
from scheduler.core.snapshot.snapshot import Snapshot

#: How many of the most frequent requests count as usual.
_USUAL: Final = 48


class Fragmentation:
    """Idle and fragmented GPUs of one cluster at any moment, for the requests of all jobs that ever ask for GPUs.

    For one request on one node: all idle GPUs there if the node cannot take one more such task, else the idle part
    of the devices that are too full for it. The mean over the requests, weighted by the number of tasks.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        cluster = ClusterIndex(snapshot)
        self._nodes = nodes = snapshot.nodes
        self._node = cluster.devices.node
        self._count = len(nodes)
        takes = cluster.nodes.is_up & ~nodes.cordoned & ~nodes.draining
        #: Healthy devices of nodes that take new tasks: idle devices elsewhere could serve no job.
        self._usable = cluster.devices.healthy & takes[cluster.devices.node]
        self._share = np.array(
            [share_of(cluster.devices.model_of(row)) for row in range(len(cluster.devices.id))],
            dtype=np.int64,
        )
        tasks = np.zeros(len(snapshot.classes), dtype=np.int64)
        np.add.at(tasks, snapshot.pending.class_index, snapshot.pending.tasks)
        asked = [row for row, one in enumerate(snapshot.classes) if one.per_task.gpus and tasks[row]]
        usual = sorted(asked, key=lambda row: (-tasks[row], row))[:_USUAL]
        total = int(tasks[usual].sum())
        self._requests = [
            (
                snapshot.classes[row].per_task,
                cluster.devices.matching(
                    snapshot.classes[row].gpu_model, snapshot.classes[row].gpu_memory_mib
                ),
                int(tasks[row]) / total,
            )
            for row in usual
        ]
        self._whole = max(int(self._share.sum()), 1)

    @property
    def is_measured(self) -> bool:
        """Whether the cluster has GPUs and some job asks for them."""
        return bool(self._requests) and bool(len(self._node))

    def idle(self, device_used: Ints) -> float:
        """The part of all GPUs that is idle and could be given to a job."""
        return float(((self._share - device_used) * self._usable).sum()) / self._whole

    def fragmented(self, device_used: Ints, used: Mapping[str, Ints]) -> float:
        """The part of all GPUs that is idle and of no use to the usual requests."""
        free = np.where(self._usable, self._share - device_used, 0)
        idle = np.bincount(self._node, weights=free, minlength=self._count)
        cpu = self._nodes.cpu_millis - used["cpu_millis"]
        memory = self._nodes.memory_mib - used["memory_mib"]
        lost = 0.0
        for per_task, matches, weight in self._requests:
            need = per_task.gpu_millis if per_task.gpu_millis else GPU_MILLIS
            useful = np.where(matches & (free >= need), free, 0)
            devices = np.bincount(self._node, weights=useful > 0, minlength=self._count)
            fits = (devices >= per_task.gpus) & (cpu >= per_task.cpu_millis) & (memory >= per_task.memory_mib)
            serves = np.where(fits, np.bincount(self._node, weights=useful, minlength=self._count), 0.0)
            lost += weight * float((idle - serves).sum())
        return lost / self._whole
