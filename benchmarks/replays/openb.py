"""The openb experiment of FGD (ATC 2023): how much of 6,212 GPUs a strategy allocates at 130 % demand.

Empty cluster; the tasks of the trace and more sampled from it until demand reaches 130 % of the GPUs, shuffled;
one pass, no job ends, a task that fits nowhere waits. That is one planning cycle under `fifo`, so `plan_cycle` runs
the whole of it. The traces are not part of this repository: MUSTER_DATA says where they are.
"""

from __future__ import annotations

import csv
import gzip
import random
import statistics
from functools import lru_cache
from pathlib import Path
from typing import Final

from benchmarks.registry import Figures, benchmark
from benchmarks.replays.traces import trace_folder
from quotas.core.resources import GPU_MILLIS, Resources
from scheduler.core.cycle import plan_cycle
from scheduler.core.plan import Plan
from scheduler.core.policy import Policy
from scheduler.core.snapshot.request_classes import ClassTable, RequestClass, request_class
from scheduler.core.snapshot.snapshot import (
    PendingColumns,
    ProjectColumns,
    QueueColumns,
    Snapshot,
)
from scheduler.simulator.openb import Machine, columns_of

DEMAND_PCT: Final = 130
SEEDS: Final = 10


@lru_cache
def machines(folder: Path) -> tuple[Machine, ...]:
    """The 1,213 GPU nodes, by name."""
    rows = _rows(folder / "openb_node_list_gpu_node.csv.gz")
    return tuple(
        Machine(row["sn"], int(row["cpu_milli"]), int(row["memory_mib"]), int(row["gpu"]), row["model"])
        for row in sorted(rows, key=lambda row: row["sn"])
    )


@lru_cache
def requests(folder: Path, mix: str = "default") -> tuple[RequestClass, ...]:
    """The request of each task of a trace, in the order of the file."""
    return tuple(
        request_class(
            Resources(
                cpu_millis=int(row["cpu_milli"]),
                memory_mib=int(row["memory_mib"]),
                gpus=int(row["num_gpu"]),
                gpu_millis=int(row["gpu_milli"]) if row["num_gpu"] == "1" else 0,
            ),
            gpu_model=row["gpu_spec"],
        )
        for row in _rows(folder / f"openb_pod_list_{mix}.csv.gz")
    )


def arrivals(
    tasks: tuple[RequestClass, ...], gpus: int, seed: int, demand_pct: int = DEMAND_PCT
) -> list[RequestClass]:
    """Tasks of the trace, fewer or more drawn from them until the demand is reached, shuffled."""
    dice = random.Random(seed)
    wanted = gpus * GPU_MILLIS * demand_pct // 100
    chosen = list(tasks)
    demand = sum(task.per_task.gpu_millis_charged for task in chosen)
    if demand > wanted:
        dice.shuffle(chosen)
        while demand > wanted:
            demand -= chosen.pop().per_task.gpu_millis_charged
    while demand < wanted:
        task = dice.choice(tasks)
        chosen.append(task)
        demand += task.per_task.gpu_millis_charged
    dice.shuffle(chosen)
    return chosen


def a_snapshot(fleet: list[Machine], tasks: list[RequestClass]) -> Snapshot:
    """The empty cluster with all tasks waiting, first come first."""
    table = ClassTable()
    numbers = [table.intern(task) for task in tasks]
    nodes, devices = columns_of(fleet)
    return Snapshot.build(
        now_ms=1_000_000,
        nodes=nodes,
        devices=devices,
        classes=table.classes,
        pending=PendingColumns(
            id=range(1, len(tasks) + 1),
            class_index=numbers,
            queue_id=[1] * len(tasks),
            project_id=[1] * len(tasks),
            submitted_ms=range(1, len(tasks) + 1),
        ),
        queues=QueueColumns(id=[1], name=["main"]),
        projects=ProjectColumns(id=[1], quota_line_ids=[()]),
    )


def allocated_pct(snapshot: Snapshot, plan: Plan) -> float:
    """How much of all GPUs a plan allocates."""
    given = sum(start.total.gpu_millis_charged for start in plan.starts)
    return 100.0 * given / (len(snapshot.devices) * GPU_MILLIS)


def run(placement: str, seed: int, mix: str = "default", *, every: int = 1) -> float:
    """GPU allocation in percent of one seed, on every n-th node of each kind with as much less work."""
    folder = trace_folder("openb-fgd")
    fleet = sorted(machines(folder), key=lambda m: (m.model, m.gpus, m.cpu_millis, m.name))[::every]
    fleet.sort(key=lambda machine: machine.name)
    tasks = arrivals(requests(folder, mix), sum(machine.gpus for machine in fleet), seed)
    snapshot = a_snapshot(fleet, tasks)
    return allocated_pct(snapshot, plan_cycle(snapshot, Policy(placement=placement)))


@benchmark("fgd_alloc_pct_bestfit", "fgd_alloc_pct_frag")
def openb() -> Figures:
    """GPU allocation at 130 % demand, mean of ten seeds of our own; FGD's artefact: BestFit 93.08, FGD 95.39."""
    for key, placement in (("bestfit", "best_fit"), ("frag", "frag")):
        shares = [run(placement, seed) for seed in range(1, SEEDS + 1)]
        yield f"fgd_alloc_pct_{key}", statistics.mean(shares)
        yield f"fgd_alloc_pct_{key}_sd", statistics.stdev(shares)


def _rows(path: Path) -> list[dict[str, str]]:
    with gzip.open(path, "rt", newline="") as file:
        return list(csv.DictReader(file))
