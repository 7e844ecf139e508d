"""A large site: the fair share factors of all projects, and what is free on the quota path of one project."""

from __future__ import annotations

import statistics
import time

import numpy as np

from benchmarks.registry import Figures, benchmark, median_cpu_ms
from quotas.core.fairshare import METERED, Metering, fair_tree
from quotas.core.limits import LimitTree

ROOTS, DEPARTMENTS, GROUPS, PROJECTS = 10, 100, 1000, 100_000


@benchmark("fairshare_100k_s")
def fairshare() -> Figures:
    """100,000 projects in a tree of four levels, all of them with use of three resources."""
    dice = np.random.default_rng(1)
    parent = four_levels(dice)
    weight = dice.integers(1, 10, len(parent)).astype(np.int64)
    leaf = np.arange(len(parent)) >= len(parent) - PROJECTS
    used = {name: np.where(leaf, dice.exponential(1e5, len(parent)), 0.0) for name in METERED}
    capacity = {"gpu": 1000.0, "cpu": 64_000.0, "memory": 512_000.0}
    metering = Metering(gpu=1.0, cpu=0.5, memory=0.1, dominant=True)

    def recompute() -> object:
        return fair_tree(parent, weight, metering.usage(used, capacity))

    yield "fairshare_100k_s", median_cpu_ms(recompute) / 1000


@benchmark("quota_path_us")
def quota_path() -> Figures:
    """What is free on a path of four levels in the planner's tree of 100,000 projects; p50 of single calls.

    Every line has a nominal quota, half have a borrowing limit, and a third a lending limit.
    """
    dice = np.random.default_rng(2)
    parent = four_levels(dice)
    lines = len(parent)
    leaf = np.arange(lines) >= lines - PROJECTS
    used = np.where(leaf, dice.integers(0, 16, lines) * 1000, 0)
    for line in range(lines - 1, -1, -1):  # parents come before their children
        if parent[line] >= 0:
            used[parent[line]] += used[line]
    nominal = used + dice.integers(-4, 8, lines) * 1000
    nominal = np.maximum(nominal, 0)
    tree = LimitTree(
        parent=parent.tolist(),
        used=used.tolist(),
        hard=[-1] * lines,
        nominal=nominal.tolist(),
        borrowing_limit=np.where(dice.random(lines) < 1 / 2, 4000, -1).tolist(),
        lending_limit=np.where(dice.random(lines) < 1 / 3, 2000, -1).tolist(),
        enforce=[True] * lines,
        is_pool=(~leaf).tolist(),
    )
    spent: list[int] = []
    for line in dice.choice(np.flatnonzero(leaf), 20_000).tolist():
        begin = time.perf_counter_ns()
        tree.free(line)
        spent.append(time.perf_counter_ns() - begin)
    yield "quota_path_us", statistics.median(spent) / 1000


def four_levels(dice: np.random.Generator) -> np.ndarray:
    """The row of the parent of each line, -1 for the ten roots; projects last."""
    return np.concatenate(
        [
            np.full(ROOTS, -1),
            dice.integers(0, ROOTS, DEPARTMENTS),
            dice.integers(ROOTS, ROOTS + DEPARTMENTS, GROUPS),
            dice.integers(ROOTS + DEPARTMENTS, ROOTS + DEPARTMENTS + GROUPS, PROJECTS),
        ]
    ).astype(np.int64)
