"""Meters of a simulation: idle GPUs while jobs wait, and what the jobs of the beginning hold."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from scheduler.core.columns import Bools
from scheduler.core.forecast.virtual_cluster import VirtualCluster
from scheduler.core.snapshot.snapshot import Snapshot
from scheduler.simulator.fragmentation import Fragmentation


class IdleMeter:
    """Idle and fragmented GPUs while jobs that ask for GPUs wait, averaged over that time."""

    def __init__(self, snapshot: Snapshot, cluster: VirtualCluster) -> None:
        self._cluster = cluster
        self._fragmentation = Fragmentation(snapshot)
        self._wants_gpus: Bools = np.array(
            [request.per_task.gpus > 0 for request in snapshot.classes] or [False]
        )
        self._waited_ms = self._idle = self._fragmented = 0.0

    def count(self, span_ms: int, waiting: Sequence[int]) -> None:
        """Count a span of time in which these rows of jobs waited."""
        cluster = self._cluster
        if span_ms <= 0 or not waiting or not self._fragmentation.is_measured:
            return
        if not self._wants_gpus[cluster.jobs.class_index[waiting]].any():
            return
        span = float(span_ms)
        self._waited_ms += span
        self._idle += self._fragmentation.idle(cluster.device_used) * span
        self._fragmented += self._fragmentation.fragmented(cluster.device_used, cluster.used) * span

    @property
    def idle_percent(self) -> float:
        return 100 * self._idle / self._waited_ms if self._waited_ms else 0.0

    @property
    def fragmented_percent(self) -> float:
        return 100 * self._fragmented / self._waited_ms if self._waited_ms else 0.0


class HoldingMeter:
    """What the jobs that ran at the beginning hold from then on, in thousandths of GPUs (or of cores) times ms."""

    def __init__(self, cluster: VirtualCluster, has_gpus: bool, now_ms: int) -> None:
        self.busy = 0.0
        self._cluster, self._amount = cluster, 0 if has_gpus else 1
        self._since: dict[int, tuple[int, int]] = {}  # job id -> amount, since when
        for number in cluster.running:
            self.begin(number, now_ms)

    def begin(self, job_id: int, now_ms: int) -> None:
        """Count a job from now on."""
        self._since[job_id] = self._cluster.amounts_held(job_id)[self._amount], now_ms

    def end(self, job_id: int, now_ms: int) -> None:
        """Count a job no longer, if it is counted."""
        amount, since_ms = self._since.pop(job_id, (0, now_ms))
        self.busy += float(amount) * (now_ms - since_ms)

    def change(self, job_id: int, now_ms: int) -> None:
        """Count what a job holds from now on, if it is counted."""
        if job_id in self._since:
            self.end(job_id, now_ms)
            self.begin(job_id, now_ms)
