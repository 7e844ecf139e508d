"""The openb traces of Alibaba (clusterdata 2023): tables of nodes and of pods, as a cluster with its jobs."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TextIO, cast

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
from scheduler.simulator.cluster_workload import DEFAULT_RUN_MS, ClusterWorkload
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


@dataclass(frozen=True, slots=True)
class _Pod:
    """One pod of a trace: its request, when it arrived, how long it ran, and its quality of service."""

    request: RequestClass
    created_seconds: int
    run_ms: int
    quality: str


@dataclass(frozen=True, slots=True)
class Machine:
    """One node of a trace."""

    name: str
    cpu_millis: int
    memory_mib: int
    gpus: int
    model: str


def read_openb(pods: Path, nodes: Path | None = None, *, jobs: int | None = None) -> ClusterWorkload:
    """A table of pods and one of nodes, plain or gzipped. Raises WorkloadError with the line at fault.

    A pod runs from the moment it was scheduled (else created) until it was deleted; its limit is its run time, for
    the trace knows no other, so backfill sees the future. A quality of service stands for a user with a project.
    `jobs` takes only that many, the first to arrive.
    """
    nodes = nodes or next(
        (pods.parent / name for name in _NODE_FILES if (pods.parent / name).is_file()), None
    )
    if nodes is None:
        raise WorkloadError(f"no table of nodes beside {pods.name}; name one with --nodes FILE")
    machine_rows = _rows(nodes, NODE_COLUMNS)
    found = [_pod_of(pods.name, line, row) for line, row in _rows(pods, POD_COLUMNS)]
    if not found:
        raise WorkloadError(f"{pods.name} holds no pods")
    machines = [_machine_of(nodes.name, line, row) for line, row in machine_rows]
    first = sorted(range(len(found)), key=lambda place: (found[place].created_seconds, place))[:jobs]
    return _workload_of(pods.name.split(".")[0], machines, found, sorted(first))


def _workload_of(
    name: str, machines: Sequence[Machine], pods: Sequence[_Pod], picked: Sequence[int]
) -> ClusterWorkload:
    """The cluster of these machines and the picked pods, whose ids are their places in the table, from 1."""
    table = ClassTable()
    classes = [table.intern(pod.request) for pod in pods]
    users = {quality: number for number, quality in enumerate(dict.fromkeys(pod.quality for pod in pods), 1)}
    chosen = [pods[place] for place in picked]
    user_ids = [users[pod.quality] for pod in chosen]
    nodes, devices = columns_of(machines)
    snapshot = Snapshot.build(
        now_ms=0,
        nodes=nodes,
        devices=devices,
        classes=table.classes,
        pending=PendingColumns(
            id=[place + 1 for place in picked],
            class_index=[classes[place] for place in picked],
            queue_id=[1] * len(chosen),
            project_id=user_ids,
            user_id=user_ids,
            submitted_ms=[pod.created_seconds * 1000 for pod in chosen],
            time_limit_seconds=[pod.run_ms // 1000 for pod in chosen],
        ),
        queues=QueueColumns(id=[1], name=["main"]),
        projects=ProjectColumns(id=list(users.values()), name=list(users)),
    )
    return ClusterWorkload(
        name,
        snapshot,
        np.array([pod.run_ms for pod in chosen]),
        np.array([pod.request.per_task.gpu_millis_charged for pod in chosen]),
        1000 * max(len(devices), 1),
        users={number: quality for quality, number in users.items()},
    )


def columns_of(machines: Sequence[Machine]) -> tuple[NodeColumns, DeviceColumns]:
    """The nodes and their GPUs, with ids from 1 in the order given."""
    owners = [place for place, machine in enumerate(machines) for _ in range(machine.gpus)]
    nodes = NodeColumns(
        id=range(1, len(machines) + 1),
        name=[machine.name for machine in machines],
        cpu_millis=[machine.cpu_millis for machine in machines],
        memory_mib=[machine.memory_mib for machine in machines],
    )
    devices = DeviceColumns(
        id=range(1, len(owners) + 1),
        node_id=[place + 1 for place in owners],
        position=[position for machine in machines for position in range(machine.gpus)],
        model=[machines[place].model for place in owners],
    )
    return nodes, devices


def _pod_of(name: str, line: int, row: dict[str, str]) -> _Pod:
    try:
        gpus, share_millis = int(row["num_gpu"]), int(row["gpu_milli"] or 0)
        per_task = Resources(
            cpu_millis=int(row["cpu_milli"]),
            memory_mib=int(row["memory_mib"]),
            gpus=gpus,
            gpu_millis=share_millis if gpus == 1 and share_millis < 1000 else 0,
        )
        request = request_class(per_task, gpu_model=row["gpu_spec"])
        created = int(float(row["creation_time"]))
        began = int(float(row.get("scheduled_time") or created))
        ended = float(row["deletion_time"] or 0)
        run_ms = max(int(ended) - max(began, created), 1) * 1000 if ended else DEFAULT_RUN_MS
    except (ValueError, TypeError, OverflowError) as error:
        raise WorkloadError(f"{name}, line {line}: {error}") from error
    return _Pod(request, created, run_ms, row.get("qos") or "none")


def _machine_of(name: str, line: int, row: dict[str, str]) -> Machine:
    try:
        cpu, memory, gpus = int(row["cpu_milli"]), int(row["memory_mib"]), int(row["gpu"] or 0)
    except (ValueError, TypeError) as error:
        raise WorkloadError(f"{name}, line {line}: {error}") from error
    if min(cpu, memory, gpus) < 0:
        raise WorkloadError(f"{name}, line {line}: a node cannot have less than nothing")
    return Machine(row["sn"], cpu, memory, gpus, row["model"])


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
