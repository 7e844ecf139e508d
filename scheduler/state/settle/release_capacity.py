"""What may be given away of a node that has more in use than it allows by now: it shrinks as that is given back."""

from __future__ import annotations

from typing import Final

#: Percent by which a machine is given away: the node's own, else the lowest of its partitions, else its cluster's
#: (`services.overcommit.ratio_of` says the same of an object).
_PERCENT: Final = """coalesce(n.{resource}_overcommit_percent, (
        SELECT min(own.{resource}_overcommit_percent) FROM scheduler_node_partitions part
            JOIN scheduler_partition own ON own.id = part.partition_id WHERE part.node_id = n.id
    ), (SELECT whole.{resource}_overcommit_percent FROM scheduler_cluster whole WHERE whole.id = n.cluster_id))"""
_COLUMNS: Final = {"cpu": "cpu_millis", "memory": "memory_mib"}


def giving_back(resource: str, less: str) -> str:
    """Assignments for a row `n` of a node that gives back `less` of "cpu" or "memory".

    A cut of what may be given away, below what is in use, leaves the capacity at that (nothing is stopped). So a
    node with all of its capacity in use may have more of it than it is to have, and only then it is looked up.
    """
    column = _COLUMNS[resource]
    used, capacity = f"n.used_{column}", f"n.{column}_capacity"
    percent = _PERCENT.format(resource=resource)
    return (
        f"used_{column} = {used} - {less}, {column}_capacity = CASE WHEN {less} > 0 AND {used} = {capacity}"
        f" THEN greatest({used} - {less}, least({capacity}, n.{column} * {percent} / 100)) ELSE {capacity} END"
    )
