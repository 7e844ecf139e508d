"""Overcommit: how much of a machine jobs may be given, by the ratio of its node, partition or cluster."""

from __future__ import annotations

from typing import Any

from django.db import models

from scheduler.models import Cluster, Node, Partition

#: The ratio settings, and the column of the machine that each multiplies.
RATIOS = {"cpu_overcommit_percent": "cpu_millis", "memory_overcommit_percent": "memory_mib"}


def ratio_of(node: Node, name: str) -> int:
    """Percent: the node's own ratio, else the lowest of its partitions, else that of the cluster."""
    own: int | None = getattr(node, name)
    if own is not None:
        return own
    said = [getattr(partition, name) for partition in node.partitions.all()]
    lowest: int = min((ratio for ratio in said if ratio is not None), default=getattr(node.cluster, name))
    return lowest


def may_give_away(node: Node, *, cpu_millis: int, memory_mib: int) -> dict[str, int]:
    """What jobs may be given of a machine with these amounts, by resource."""
    has = {"cpu_millis": cpu_millis, "memory_mib": memory_mib}
    return {column: has[column] * ratio_of(node, name) // 100 for name, column in RATIOS.items()}


def recount(thing: models.Model) -> None:
    """Write the capacity of every node that a changed setting concerns.

    A capacity is never less than what is in use: running jobs continue, and no more start on the node until
    enough of them have ended.
    """
    if isinstance(thing, Node):
        rows = Node.objects.filter(pk=thing.pk)
    elif isinstance(thing, Partition):
        rows = Node.objects.filter(cluster_id=thing.cluster_id)
    elif isinstance(thing, Cluster):
        rows = Node.objects.filter(cluster_id=thing.pk)
    else:
        return
    locked = rows.select_for_update(of=("self",), no_key=True).select_related("cluster")
    for node in locked.prefetch_related("partitions").order_by("pk"):
        given = may_give_away(node, cpu_millis=node.cpu_millis, memory_mib=node.memory_mib)
        fresh: dict[str, Any] = {
            "cpu_millis_capacity": max(given["cpu_millis"], node.used_cpu_millis),
            "memory_mib_capacity": max(given["memory_mib"], node.used_memory_mib),
        }
        if any(getattr(node, name) != value for name, value in fresh.items()):
            Node.objects.filter(pk=node.pk).update(**fresh, generation=node.generation + 1)
