"""Synthetic workloads: made from a seed, and equal on every machine."""

from __future__ import annotations

import math
import random
from typing import Final

import numpy as np

from quotas.core.resources import Resources
from scheduler.core.snapshot.request_classes import ClassTable, RequestClass, request_class
from scheduler.core.snapshot.snapshot import (
    DeviceColumns,
    NodeColumns,
    PendingColumns,
    ProjectColumns,
    QueueColumns,
    Snapshot,
)
from scheduler.simulator.cluster_workload import ClusterWorkload
from scheduler.simulator.workload import JobColumns, Workload

_DAY: Final = 86_400
#: Time limits that people choose, in seconds.
_LIMITS: Final = (300, 900, 1800, 3600, 7200, 14_400, 28_800, 43_200, _DAY, 2 * _DAY, 4 * _DAY)
_GPUS_PER_NODE: Final = 8


def rigid_jobs(seed: int = 1, *, jobs: int = 2000, processors: int = 128) -> Workload:
    """Rigid parallel jobs in the manner of Lublin and Feitelson (JPDC 63, 2003).

    A quarter are serial; sizes are log-uniform in two stages and mostly powers of two; run times come from two gamma
    distributions, the long one likelier for large jobs; arrivals follow the working day. Time limits are round and
    generous, as people write them.
    """
    dice = random.Random(f"rigid {seed}")
    clock, rows = 0.0, []
    for number in range(1, jobs + 1):
        clock = _next_arrival(dice, clock)
        size = _parallel_size(dice, processors)
        short = dice.random() < max(0.85 - 0.0054 * size, 0.2)
        run = math.exp(dice.gammavariate(4.2, 0.94) if short else dice.gammavariate(312.0, 0.03))
        run_seconds = min(max(int(run), 1), 2 * _DAY)
        asked = max(run_seconds * dice.choice([1, 1.2, 2, 3, 5, 10]), 60)
        limit = next((step for step in _LIMITS if step >= asked), int(asked))
        rows.append((number, int(clock) * 1000, run_seconds * 1000, limit * 1000, size, dice.randint(1, 20)))
    return Workload(
        name=f"rigid-{seed}",
        processors=processors,
        jobs=JobColumns.from_rows(rows),
        waited_ms=np.full(jobs, -1, dtype=np.int64),
    )


def _next_arrival(dice: random.Random, clock: float) -> float:
    """The second of the next arrival: often by day, rarely by night."""
    while True:
        clock += dice.gammavariate(1.2, 520.0)
        if dice.random() < 0.55 + 0.45 * math.sin(2 * math.pi * (clock % _DAY) / _DAY - math.pi / 2):
            return clock


def _parallel_size(dice: random.Random, processors: int) -> int:
    top, size = math.log2(processors), 1
    if dice.random() > 0.24:
        exponent = dice.uniform(0.8, 0.6 * top) if dice.random() < 0.7 else dice.uniform(0.6 * top, top)
        size = 2 ** round(exponent) if dice.random() < 0.75 else round(2**exponent)
    return min(max(size, 1), processors)


def gpu_mix(seed: int = 1, *, jobs: int = 500, nodes: int = 16) -> ClusterWorkload:
    """A cluster of 8-GPU nodes of two models, and a mix of jobs that is usual on such clusters.

    Mostly single GPUs, some shares of one, some whole nodes, few gangs over several nodes; from four projects.
    """
    dice = random.Random(f"gpu {seed}")
    table, clock, rows, runs, amounts = ClassTable(), 0.0, [], [], []
    for number in range(1, jobs + 1):
        clock += dice.expovariate(nodes / 800.0)
        gpus = dice.choices([1, 2, 4, 8], [62, 14, 12, 12])[0]
        share = dice.choice([250, 500]) if gpus == 1 and dice.random() < 0.3 else 0
        tasks = dice.choice([2, 2, 4]) if gpus == 8 and nodes >= 4 and dice.random() < 0.3 else 1
        run_seconds = min(max(int(dice.lognormvariate(8.0, 1.6)), 30), 3 * _DAY)
        limit = next((step for step in _LIMITS if step >= run_seconds * dice.choice([1, 2, 4])), 4 * _DAY)
        request = _gpu_request(gpus, share, dice.choice(["", "", "H100", "A100"]))
        rows.append(
            (number, table.intern(request), 1, dice.randint(1, 4), dice.randint(1, 12), dice.choice([25, 50, 50, 75]),
             int(clock) * 1000, tasks, limit)
        )  # fmt: skip
        runs.append(run_seconds * 1000)
        amounts.append(request.per_task.gpu_millis_charged * tasks)
    snapshot = Snapshot.build(
        now_ms=0,
        nodes=_gpu_nodes(nodes),
        devices=_gpu_devices(nodes),
        classes=table.classes,
        pending=PendingColumns.from_rows(
            rows,
            ("id", "class_index", "queue_id", "project_id", "user_id", "priority", "submitted_ms", "tasks",
             "time_limit_seconds"),
        ),
        queues=QueueColumns(id=[1], name=["main"]),
        projects=ProjectColumns(id=[1, 2, 3, 4], name=["a", "b", "c", "d"]),
    )  # fmt: skip
    capacity = nodes * _GPUS_PER_NODE * 1000
    return ClusterWorkload(f"gpu-{seed}", snapshot, np.array(runs), np.array(amounts), capacity)


def _gpu_request(gpus: int, share_millis: int, model: str) -> RequestClass:
    """A request with CPUs and memory in proportion to its GPUs; less of both for a share of one GPU."""
    per_task = Resources(
        cpu_millis=4000 if share_millis else 8000 * gpus,
        memory_mib=(16 if share_millis else 64 * gpus) * 1024,
        gpus=gpus,
        gpu_millis=share_millis,
    )
    return request_class(per_task, gpu_model=model)


def _gpu_nodes(count: int) -> NodeColumns:
    """Nodes of 96 cores and 1 TiB in two NUMA domains."""
    return NodeColumns(
        id=range(1, count + 1),
        name=[f"gpu{number:03}" for number in range(1, count + 1)],
        cpu_millis=[96_000] * count,
        memory_mib=[1024 * 1024] * count,
        domains=[((0, 48_000, 512 * 1024), (1, 48_000, 512 * 1024))] * count,
    )


def _gpu_devices(nodes: int) -> DeviceColumns:
    """Eight GPUs on each node, four in each NUMA domain; A100 and H100 nodes alternate."""
    count = nodes * _GPUS_PER_NODE
    return DeviceColumns(
        id=range(1, count + 1),
        node_id=np.repeat(np.arange(1, nodes + 1), _GPUS_PER_NODE),
        position=np.tile(np.arange(_GPUS_PER_NODE), nodes),
        numa=np.tile(np.arange(_GPUS_PER_NODE) // 4, nodes),
        model=["H100-80GB" if device // 8 % 2 else "A100-40GB" for device in range(count)],
        memory_mib=[40 * 1024] * count,
    )
