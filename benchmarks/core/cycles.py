"""The core alone, in memory: one placement, one decision, one queue operation, whole cycles."""

from __future__ import annotations

import gc
import random
import statistics
import time
import tomllib
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.reference import core_ratio
from benchmarks.registry import Figures, benchmark, median_cpu_ms
from infra.machine.freed_memory import keep_freed_memory
from quotas.core.resources import Resources
from scheduler.core.cluster.index import ClusterIndex
from scheduler.core.cluster.workspace import Workspace
from scheduler.core.context.cycle_context import CycleContext
from scheduler.core.cycle import plan_cycle
from scheduler.core.placement.candidates import Candidates
from scheduler.core.placement.filters import FilterQuery
from scheduler.core.placement.plugins import resolve
from scheduler.core.policy import Policy
from scheduler.core.snapshot.request_classes import RequestClass, request_class
from scheduler.core.snapshot.snapshot import (
    AllocationColumns,
    DeviceColumns,
    NodeColumns,
    PendingColumns,
    ProjectColumns,
    QueueColumns,
    QuotaColumns,
    RunningColumns,
    Snapshot,
)
from scheduler.core.start_passes import try_start
from scheduler.state.load.job_rows import OWN_NAMES
from scheduler.state.load.resident.jobs import ResidentJobs

CASES: Final = tomllib.loads((Path(__file__).parent / "cases" / "core.toml").read_text())

NOW_MS: Final = 1_700_000_000_000
GPUS_PER_NODE: Final = 8
NUMA_DOMAINS: Final = 2


def request_classes(count: int, seed: int = 1, *, with_gpus_only: bool = False) -> list[RequestClass]:
    """Distinct requests as a GPU cluster sees them: mostly whole GPUs, some shares, some without."""
    dice = random.Random(seed)
    classes: dict[RequestClass, None] = {}
    while len(classes) < count:
        gpus = dice.choice([1, 1, 1, 2, 2, 4, 8] if with_gpus_only else [0, 0, 1, 1, 1, 2, 2, 4, 8])
        share = dice.choice([250, 500]) if gpus == 1 and dice.random() < 0.3 else 0
        per_task = Resources(
            cpu_millis=1000 * dice.choice([1, 2, 4, 8]) * max(gpus, 1),
            memory_mib=1024 * dice.choice([4, 8, 16, 32]) * max(gpus, 1),
            gpus=gpus,
            gpu_millis=share,
        )
        selector = [("pool", "a")] if dice.random() < 0.2 else []
        model = dice.choice(["", "H100", "A100"])
        classes[request_class(per_task, gpu_model=model, node_selector=selector)] = None
    return list(classes)


def a_cluster(
    *, nodes: int, pending: int, classes: int, busy: float, with_gpus_only: bool = False, seed: int = 1
) -> Snapshot:
    """A cluster of 8-GPU nodes of which some GPUs are busy, and a queue of jobs of several classes."""
    dice = np.random.default_rng(seed)
    devices = nodes * GPUS_PER_NODE
    device_node = np.repeat(np.arange(1, nodes + 1), GPUS_PER_NODE)
    device_id = np.arange(1, devices + 1)
    held = np.sort(dice.choice(devices, size=round(devices * busy), replace=False))
    used = np.zeros(devices, dtype=np.int64)
    used[held] = 1000
    held_per_node = np.bincount(device_node[held] - 1, minlength=nodes)
    running = len(held)
    requests = request_classes(classes, seed, with_gpus_only=with_gpus_only)
    columns = {name: dice.integers(low, high, pending) for name, low, high in (
        ("class_index", 0, classes), ("queue_id", 1, 5), ("project_id", 1, 21), ("user_id", 1, 101),
        ("priority", 0, 101))}  # fmt: skip
    return Snapshot.build(
        now_ms=NOW_MS,
        nodes=NodeColumns(
            id=np.arange(1, nodes + 1),
            name=[f"n{number:05}" for number in range(nodes)],
            cpu_millis=np.full(nodes, 128_000),
            memory_mib=np.full(nodes, 1024 * 1024),
            used_cpu_millis=held_per_node * 8000,
            used_memory_mib=held_per_node * 64 * 1024,
            labels=[(("pool", "a" if number % 3 else "b"),) for number in range(nodes)],
        ),
        devices=DeviceColumns(
            id=device_id,
            node_id=device_node,
            position=np.tile(np.arange(GPUS_PER_NODE), nodes),
            numa=np.tile(np.arange(GPUS_PER_NODE) * NUMA_DOMAINS // GPUS_PER_NODE, nodes),
            model=["H100-80GB" if number % 2 else "A100-40GB" for number in device_node.tolist()],
            memory_mib=np.full(devices, 80 * 1024),
            used_millis=used,
        ),
        classes=requests,
        pending=PendingColumns(
            id=np.arange(running + 1, running + pending + 1),
            submitted_ms=NOW_MS - np.arange(pending, 0, -1) * 100,
            time_limit_seconds=dice.integers(600, 86_400, pending),
            **columns,
        ),
        running=RunningColumns(
            id=np.arange(1, running + 1),
            class_index=np.zeros(running),
            queue_id=dice.integers(1, 5, running),
            project_id=dice.integers(1, 21, running),
            expected_end_ms=NOW_MS + dice.integers(60, 86_400, running) * 1000,
        ),
        allocations=AllocationColumns(
            id=np.arange(1, running + 1),
            job_id=np.arange(1, running + 1),
            node_id=device_node[held],
            cpu_millis=np.full(running, 8000),
            memory_mib=np.full(running, 64 * 1024),
            device_ids=[(number,) for number in device_id[held].tolist()],
            gpu_millis=np.full(running, 1000),
        ),
        queues=QueueColumns(id=[1, 2, 3, 4], name=["a", "b", "c", "d"], priority=[50, 60, 40, 50]),
        projects=ProjectColumns(
            id=np.arange(1, 21), quota_line_ids=[(number, 21) for number in range(1, 21)]
        ),
        quotas=QuotaColumns(
            id=np.arange(1, 22),
            resource=["gpu_millis"] * 21,
            hard=[10**9] * 21,
            owner=["a project"] * 20 + ["all"],
        ),
    )


def filled(snapshot: Snapshot) -> Snapshot:
    """The cluster with everything given away that its queue can use, and the same queue as before.

    The state a busy cluster is in most of the time: a cycle considers every job and starts none.
    """
    plan = plan_cycle(snapshot, Policy(name="priority"))
    nodes, devices = snapshot.nodes, snapshot.devices
    node_row = {number: row for row, number in enumerate(nodes.id.tolist())}
    device_row = {number: row for row, number in enumerate(devices.id.tolist())}
    cpu, memory = nodes.used_cpu_millis.copy(), nodes.used_memory_mib.copy()
    millis = devices.used_millis.copy()
    for start in plan.starts:
        for placement in start.placements:
            cpu[node_row[placement.node_id]] += start.per_task.cpu_millis
            memory[node_row[placement.node_id]] += start.per_task.memory_mib
            for device in placement.device_ids:
                millis[device_row[device]] += placement.gpu_millis
    return replace(
        snapshot,
        nodes=replace(nodes, used_cpu_millis=cpu, used_memory_mib=memory),
        devices=replace(devices, used_millis=millis),
    )


def churn(nodes: int, decisions: int, seed: int = 1) -> tuple[float, float]:
    """(p50, p99) in us of filter + score + pick on a nearly full cluster while others come and go.

    32 classes in turn; each pick is carried out and the oldest given back, so that every class meets
    nodes changed by the others. Only the pick is timed.
    """
    snapshot = a_cluster(nodes=nodes, pending=0, classes=1, busy=0.88, seed=seed)
    cluster = ClusterIndex(snapshot)
    workspace = Workspace(cluster)
    rules = resolve(Policy())
    requests = [r for r in request_classes(64, seed) if r.per_task.gpus < 8][:32]
    candidates = [Candidates(FilterQuery(request), workspace, rules) for request in requests]
    live: deque[tuple[int, RequestClass, list[int], int]] = deque()
    dice = random.Random(seed)
    timings: list[int] = []
    gc.disable()
    try:
        for _ in range(decisions):
            chosen = candidates[dice.randrange(len(candidates))]
            begin = time.perf_counter_ns()
            row = chosen.best()
            timings.append(time.perf_counter_ns() - begin)
            request = chosen.query.request
            if row >= 0:
                devices = workspace.pick_devices(row, request)
                millis = (request.per_task.gpu_millis or 1000) if devices else 0
                workspace.take(row, request.per_task, devices, millis)
                live.append((row, request, devices, millis))
            if len(live) > nodes // 4 or (row < 0 and live):
                row, request, devices, millis = live.popleft()
                back = Resources() - request.per_task
                workspace.take(row, back, devices, -millis)
    finally:
        gc.enable()
    ordered = sorted(timings)
    return statistics.median(ordered) / 1000, ordered[int(len(ordered) * 0.99)] / 1000


@benchmark("array_call_us")
def array_call() -> Figures:
    """How fast this machine is just now: one small NumPy call, p50. Prototypes found 0.4 to 0.6.

    The figures of the core are mostly such calls: twice this is twice those.
    """
    column, rows = np.arange(1000), np.arange(0, 1000, 25)
    timings: list[float] = []
    for _ in range(4000):
        begin = time.perf_counter_ns()
        mask = column.take(rows) >= 500
        mask &= mask
        np.where(mask, 1.0, -1.0)
        timings.append((time.perf_counter_ns() - begin) / 4)
    yield "array_call_us", statistics.median(timings) / 1000


@benchmark("reference_core_ratio")
def reference_core() -> Figures:
    """How many times as long as the reference core this one takes, on operations that were published for it."""
    yield "reference_core_ratio", core_ratio(repeats=41)


@benchmark("placement_us_100", "placement_us_1000", "placement_us_10000")
def placement() -> Figures:
    """One placement decision: filter + score + pick, p50."""
    for nodes in CASES["placement"]["nodes"]:
        runs = [churn(nodes, CASES["placement"]["decisions"], seed) for seed in range(1, 4)]
        yield f"placement_us_{nodes}", statistics.median(p50 for p50, _ in runs)
        yield f"placement_us_{nodes}_p99", statistics.median(p99 for _, p99 in runs)


@benchmark("decision_us_1000")
def decision() -> Figures:
    """Next job + quota + place + commit, p50, on 1,000 nodes with a fifth of the GPUs idle."""
    case = CASES["decision"]
    snapshot = a_cluster(nodes=case["nodes"], pending=case["pending"], classes=32, busy=case["busy"])
    timings: list[int] = []
    for _ in range(3):
        context = CycleContext(ClusterIndex(snapshot), resolve(Policy()))
        waiting = deque(range(len(snapshot.pending)))
        for number in range(len(context.job_classes)):
            context.candidates(context.job_classes[number])
        gc.disable()
        while waiting:
            begin = time.perf_counter_ns()
            row = waiting.popleft()
            start = try_start(context, row, context.job_classes.of(row))
            spent = time.perf_counter_ns() - begin
            if start is not None:
                timings.append(spent)
        gc.enable()
    yield "decision_us_1000", statistics.median(timings) / 1000


#: Jobs that a planner takes in at once: as many submissions as share a transaction, and as many starts.
TOGETHER: Final = 64


@benchmark("queue_op_us_100k")
def queue_operation() -> Figures:
    """Taking a job out of the 100,000 pending jobs that the planner keeps in memory, or adding one: p50.

    Each turn takes in what one cycle sees at a busy time: 64 jobs that started and 64 that were submitted.
    """
    dice = np.random.default_rng(1)
    count = 100_000
    own = {name: np.zeros(count, dtype=np.int64) for name in OWN_NAMES}
    own["id"], own["class_index"] = np.arange(1, count + 1), dice.integers(0, 32, count)
    own["project_id"], own["priority"] = dice.integers(0, 50, count), dice.integers(0, 101, count)
    jobs = ResidentJobs(own)
    nothing = {name: np.zeros(0, dtype=np.int64) for name in OWN_NAMES}
    runs: list[float] = []
    for turn in range(200):
        waiting = jobs.column("id")[jobs.rows()]
        started = np.sort(dice.choice(waiting, TOGETHER, replace=False))
        submitted = {name: own[name][:TOGETHER] for name in OWN_NAMES}
        submitted["id"] = np.arange(1, TOGETHER + 1) + count + turn * TOGETHER
        begin = time.perf_counter_ns()
        jobs.merge(started, nothing)
        jobs.merge(submitted["id"], submitted)
        runs.append((time.perf_counter_ns() - begin) / (2 * TOGETHER) / 1000)
    assert len(jobs) == count
    yield "queue_op_us_100k", statistics.median(runs)


@benchmark("cycle_ms_10k_1000", "cycle_ms_100k_1000", "cycle_growth")
def cycle() -> Figures:
    """A whole cycle under `priority` with EASY backfill: every reason with its numbers, no look-ahead limit."""
    keep_freed_memory()  # as the planner does
    figures: dict[str, float] = {}
    policy = Policy(name="priority", backfill="easy")
    for key, case in CASES["cycle"].items():
        words = dict(case)
        fill = words.pop("filled", False)
        snapshot = a_cluster(**words, with_gpus_only=True)
        snapshot = filled(snapshot) if fill else snapshot
        figures[key] = median_cpu_ms(lambda snapshot=snapshot: plan_cycle(snapshot, policy))
        yield key, figures[key]
    yield "cycle_growth", figures["cycle_ms_100k_1000"] / figures["cycle_ms_10k_1000"]
