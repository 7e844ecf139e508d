"""Rows of nodes, devices, allocations and bookings to the columns of a snapshot."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime
from functools import lru_cache
from typing import Final

from scheduler.core.cluster.numa import UNKNOWN, Amounts, Bound, bind, bound_column
from scheduler.core.snapshot.request_classes import NO_EXECUTE, Labels, Taint
from scheduler.core.snapshot.snapshot import (
    AllocationColumns,
    DeviceColumns,
    NodeColumns,
    PoolColumns,
    ReservationColumns,
)
from scheduler.state.db.sql import Rows

_NODE_COLUMNS: Final = (
    "id", "name", "state", "cordoned", "draining", "cpu_millis", "memory_mib", "storage_mib",
    "used_cpu_millis", "used_memory_mib", "used_storage_mib", "generation", "labels", "taints",
    "partition_ids", "rack", "zone", "region", "max_wall_seconds", "size_cpu_millis", "size_memory_mib",
    "domains",
)  # fmt: skip


def node_columns(rows: Rows, bound: Rows = ()) -> NodeColumns:
    """`bound` are (node, number of a NUMA domain, CPU, memory) that tasks are bound to there."""
    columns = NodeColumns.from_rows(
        (
            (
                *row[:12], labels_of(row[12]), _taints(row[13]), tuple(row[14]),
                *_places(*row[15:18], row[12]), row[18] or 0, row[19], row[20], _domains(row[21], row[22]),
            )
            for row in rows
        ),
        _NODE_COLUMNS,
    )  # fmt: skip
    if not bound:
        return columns
    place = {row[0]: number for number, row in enumerate(rows)}
    held: Bound = {}
    for node_id, number, cpu_millis, memory_mib in bound:
        if node_id in place:
            bind(held, place[node_id], number, cpu_millis, memory_mib)
    return replace(columns, bound=bound_column(held, len(rows)))


def bound_by(held: Rows) -> Rows:
    """What allocations are bound to, as `node_columns` takes it."""
    return [(row[3], row[10], row[4], row[5]) for row in held if row[10] >= 0]


def _places(rack: str, zone: str, region: str, labels: str) -> tuple[str, str, str]:
    """Where a node stands: its own fields, else the labels that say so."""
    if rack and zone and region:
        return rack, zone, region
    said = dict(labels_of(labels))
    return (
        rack or said.get("rack", ""),
        zone or said.get("topology.kubernetes.io/zone", "") or said.get("zone", ""),
        region or said.get("topology.kubernetes.io/region", "") or said.get("region", ""),
    )


def device_columns(rows: Rows) -> DeviceColumns:
    return DeviceColumns.from_rows(rows)


def allocation_columns(rows: Rows) -> AllocationColumns:
    """`gpu_millis` of a row counts all its devices together, the column counts each."""
    return AllocationColumns.from_rows(
        (*row[:7], tuple(row[7]), row[8] // len(row[7]) if row[7] else 0, row[9], row[10]) for row in rows
    )


def reservation_columns(rows: Rows) -> ReservationColumns:
    return ReservationColumns.from_rows(
        (
            (
                *row[:4], tuple(row[4]),
                () if row[5] is None or row[6] is not None else (row[5],),
                () if row[6] is None else (row[6],),
            )
            for row in rows
        ),
        ("id", "name", "starts_ms", "ends_ms", "node_ids", "project_ids", "job_ids"),
    )  # fmt: skip


def pool_columns(nodes: Rows, held: Rows) -> PoolColumns:
    """Countable things that nodes bring along: what one node offers, a job anywhere may use."""
    capacity: dict[str, int] = {}
    used: dict[str, int] = {}
    for row in nodes:
        for name, amount in _amounts(row[-1]):
            capacity[name] = capacity.get(name, 0) + amount
    for row in held:
        for name, amount in _amounts(row[-1]):
            used[name] = used.get(name, 0) + amount
    names = sorted(capacity.keys() | used.keys())
    return PoolColumns(
        id=range(1, len(names) + 1),
        name=names,
        capacity=[capacity.get(name, 0) for name in names],
        used=[used.get(name, 0) for name in names],
    )


# ------------------------------------------------------------------ JSON, read once for each distinct text


@lru_cache(maxsize=4096)
def labels_of(text: str) -> Labels:
    return tuple(sorted((str(key), str(value)) for key, value in json.loads(text).items()))


@lru_cache(maxsize=1024)
def _domains(text: str, count: int) -> Amounts:
    """What a machine says of its NUMA domains; of one that has several and says nothing nobody knows them."""
    said = tuple(sorted((int(number), int(cpu), int(memory)) for number, cpu, memory in json.loads(text)))
    return said or ((UNKNOWN, 0, 0),) * (count > 1)


@lru_cache(maxsize=1024)
def _taints(text: str) -> tuple[Taint, ...]:
    return tuple(
        sorted(
            Taint(
                t["key"],
                t.get("value") or "",
                t.get("effect") or "NoSchedule",
                since_ms=int(datetime.fromisoformat(t["added_at"]).timestamp() * 1000)
                if t.get("added_at") and t.get("effect") == NO_EXECUTE
                else 0,
            )
            for t in json.loads(text)
        )
    )


@lru_cache(maxsize=1024)
def _amounts(text: str) -> tuple[tuple[str, int], ...]:
    return tuple((name, int(amount)) for name, amount in json.loads(text).items())
