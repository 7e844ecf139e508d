"""The openb traces of Alibaba (clusterdata 2023): tables of nodes and of pods, as a cluster with its jobs."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path
from typing import Final, TextIO, cast

import numpy as np

from quotas.core.resources import Resources
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
from scheduler.simulator.workload import WorkloadError

#: Columns by which each table is known.
POD_COLUMNS: Final = (
    "cpu_milli",
    "memory_mib",
    "num_gpu",
    "gpu_milli",
    "gpu_spec",
    "creation_time",
    "deletion_time",
)
NODE_COLUMNS: Final = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
#: Looked for beside the pods where no table of nodes is named.
_NODE_FILES: Final = ("openb_node_list_gpu_node.csv", "openb_node_list_gpu_node.csv.gz", "openb_node_list_all_node.csv",
                      "openb_node_list_all_node.csv.gz")  # fmt: skip


def is_pods(path: Path) -> bool:
    """Whether a file is a table of pods, by its first line."""
    with _lines(path) as lines:
        first = next(iter(lines), "")
    return set(POD_COLUMNS) <= set(first.strip().split(","))


def read_openb(pods: Path, nodes: Path | None = None, *, jobs: int | None = None) -> ClusterWorkload:
    """A table of pods and one of nodes, plain or gzipped. Raises WorkloadError with the line at fault.

    A pod runs from when it was scheduled (else created) until it was deleted; its limit is just that, for the trace
    knows no other, so backfill sees the future. A quality of service stands for a user, and each has a project.
    `jobs` takes only the first so many to come.
    """
    nodes = nodes or next(
        (pods.parent / name for name in _NODE_FILES if (pods.parent / name).is_file()), None
    )
    if nodes is None:
        raise WorkloadError(f"no table of nodes beside {pods.name}; name one with --nodes FILE")
    machines = _rows(nodes, NODE_COLUMNS)
    table, runs, amounts = ClassTable(), [], []
    rows: list[tuple[int, ...]] = []
    kinds: dict[str, int] = {}
    for line, pod in _rows(pods, POD_COLUMNS):
        try:
            gpus, milli = int(pod["num_gpu"]), int(pod["gpu_milli"] or 0)
            request = request_class(
                Resources(
                    cpu_millis=int(pod["cpu_milli"]),
                    memory_mib=int(pod["memory_mib"]),
                    gpus=gpus,
                    gpu_millis=milli if gpus == 1 and milli < 1000 else 0,
                ),
                gpu_model=pod["gpu_spec"],
            )
            created = int(float(pod["creation_time"]))
            begun = int(float(pod.get("scheduled_time") or created))
            ended = float(pod["deletion_time"] or 0)
        except (ValueError, TypeError, OverflowError) as error:
            raise WorkloadError(f"{pods.name}, line {line}: {error}") from error
        kind = kinds.setdefault(pod.get("qos") or "none", len(kinds) + 1)
        run_ms = max(int(ended) - max(begun, created), 1) * 1000 if ended else DEFAULT_RUN_MS
        rows.append((len(rows) + 1, table.intern(request), 1, kind, kind, created * 1000, run_ms // 1000))
        runs.append(run_ms)
        amounts.append(request.per_task.gpu_millis_charged)
    if not rows:
        raise WorkloadError(f"{pods.name} holds no pods")
    picked = sorted(range(len(rows)), key=lambda place: (rows[place][5], place))[:jobs]
    picked.sort()
    sizes = [_size(nodes.name, line, machine) for line, machine in machines]
    owners = [place for place, (_, _, gpus) in enumerate(sizes) for _ in range(gpus)]
    snapshot = Snapshot.build(
        now_ms=0,
        nodes=NodeColumns(
            id=range(1, len(machines) + 1),
            name=[machine["sn"] for _, machine in machines],
            cpu_millis=[cpu for cpu, _, _ in sizes],
            memory_mib=[memory for _, memory, _ in sizes],
        ),
        devices=DeviceColumns(
            id=range(1, len(owners) + 1),
            node_id=[place + 1 for place in owners],
            position=[count for _, _, gpus in sizes for count in range(gpus)],
            model=[machines[place][1]["model"] for place in owners],
        ),
        classes=table.classes,
        pending=PendingColumns.from_rows(
            [rows[place] for place in picked],
            ("id", "class_index", "queue_id", "project_id", "user_id", "submitted_ms", "time_limit_seconds"),
        ),
        queues=QueueColumns(id=[1], name=["main"]),
        projects=ProjectColumns(id=list(kinds.values()), name=list(kinds)),
    )
    return ClusterWorkload(
        pods.name.split(".")[0],
        snapshot,
        np.array([runs[place] for place in picked]),
        np.array([amounts[place] for place in picked]),
        1000 * max(len(owners), 1),
        users={number: kind for kind, number in kinds.items()},
    )


def _size(name: str, line: int, machine: dict[str, str]) -> tuple[int, int, int]:
    """CPU, memory and GPUs of a node."""
    try:
        size = int(machine["cpu_milli"]), int(machine["memory_mib"]), int(machine["gpu"] or 0)
    except (ValueError, TypeError) as error:
        raise WorkloadError(f"{name}, line {line}: {error}") from error
    if min(size) < 0:
        raise WorkloadError(f"{name}, line {line}: a node cannot have less than nothing")
    return size


def _rows(path: Path, columns: tuple[str, ...]) -> list[tuple[int, dict[str, str]]]:
    with _lines(path) as lines:
        reader = csv.DictReader(lines)
        missing = [name for name in columns if name not in (reader.fieldnames or ())]
        if missing:
            raise WorkloadError(f"{path.name} has no column {missing[0]}")
        return [(number, row) for number, row in enumerate(reader, 2)]


def _lines(path: Path) -> TextIO:
    if path.suffix == ".gz":
        return cast(TextIO, gzip.open(path, "rt", encoding="utf-8"))
    return path.open(encoding="utf-8")
