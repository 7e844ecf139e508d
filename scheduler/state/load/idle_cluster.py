"""Rows of a cluster's machines to the snapshot of an idle cluster: what the machines have, without their use."""

from __future__ import annotations

from typing import Final

from scheduler.core.snapshot.snapshot import Snapshot
from scheduler.core.whatif.idle_cluster import idle
from scheduler.state.db.query import Batch, only
from scheduler.state.load.node_rows import (
    ALLOCATIONS,
    DEVICES,
    DEVICES_OF_CLUSTER,
    NODES,
    NODES_OF_CLUSTER,
    device_columns,
    node_columns,
    pool_columns,
)

#: Without devices that their agent no longer reports: no job will be given one.
_PRESENT_DEVICES: Final = f"{DEVICES_OF_CLUSTER} AND NOT device.gone"


def load_idle_cluster(cluster_id: int) -> Snapshot:
    """Every machine of a cluster, whatever its state, without running or pending jobs; one round trip.

    Snapshots of machines that have not changed are equal, whatever runs on them.
    """
    batch = Batch()
    asked_nodes = batch.add(NODES, [cluster_id], which=NODES_OF_CLUSTER, lock="")
    asked_devices = batch.add(DEVICES, [cluster_id], which=_PRESENT_DEVICES, lock="")
    batch.send()
    nodes = asked_nodes.read()
    # A node that joins between the two statements is read the next time, and its devices with it.
    devices = only(asked_devices.read(), "node_id", set(nodes["id"]))
    return idle(
        Snapshot.build(
            now_ms=0,
            nodes=node_columns(nodes),
            devices=device_columns(devices),
            pools=pool_columns(nodes, ALLOCATIONS.read([])),
        )
    )
