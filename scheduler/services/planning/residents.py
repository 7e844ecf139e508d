"""What this process keeps in memory of each cluster that it plans."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from django.conf import settings
from django.core.cache import cache

from scheduler.models import Cluster
from scheduler.state.load.resident.cluster import ResidentCluster

_residents: dict[int, ResidentCluster] = {}


def resident_of(cluster_id: int) -> ResidentCluster:
    """The memory of a cluster, which `ResidentCluster.load` fills; the same for as long as the process lives."""
    found = _residents.get(cluster_id)
    if found is None:
        found = _residents[cluster_id] = ResidentCluster(cluster_id, settings.PLANNER_CHECK_SECONDS)
    return found


@dataclass(frozen=True, slots=True)
class MemoryOfPlanner:
    """What the planner of a cluster last said about its memory; counted from when it began."""

    cluster_id: int
    pending_jobs: int
    memory_bytes: int
    full_loads: int
    checks: int
    differences: int


_FIELDS: Final = ("pending_jobs", "memory_bytes", "full_loads", "checks", "differences")
_SAID_SECONDS: Final = 24 * 3600
_said: dict[int, tuple[int, ...]] = {}


def say_memory(cluster_id: int) -> None:
    """Leave in the cache what pages of health and metrics show of this process's memory; at once what is an alarm."""
    one = resident_of(cluster_id)
    counts = (one.full_loads, one.checks, one.differences)
    if _said.get(cluster_id) == counts:
        return
    _said[cluster_id] = counts
    cache.set(_key(cluster_id), (one.pending, one.nbytes, *counts), _SAID_SECONDS)


def memories() -> Iterator[MemoryOfPlanner]:
    """What planners have said; nothing of those whose word is old, or while the cache is away."""
    for cluster_id in Cluster.objects.order_by("id").values_list("id", flat=True):
        said = cache.get(_key(cluster_id))
        if said is not None:
            yield MemoryOfPlanner(cluster_id, **dict(zip(_FIELDS, said, strict=True)))


def _key(cluster_id: int) -> str:
    return f"muster:planner-memory:{cluster_id}"


def forget_residents() -> None:
    """Keep nothing in memory: for tests, whose rows are gone a moment later."""
    _residents.clear()
    _said.clear()
