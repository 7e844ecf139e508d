"""Fair share of a large site: the whole tree anew, from the use of everybody to the factor of everybody."""

from __future__ import annotations

import numpy as np

from benchmarks.registry import Figures, benchmark, median_cpu_ms
from quotas.core.fairshare import METERED, Metering, fair_tree

ROOTS, DEPARTMENTS, GROUPS, PROJECTS = 10, 100, 1000, 100_000


@benchmark("fairshare_100k_s")
def fairshare() -> Figures:
    """100,000 projects in a tree of four levels, all of them with use of three resources."""
    dice = np.random.default_rng(1)
    parent = np.concatenate(
        [
            np.full(ROOTS, -1),
            dice.integers(0, ROOTS, DEPARTMENTS),
            dice.integers(ROOTS, ROOTS + DEPARTMENTS, GROUPS),
            dice.integers(ROOTS + DEPARTMENTS, ROOTS + DEPARTMENTS + GROUPS, PROJECTS),
        ]
    ).astype(np.int64)
    weight = dice.integers(1, 10, len(parent)).astype(np.int64)
    leaf = np.arange(len(parent)) >= len(parent) - PROJECTS
    used = {name: np.where(leaf, dice.exponential(1e5, len(parent)), 0.0) for name in METERED}
    capacity = {"gpu": 1000.0, "cpu": 64_000.0, "memory": 512_000.0}
    metering = Metering(gpu=1.0, cpu=0.5, memory=0.1, dominant=True)

    def recompute() -> object:
        return fair_tree(parent, weight, metering.usage(used, capacity))

    yield "fairshare_100k_s", median_cpu_ms(recompute) / 1000
