"""Shared snapshots: the cluster of this moment, read once for everybody who asks while it is slow to read."""

from __future__ import annotations

import time
from typing import Final

from scheduler.state.load.snapshots import Loaded, load_snapshot

#: A snapshot that was slow to read serves everybody who asks for so long after.
SHARE_SECONDS: Final = 2.0
#: One that is quick to read is read anew.
QUICK_SECONDS: Final = 0.05

_shared: dict[int, tuple[float, Loaded]] = {}


def snapshot_of_now(cluster_id: int, project_id: int, *, named: bool = False) -> Loaded:
    """The snapshot and policy of a cluster, with the quota lines of one project.

    `named`: with the names and labels of the project's jobs, for a request that asks about them.
    """
    if named:
        return load_snapshot(cluster_id=cluster_id, project_ids=[project_id], named_projects=[project_id])
    shared = _shared.get(cluster_id)
    if shared is not None:
        at, loaded = shared
        if time.monotonic() - at < SHARE_SECONDS and project_id in loaded.snapshot.projects.id:
            return loaded
    began = time.monotonic()
    loaded = load_snapshot(cluster_id=cluster_id, project_ids=[project_id])
    if time.monotonic() - began > QUICK_SECONDS:
        _shared[cluster_id] = (began, loaded)
    return loaded


def forget_snapshots() -> None:
    """Read every cluster anew: for tests, whose rows change faster than people ask."""
    _shared.clear()
