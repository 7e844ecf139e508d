"""Usage history: what each user of each project has used so far in a simulated cluster, for policies of fair share."""

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

#: How usage decays: as on a site with the settings it came with.
_DECAY: Final = Decay()


class UsageHistory:
    """Usage by (project, user), in GPUs and cores times seconds; usage from before the beginning counts as none."""

    def __init__(self, snapshot: Snapshot, policy: Policy, tree: ShareTree | None) -> None:
        self._counts = any(
            one.name == "fairshare" or any(name == "fairshare" for name, _ in one.factors)
            for one in policy.variants()
        )
        self._tree = tree
        self._metering = Metering() if len(snapshot.devices) else Metering(gpu=0, cpu=1)
        self._capacity = {
            "gpu": sum(share_of(model) for model in snapshot.devices.model) / 1000,
            "cpu": float(snapshot.nodes.cpu_millis.sum()) / 1000,
        }
        self._ended: dict[Pair, tuple[Tally, Tally]] = {}  # of GPUs and cores
        self._held: dict[int, tuple[Pair, float, float, float]] = {}  # job -> pair, GPUs, cores, since second

    def start(self, start: Start, user_id: int, now_ms: int) -> None:
        """Count a job from now on."""
        gpus = sum(len(placement.device_ids) * placement.gpu_millis for placement in start.placements) / 1000
        cores = start.per_task.cpu_millis * len(start.placements) / 1000
        self._held[start.job_id] = ((start.project_id, user_id), gpus, cores, now_ms / 1000)

    def change(self, job_id: int, held: tuple[int, int], now_ms: int) -> None:
        """Count a job with these thousandths of GPUs and of cores from now on; not one that ran at the beginning."""
        if job_id not in self._held:
            return
        pair, gpus, cores, _ = self._held[job_id]
        now = held[0] / 1000, held[1] / 1000
        if now != (gpus, cores):
            self.end(job_id, now_ms)
            self._held[job_id] = (pair, *now, now_ms / 1000)

    def end(self, job_id: int, now_ms: int) -> None:
        """Count a job no longer; nothing happens the second time."""
        if job_id not in self._held:
            return
        pair, gpus, cores, since = self._held.pop(job_id)
        tallies = self._ended.setdefault(pair, (Tally(_DECAY), Tally(_DECAY)))
        for tally, amount in zip(tallies, (gpus, cores), strict=True):
            if amount:
                tally.add(amount, since, now_ms / 1000)

    def add_to(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot with the usage until its moment and the shares that follow from it, if the policy asks."""
        if not self._counts:
            return snapshot
        at, projects = snapshot.now_ms / 1000, snapshot.projects
        used = self._used_at(at)
        if self._tree is not None:
            found = shares_of(
                self._tree,
                used,
                metering=self._metering,
                capacity=self._capacity,
                full_seconds=_DECAY.full(at),
            )
            return replace(snapshot, shares=share_columns(found, projects.id.tolist()).sorted_by_key())
        row = {number: place for place, number in enumerate(projects.id.tolist())}
        sums = np.zeros((len(METERED), len(row)))
        for (project_id, _), use in used.items():
            sums[:, row[project_id]] += use
        weighed = self._metering.usage(dict(zip(METERED, sums, strict=True)), self._capacity)
        return replace(snapshot, projects=replace(projects, used_gpu_seconds=weighed.astype(np.int64)))

    def _used_at(self, at: float) -> dict[Pair, tuple[float, float, float]]:
        """Decayed usage until second `at`, of ended and running jobs: GPUs, cores, memory (not counted)."""
        used = {pair: (gpus.used(at), cores.used(at), 0.0) for pair, (gpus, cores) in self._ended.items()}
        for pair, gpus_held, cores_held, since in self._held.values():
            before = used.get(pair, (0.0, 0.0, 0.0))
            span = _DECAY.used(1.0, since, at, at)
            used[pair] = (before[0] + gpus_held * span, before[1] + cores_held * span, 0.0)
        return used
