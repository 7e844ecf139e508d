"""Machines and what is held of them: their queries, and the columns of a snapshot from what these find."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from functools import lru_cache
from typing import Final, NamedTuple

from scheduler.agent import PROTOCOL
from scheduler.core.cluster.numa import UNKNOWN, Amounts, Bound, bind, bound_column
from scheduler.core.snapshot.agent_features import ALL, known_by
from scheduler.core.snapshot.constraints import NO_EXECUTE, Labels, Taint
from scheduler.core.snapshot.node_isolation import BITS
from scheduler.core.snapshot.snapshot import (
    AllocationColumns,
    DeviceColumns,
    NodeColumns,
    Part,
    PoolColumns,
    ReservationColumns,
)
from scheduler.state.db.fragments import ANY_OF, OF_CLUSTER, ms
from scheduler.state.db.query import ColumnQuery, RowQuery, Table

# ------------------------------------------------------------------ nodes

_NODES_AS_STORED: Final = {
    "id": "node.id",
    "name": "node.name",
    "state": "node.state",
    "cordoned": "node.cordoned",
    "draining": "node.draining",
    "cpu_millis": "node.cpu_millis_capacity",
    "memory_mib": "node.memory_mib_capacity",
    "storage_mib": "node.storage_mib",
    "used_cpu_millis": "node.used_cpu_millis",
    "used_memory_mib": "node.used_memory_mib",
    "used_storage_mib": "node.used_storage_mib",
    "generation": "node.generation",
    "size_cpu_millis": "node.cpu_millis",
    "size_memory_mib": "node.memory_mib",
    "max_wall_seconds": """coalesce((
        SELECT CASE WHEN bool_and(partition.max_wall_seconds IS NOT NULL) THEN max(partition.max_wall_seconds) END
        FROM scheduler_node_partitions part JOIN scheduler_partition partition ON partition.id = part.partition_id
        WHERE part.node_id = node.id), 0)""",
    # An agent that has not said its protocol has not spoken yet.
    "features": f"CASE coalesce(node.agent_protocol, {PROTOCOL}) "
    + " ".join(f"WHEN {one} THEN {known_by(one)}" for one in range(PROTOCOL))
    + f" ELSE {ALL} END",
    "faulty": "coalesce(node.isolation->>'fault', '') <> ''",
    "isolation": " + ".join(
        f"CASE WHEN node.isolation->'{name}' = 'true' THEN {bit} ELSE 0 END" for name, bit in BITS.items()
    ),
    "reliability": "coalesce(score.reliability, -1)",
    "performance": "coalesce(score.performance, -1)",
}
NODES: Final = ColumnQuery(
    {
        **_NODES_AS_STORED,
        "labels": "node.labels::text",
        "taints": "node.taints::text",
        "partition_ids": """ARRAY(SELECT partition_id FROM scheduler_node_partitions
        WHERE node_id = node.id ORDER BY 1)""",
        "rack": "node.rack",
        "zone": "node.zone",
        "region": "node.region",
        "domains": "node.domains::text",
        "numa_domains": "node.numa_domains",
        "extras": "node.extras::text",
    },
    """SELECT {columns}
FROM scheduler_node node LEFT JOIN scheduler_nodescore score ON score.node_id = node.id
WHERE {which} ORDER BY node.id {lock}""",
)
NODES_OF_CLUSTER: Final = "node.cluster_id = %s"
THESE_NODES: Final = f"node.id = {ANY_OF}"


class BoundRow(NamedTuple):
    """What tasks are bound to in one NUMA domain of a node."""

    node_id: int
    number: int
    cpu_millis: int
    memory_mib: int


#: What is bound in the NUMA domains of these nodes.
BOUND: Final = RowQuery(
    BoundRow,
    {
        "node_id": "allocation.node_id",
        "number": "allocation.numa_domain",
        "cpu_millis": "sum(allocation.cpu_millis)::bigint",
        "memory_mib": "sum(allocation.memory_mib)::bigint",
    },
    f"""SELECT {{columns}}
FROM scheduler_allocation allocation
    JOIN scheduler_attempt attempt ON attempt.id = allocation.attempt_id
    JOIN scheduler_jobrequest request ON request.number = attempt.job_id
WHERE allocation.released_at IS NULL AND attempt.is_live AND request.numa = 'one'
    AND allocation.numa_domain IS NOT NULL AND allocation.node_id = {ANY_OF}
GROUP BY allocation.node_id, allocation.numa_domain""",
)


def node_columns(nodes: Table, bound: Iterable[BoundRow] = ()) -> NodeColumns:
    """Columns of nodes from what `NODES` found; `bound` is what tasks are bound to in their NUMA domains."""
    columns = NodeColumns.from_columns(
        **{name: nodes[name] for name in _NODES_AS_STORED},
        **_topology(nodes),
        labels=tuple(map(labels_of, nodes["labels"])),
        taints=tuple(map(_taints, nodes["taints"])),
        partition_ids=tuple(map(tuple, nodes["partition_ids"])),
        domains=tuple(map(_domains, nodes["domains"], nodes["numa_domains"])),
    )
    held: Bound = {}
    place = {node_id: number for number, node_id in enumerate(nodes["id"])}
    for row in bound:
        if row.node_id in place:
            bind(held, place[row.node_id], row.number, row.cpu_millis, row.memory_mib)
    return replace(columns, bound=bound_column(held, len(place))) if held else columns


def _topology(nodes: Table) -> dict[str, tuple[str, ...]]:
    """Rack, zone and region of each node: its own fields, else the labels that say so."""
    found: dict[str, list[str]] = {"rack": [], "zone": [], "region": []}
    for labels, rack, zone, region in zip(
        nodes["labels"], nodes["rack"], nodes["zone"], nodes["region"], strict=True
    ):
        said = {} if rack and zone and region else dict(labels_of(labels))
        found["rack"].append(rack or said.get("rack", ""))
        found["zone"].append(zone or said.get("topology.kubernetes.io/zone", "") or said.get("zone", ""))
        found["region"].append(
            region or said.get("topology.kubernetes.io/region", "") or said.get("region", "")
        )
    return {name: tuple(column) for name, column in found.items()}


# ------------------------------------------------------------------ devices

#: A device that its agent no longer reports is there as long as a job still holds it, as a sick one.
DEVICES: Final = ColumnQuery(
    {
        "id": "device.id",
        "node_id": "device.node_id",
        "position": "device.index",
        "numa": "device.numa_domain",
        "model": "device.model",
        "memory_mib": "device.memory_mib",
        "healthy": "device.healthy AND NOT device.gone",
        "used_millis": "device.used_millis",
    },
    """SELECT {columns}
FROM scheduler_device device
WHERE {which} AND device.kind = 'gpu' AND (NOT device.gone OR device.used_millis > 0)
ORDER BY device.id {lock}""",
)
DEVICES_OF_CLUSTER: Final = "device.node_id IN (SELECT id FROM scheduler_node WHERE cluster_id = %s)"
THESE_DEVICES: Final = f"device.id = {ANY_OF}"


def device_columns(devices: Table) -> DeviceColumns:
    return DeviceColumns.from_columns(**{name: devices[name] for name in DEVICES.columns})


# ------------------------------------------------------------------ allocations

_ALLOCATIONS_AS_STORED: Final = {
    "id": "allocation.id",
    "job_id": "attempt.job_id",
    "rank": "allocation.rank",
    "node_id": "allocation.node_id",
    "cpu_millis": "allocation.cpu_millis",
    "memory_mib": "allocation.memory_mib",
    "storage_mib": "allocation.storage_mib",
    "leaving": """CASE WHEN request.elastic AND attempt.stop_asked_at IS NULL THEN EXISTS (
        SELECT 1 FROM scheduler_task task WHERE task.attempt_id = attempt.id AND task.rank = allocation.rank
            AND task.state NOT IN ('assigned', 'starting', 'running')) ELSE false END""",
    "numa": "CASE WHEN request.numa = 'one' THEN coalesce(allocation.numa_domain, -1) ELSE -1 END",
}
ALLOCATIONS: Final = ColumnQuery(
    {
        **_ALLOCATIONS_AS_STORED,
        "device_ids": "allocation.device_ids",
        "gpu_millis_of_all": "allocation.gpu_millis",
        "extras": "allocation.extras::text",
    },
    f"""SELECT {{columns}}
FROM scheduler_allocation allocation
    JOIN scheduler_attempt attempt ON attempt.id = allocation.attempt_id
    JOIN scheduler_job job ON job.number = attempt.job_id
    JOIN scheduler_jobrequest request ON request.number = attempt.job_id
    JOIN scheduler_node node ON node.id = allocation.node_id
WHERE allocation.released_at IS NULL AND attempt.is_live AND {OF_CLUSTER} AND node.cluster_id = %s
ORDER BY allocation.id""",
)


def allocation_columns(held: Table) -> AllocationColumns:
    """A row counts the thousandths of all its devices together, the column those of each."""
    return AllocationColumns.from_columns(
        **{name: held[name] for name in _ALLOCATIONS_AS_STORED},
        device_ids=tuple(map(tuple, held["device_ids"])),
        gpu_millis=[
            millis // len(devices) if devices else 0
            for millis, devices in zip(held["gpu_millis_of_all"], held["device_ids"], strict=True)
        ],
    )


def bound_by(held: Table) -> list[BoundRow]:
    """What allocations are bound to, as `node_columns` takes it."""
    rows = zip(*(held[name] for name in ("node_id", "numa", "cpu_millis", "memory_mib")), strict=True)
    return [row for row in map(BoundRow._make, rows) if row.number >= 0]


def pool_columns(nodes: Table, held: Table) -> PoolColumns:
    """Countable things that nodes bring along: what one node offers, a job anywhere may use."""
    capacity, used = _sums(nodes["extras"]), _sums(held["extras"])
    names = sorted(capacity.keys() | used.keys())
    return PoolColumns.from_columns(
        id=range(1, len(names) + 1),
        name=names,
        capacity=[capacity.get(name, 0) for name in names],
        used=[used.get(name, 0) for name in names],
    )


def _sums(extras: Iterable[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for text in extras:
        for name, amount in _amounts(text):
            found[name] = found.get(name, 0) + amount
    return found


# ------------------------------------------------------------------ reservations


class ReservationRow(NamedTuple):
    """Nodes that are set aside: by a person for a project or a job, or for a gang that gathers them."""

    id: int
    name: str
    starts_ms: int
    ends_ms: int
    node_ids: list[int]
    project_id: int | None
    job_id: int | None
    user_ids: list[int]
    parts: str  # as JSON: (node, CPU, memory, devices) of each node of which only a part is held
    magnetic: bool


#: A reservation for one job ends by itself once that job has its nodes.
RESERVATIONS: Final = RowQuery(
    ReservationRow,
    {
        "id": "reservation.id",
        "name": "reservation.name",
        "starts_ms": ms("reservation.starts_at"),
        "ends_ms": ms("reservation.ends_at"),
        "node_ids": """ARRAY(SELECT node_id FROM scheduler_reservation_nodes
        WHERE reservation_id = reservation.id ORDER BY 1)""",
        "project_id": "reservation.project_id",
        "job_id": "reservation.job_id",
        "user_ids": """ARRAY(SELECT user_id FROM scheduler_reservation_users
        WHERE reservation_id = reservation.id ORDER BY 1)""",
        "parts": """coalesce((SELECT jsonb_agg(jsonb_build_array(part.node_id, part.cpu_millis, part.memory_mib,
            part.device_ids) ORDER BY part.node_id)
        FROM scheduler_reservationpart part WHERE part.reservation_id = reservation.id), '[]')::text""",
        "magnetic": "reservation.magnetic",
    },
    """SELECT {columns}
FROM scheduler_reservation reservation LEFT JOIN scheduler_job job ON job.number = reservation.job_id
WHERE reservation.cluster_id = %s AND reservation.status = 'approved' AND reservation.cancelled_at IS NULL
    AND reservation.ends_at > statement_timestamp()
    AND (job.number IS NULL OR job.state IN ('created', 'held', 'blocked', 'queued', 'reserved', 'preempted'))
ORDER BY reservation.id""",
)

#: Nodes that gangs gather, until they have them or retention period over; jobs that end before may use them.
GANG_RESERVATIONS: Final = RowQuery(
    ReservationRow,
    {
        "id": "-job.number",
        "name": "'gathering for job ' || job.number",
        "starts_ms": ms(
            "least(greatest(job.expected_start_at, statement_timestamp()), job.assembly_until_at)"
        ),
        "ends_ms": ms("job.assembly_until_at"),
        "node_ids": """ARRAY(SELECT node::bigint
        FROM jsonb_array_elements_text(job.assembly_node_ids) node ORDER BY 1)""",
        "project_id": "NULL::bigint",
        "job_id": "job.number",
        "user_ids": "ARRAY[]::bigint[]",
        "parts": "'[]'",
        "magnetic": "true",
    },
    f"""SELECT {{columns}}
FROM scheduler_job job
WHERE {OF_CLUSTER} AND job.state = 'reserved' AND job.assembly_until_at > statement_timestamp()
ORDER BY job.number""",
)


def reservation_columns(rows: Iterable[ReservationRow]) -> ReservationColumns:
    """A reservation for a job serves that job alone, also where it names its project."""
    rows = list(rows)
    for_project = [None if row.job_id is not None else row.project_id for row in rows]
    return ReservationColumns.from_columns(
        id=[row.id for row in rows],
        name=[row.name for row in rows],
        starts_ms=[row.starts_ms for row in rows],
        ends_ms=[row.ends_ms for row in rows],
        node_ids=[tuple(row.node_ids) for row in rows],
        project_ids=[() if project_id is None else (project_id,) for project_id in for_project],
        job_ids=[() if row.job_id is None else (row.job_id,) for row in rows],
        user_ids=[tuple(row.user_ids) for row in rows],
        parts=[_parts_of(row.parts) for row in rows],
        magnetic=[row.magnetic for row in rows],
    )


@lru_cache(maxsize=1024)
def _parts_of(text: str) -> tuple[Part, ...]:
    return tuple((node, cpu, memory, tuple(devices)) for node, cpu, memory, devices in json.loads(text))


# ------------------------------------------------------------------ JSON, read once for each distinct text


@lru_cache(maxsize=4096)
def labels_of(text: str) -> Labels:
    return tuple(sorted((str(key), str(value)) for key, value in json.loads(text).items()))


@lru_cache(maxsize=1024)
def _domains(text: str, count: int) -> Amounts:
    """The NUMA domains as the machine reports them; unknown ones where it has several and reports none."""
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
