"""Memory: who has used what so far in a simulated cluster, for policies that count fair share."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from quotas.core.decay import Decay, Tally
from quotas.core.fairshare import METERED, Metering
from quotas.core.gpu_models import share_of
from quotas.core.share_tree import Pair, ShareTree, shares_of
from scheduler.core.ordering.share_columns import share_columns
from scheduler.core.plan import Start
from scheduler.core.policy import Policy
from scheduler.core.snapshot.snapshot import Snapshot

#: How long use counts here, as on a site that has set nothing else.
_DECAY: Final = Decay()


class ShareMemory:
    """Counts use in GPUs, or in cores where there are none; what somebody used before the beginning is not known."""

    def __init__(self, snapshot: Snapshot, policy: Policy, tree: ShareTree | None) -> None:
        self.wanted = policy.name == "fairshare" or any(name == "fairshare" for name, _ in policy.factors)
        self.tree = tree
        self.metering = Metering() if len(snapshot.devices) else Metering(gpu=0, cpu=1)
        self.capacity = {
            "gpu": sum(share_of(model) for model in snapshot.devices.model) / 1000,
            "cpu": float(snapshot.nodes.cpu_millis.sum()) / 1000,
        }
        self._ended: dict[Pair, tuple[Tally, Tally]] = {}  # of GPUs and cores
        self._held: dict[int, tuple[Pair, float, float, float]] = {}  # job -> whose, GPUs, cores, since when

    def start(self, start: Start, user_id: int, now_ms: int) -> None:
        gpus = sum(len(placement.device_ids) * placement.gpu_millis for placement in start.placements) / 1000
        cores = start.per_task.cpu_millis * len(start.placements) / 1000
        self._held[start.job_id] = ((start.project_id, user_id), gpus, cores, now_ms / 1000)

    def hold(self, job_id: int, held: tuple[int, int], now_ms: int) -> None:
        """From now on a job holds so much, in thousandths of GPUs and of cores."""
        if job_id not in self._held:
            return  # it ran at the beginning
        pair, gpus, cores, _ = self._held[job_id]
        now = held[0] / 1000, held[1] / 1000
        if now != (gpus, cores):
            self.end(job_id, now_ms)
            self._held[job_id] = (pair, *now, now_ms / 1000)

    def end(self, job_id: int, now_ms: int) -> None:
        """Nothing the second time."""
        if job_id not in self._held:
            return
        pair, gpus, cores, since = self._held.pop(job_id)
        tallies = self._ended.setdefault(pair, (Tally(_DECAY), Tally(_DECAY)))
        for tally, amount in zip(tallies, (gpus, cores), strict=True):
            if amount:
                tally.add(amount, since, now_ms / 1000)

    def onto(self, snapshot: Snapshot) -> Snapshot:
        """The same moment with what everybody has used until then, and how they stand."""
        if not self.wanted:
            return snapshot
        at = snapshot.now_ms / 1000
        used = {pair: (gpus.used(at), cores.used(at), 0.0) for pair, (gpus, cores) in self._ended.items()}
        for pair, gpus_held, cores_held, since in self._held.values():
            before = used.get(pair, (0.0, 0.0, 0.0))
            span = _DECAY.used(1.0, since, at, at)
            used[pair] = (before[0] + gpus_held * span, before[1] + cores_held * span, 0.0)
        projects = snapshot.projects
        if self.tree is not None:
            standing = shares_of(
                self.tree, used, metering=self.metering, capacity=self.capacity, full_seconds=_DECAY.full(at)
            )
            return replace(snapshot, shares=share_columns(standing, projects.id.tolist()).sorted_by_key())
        row = {number: place for place, number in enumerate(projects.id.tolist())}
        sums = np.zeros((len(METERED), len(row)))
        for (project_id, _), use in used.items():
            sums[:, row[project_id]] += use
        weighed = self.metering.usage(dict(zip(METERED, sums, strict=True)), self.capacity)
        return replace(snapshot, projects=replace(projects, used_gpu_seconds=weighed.astype(np.int64)))
