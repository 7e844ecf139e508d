"""A cycle with everything at once: gangs, priority classes, a tree of quotas, backfill and preemption."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from benchmarks.core.cycles import CASES, a_cluster, filled
from benchmarks.core.explaining import CLASSES
from benchmarks.registry import Figures, benchmark, median_cpu_ms
from quotas.core.resources import GPU_MILLIS
from scheduler.core.cycle import plan_cycle
from scheduler.core.policy import Policy
from scheduler.core.preemption_policy import PreemptionPolicy
from scheduler.core.snapshot.snapshot import ProjectColumns, QuotaColumns, Snapshot

PRIORITIES: Final = [begin for begin, _ in CLASSES]
PROJECTS: Final = 20
DEPARTMENTS: Final = 4
GANG_SHARE: Final = 0.2

POLICY: Final = Policy(
    name="priority", backfill="easy", preemption=PreemptionPolicy(enabled=True, classes=CLASSES)
)


def a_mixed_cluster(*, nodes: int, pending: int, classes: int, busy: float, seed: int = 1) -> Snapshot:
    """A fifth of the jobs are gangs of 2 to 64 tasks; jobs of five priority classes wait and run; each of 20
    projects is bounded by its own line, its department's and the whole site's, and a third of them are full.
    """
    snapshot = a_cluster(
        nodes=nodes, pending=pending, classes=classes, busy=busy, with_gpus_only=True, seed=seed
    )
    dice = np.random.default_rng(seed)
    waiting, running = snapshot.pending, snapshot.running
    sizes = 2 ** dice.integers(1, 7, len(waiting))
    held = np.bincount(running.project_id, minlength=PROJECTS + 1)[1:] * GPU_MILLIS
    full = np.arange(PROJECTS) % 3 == 0
    department = np.arange(PROJECTS) % DEPARTMENTS
    of_departments = np.bincount(department, weights=held, minlength=DEPARTMENTS).astype(np.int64)
    used = np.concatenate([held, of_departments, [held.sum()]])
    hard = np.concatenate(
        [np.where(full, held, held * 2), of_departments * 3 // 2, [len(snapshot.devices) * GPU_MILLIS]]
    )
    first, site = PROJECTS + 1, PROJECTS + DEPARTMENTS + 1
    return replace(
        snapshot,
        pending=replace(
            waiting,
            tasks=np.where(dice.random(len(waiting)) < GANG_SHARE, sizes, 1),
            priority=dice.choice(PRIORITIES, len(waiting)),
        ),
        running=replace(
            running,
            priority=dice.choice(PRIORITIES, len(running)),
            started_ms=snapshot.now_ms - dice.integers(600_000, 36_000_000, len(running)),
        ),
        projects=ProjectColumns(
            id=np.arange(1, PROJECTS + 1),
            quota_line_ids=[(row + 1, first + own, site) for row, own in enumerate(department.tolist())],
        ),
        quotas=QuotaColumns(
            id=np.arange(1, site + 1),
            resource=["gpu_millis"] * site,
            hard=hard,
            used=used,
            owner=[f"project {row}" for row in range(PROJECTS)]
            + [f"department {row}" for row in range(DEPARTMENTS)]
            + ["the site"],
            parent_id=np.concatenate([first + department, np.full(DEPARTMENTS, site), [0]]),
        ),
    )


@benchmark("cycle_mixed_ms_100k_1000", "cycle_mixed_ms_100k_1000_starting")
def mixed_cycle() -> Figures:
    """Priority order, EASY backfill and preemption over it; the first on a cluster that is full, as most are."""
    for key, case in CASES["mixed"].items():
        words = dict(case)
        fill = words.pop("filled", False)
        snapshot = a_mixed_cluster(**words)
        snapshot = filled(snapshot) if fill else snapshot
        yield key, median_cpu_ms(lambda snapshot=snapshot: plan_cycle(snapshot, POLICY))
