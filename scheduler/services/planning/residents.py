"""What this process keeps in memory of each cluster that it plans."""

from __future__ import annotations

from django.conf import settings

from scheduler.state.load.resident.cluster import ResidentCluster

_residents: dict[int, ResidentCluster] = {}


def resident_of(cluster_id: int) -> ResidentCluster:
    """The memory of a cluster, which `ResidentCluster.load` fills; the same for as long as the process lives."""
    found = _residents.get(cluster_id)
    if found is None:
        found = _residents[cluster_id] = ResidentCluster(cluster_id, settings.PLANNER_CHECK_SECONDS)
    return found


def forget_residents() -> None:
    """Keep nothing in memory: for tests, whose rows are gone a moment later."""
    _residents.clear()
