"""Rows of a cluster's machines to the snapshot of an idle cluster: what the machines have, without their use."""

from __future__ import annotations

from typing import Final

from scheduler.core.snapshot.snapshot import Snapshot
from scheduler.core.whatif.idle_cluster import idle
from scheduler.state.db.sql import select_together
from scheduler.state.load import load_sql
from scheduler.state.load.node_rows import device_columns, node_columns, pool_columns

#: Without devices that their agent no longer reports: no job will be given one.
_PRESENT_DEVICES: Final = f"{load_sql.DEVICES_OF_CLUSTER} AND NOT device.gone"


def load_idle_cluster(cluster_id: int) -> Snapshot:
    """Every machine of a cluster, whatever its state, without running or pending jobs; one round trip.

    Snapshots of machines that have not changed are equal, whatever runs on them.
    """
    nodes, devices = select_together(
        (load_sql.NODES.format(which="node.cluster_id = %s", lock=""), [cluster_id]),
        (load_sql.DEVICES.format(which=_PRESENT_DEVICES, lock=""), [cluster_id]),
    )
    known = {row[0] for row in nodes}
    return idle(
        Snapshot.build(
            now_ms=0,
            nodes=node_columns(nodes),
            # A node that joins between the two statements is read the next time, and its devices with it.
            devices=device_columns([row for row in devices if row[1] in known]),
            pools=pool_columns(nodes, []),
        )
    )
