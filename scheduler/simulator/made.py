"""Workloads of our own: made from a seed, equal on every machine; and a log or recorded cycle as a cluster."""

from __future__ import annotations

import math
import random

import numpy as np

from quotas.core.gpu_models import share_of
from quotas.core.resources import Resources
from scheduler.core.columns import Ints
from scheduler.core.snapshot.request_classes import ClassTable, request_class
from scheduler.core.snapshot.snapshot import (
    DeviceColumns,
    NodeColumns,
    PendingColumns,
    ProjectColumns,
    QueueColumns,
    Snapshot,
)
from scheduler.simulator.cluster import DEFAULT_RUN_MS, ClusterWorkload
from scheduler.simulator.workload import JobColumns, Workload

_DAY = 86_400


def rigid_jobs(seed: int = 1, *, jobs: int = 2000, processors: int = 128) -> Workload:
    """Rigid parallel jobs in the manner of Lublin and Feitelson.

    A quarter are serial; sizes are log-uniform in two stages and mostly powers of two; run times are of two
    gamma kinds, the long one likelier for large jobs; arrivals follow the working day. Limits are round and
    generous, as people write them.
    """
    dice = random.Random(f"rigid {seed}")
    clock, rows = 0.0, []
    top = math.log2(processors)
    for number in range(1, jobs + 1):
        while True:
            clock += dice.gammavariate(1.2, 520.0)
            if dice.random() < 0.55 + 0.45 * math.sin(2 * math.pi * (clock % _DAY) / _DAY - math.pi / 2):
                break
        size = 1
        if dice.random() > 0.24:
            exponent = dice.uniform(0.8, 0.6 * top) if dice.random() < 0.7 else dice.uniform(0.6 * top, top)
            size = 2 ** round(exponent) if dice.random() < 0.75 else round(2**exponent)
        size = min(max(size, 1), processors)
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


_LIMITS = (300, 900, 1800, 3600, 7200, 14_400, 28_800, 43_200, _DAY, 2 * _DAY, 4 * _DAY)


def gpu_mix(seed: int = 1, *, jobs: int = 500, nodes: int = 16) -> ClusterWorkload:
    """A cluster of 8-GPU nodes of two models, and the mix that such clusters see.

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
        request = request_class(
            Resources(
                cpu_millis=8000 * gpus if not share else 4000,
                memory_mib=64 * 1024 * gpus if not share else 16 * 1024,
                gpus=gpus,
                gpu_millis=share,
            ),
            gpu_model=dice.choice(["", "", "H100", "A100"]),
        )
        rows.append(
            (number, table.intern(request), 1, dice.randint(1, 4), dice.randint(1, 12), dice.choice([25, 50, 50, 75]),
             int(clock) * 1000, tasks, limit)
        )  # fmt: skip
        runs.append(run_seconds * 1000)
        amounts.append(request.per_task.gpu_millis_charged * tasks)
    count = nodes * 8
    snapshot = Snapshot.build(
        now_ms=0,
        nodes=NodeColumns(
            id=range(1, nodes + 1),
            name=[f"gpu{number:03}" for number in range(1, nodes + 1)],
            cpu_millis=[96_000] * nodes,
            memory_mib=[1024 * 1024] * nodes,
            domains=[((0, 48_000, 512 * 1024), (1, 48_000, 512 * 1024))] * nodes,
        ),
        devices=DeviceColumns(
            id=range(1, count + 1),
            node_id=np.repeat(np.arange(1, nodes + 1), 8),
            position=np.tile(np.arange(8), nodes),
            numa=np.tile(np.arange(8) // 4, nodes),
            model=["H100-80GB" if device // 8 % 2 else "A100-40GB" for device in range(count)],
            memory_mib=[40 * 1024] * count,
        ),
        classes=table.classes,
        pending=PendingColumns.from_rows(
            rows,
            ("id", "class_index", "queue_id", "project_id", "user_id", "priority", "submitted_ms", "tasks",
             "time_limit_seconds"),
        ),
        queues=QueueColumns(id=[1], name=["main"]),
        projects=ProjectColumns(id=[1, 2, 3, 4], name=["a", "b", "c", "d"]),
    )  # fmt: skip
    return ClusterWorkload(f"gpu-{seed}", snapshot, np.array(runs), np.array(amounts), count * 1000)


def as_cluster(workload: Workload) -> ClusterWorkload:
    """A log of processors as one node with so many CPUs: the planner of clusters on what a pool replays faster."""
    jobs, table = workload.jobs, ClassTable()
    needs = jobs.processors.tolist()
    numbers = [table.intern(request_class(Resources(cpu_millis=need * 1000))) for need in needs]
    users = np.unique(jobs.user_id)
    snapshot = Snapshot.build(
        now_ms=0,
        nodes=NodeColumns(id=[1], name=["machine"], cpu_millis=[workload.processors * 1000]),
        classes=table.classes,
        pending=PendingColumns(
            id=np.arange(1, len(jobs) + 1),
            class_index=numbers,
            queue_id=np.ones(len(jobs)),
            project_id=np.searchsorted(users, jobs.user_id) + 1,
            user_id=jobs.user_id,
            submitted_ms=jobs.submitted_ms,
            time_limit_seconds=-(-jobs.limit_ms // 1000),
        ),
        queues=QueueColumns(id=[1], name=["main"]),
        projects=ProjectColumns(id=np.arange(1, len(users) + 1)),
    )
    return ClusterWorkload(
        workload.name, snapshot, jobs.run_ms, jobs.processors * 1000, workload.processors * 1000
    )


def from_snapshot(snapshot: Snapshot, name: str) -> ClusterWorkload:
    """What waits and runs in a recorded cycle, played to its end; every job is taken to run for its whole limit.

    One whose size is open takes as long with the most tasks that it may have, and with fewer too: then that ends it.
    """
    pending = snapshot.pending
    run_ms = np.where(pending.time_limit_seconds > 0, pending.time_limit_seconds * 1000, DEFAULT_RUN_MS)
    run_ms = run_ms * np.maximum(pending.most_tasks, pending.tasks) // np.maximum(pending.tasks, 1)
    return ClusterWorkload(name, snapshot, run_ms, amounts_of(snapshot), capacity_of(snapshot))


def amounts_of(snapshot: Snapshot) -> Ints:
    """What each pending job would hold, in thousandths of GPUs; of processors where there are no GPUs."""
    has_gpus = bool(len(snapshot.devices))
    each = np.array(
        [one.per_task.gpu_millis_charged if has_gpus else one.per_task.cpu_millis for one in snapshot.classes]
        or [0],
        dtype=np.int64,
    )
    return each[snapshot.pending.class_index] * snapshot.pending.tasks


def capacity_of(snapshot: Snapshot) -> int:
    """All there is to hold, counted as `amounts_of` does."""
    if len(snapshot.devices):
        return sum(share_of(model) for model in snapshot.devices.model)
    return int(snapshot.nodes.cpu_millis.sum())
