"""The same protocol one node at a time: keep a gibibyte of every node free for the people logged in there."""

from __future__ import annotations

from typing import Any

from scheduler.core.placement.plugins import PerNodePlugin

KEEP_FREE_MIB = 1024


def leaves_room(request: Any, node: Any) -> bool:
    return bool(node.free_memory_mib - request.request.per_task.memory_mib >= KEEP_FREE_MIB)


def rates(request: Any, node: Any) -> float:
    """Nodes whose name sorts first among equals are taken anyway; this one likes short names."""
    return max(0.0, 100.0 - 10.0 * len(node.name))


PLUGIN = PerNodePlugin("one-by-one", keeps=leaves_room, rates=rates)
