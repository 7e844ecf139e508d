"""NUMA fit: jobs whose tasks fit on nodes, but only across several NUMA domains."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from scheduler.core.cluster.numa import UNKNOWN
from scheduler.core.columns import Ints
from scheduler.core.placement.candidates import Candidates
from scheduler.core.placement.filters import capacity_slots, task_slots
from scheduler.core.placement.gang_layout import fit_on
from scheduler.core.placement.shape import Shape
from scheduler.core.snapshot.request_classes import RequestClass

#: The gate on NUMA domains.
GATE = "numa"


def spans_domains_now(candidates: Candidates, shape: Shape) -> dict[str, int | str] | None:
    """The numbers of the sentence where nothing but NUMA domains lacks; None where that would not be enough."""
    if candidates.numa is None:
        return None
    query, workspace, cluster = candidates.query, candidates.workspace, candidates.workspace.cluster
    others = tuple(gate for gate in candidates.rules.gates if gate.name != GATE)
    slots = task_slots(query, workspace, candidates.filters.passing(), others)
    if candidates.filters.asks_outside:
        for name, keep in candidates.filters.each_now():
            if name not in candidates.filters.facts and name not in candidates.filters.rooms:
                slots = np.where(keep, slots, 0)
    if not fit_on(slots, shape, cluster):
        return None
    whole = np.minimum(slots, workspace.numa.slots(query.request)) if workspace.numa is not None else slots
    across = np.flatnonzero((slots > whole) & (slots > 0))
    if not len(across):
        return None
    node = int(across[np.argmax(np.minimum(slots[across], shape.tasks))])
    return {
        "numa": "now",
        "resource": "tasks",
        "needs": shape.tasks,
        "free": int(np.minimum(whole, shape.tasks).sum()),
        "nodes": len(across),
        "node": cluster.snapshot.nodes.name[node],
        "domains": domains_of(candidates, node),
    }


def never_fits_one_domain(
    candidates: Candidates, shape: Shape, *, without: Collection[str] = ()
) -> dict[str, int | str] | None:
    """The same of a cluster that is idle and open: what it has in its largest NUMA domains.

    Static filters named in `without` close no node.
    """
    if candidates.numa is None:
        return None
    query, cluster = candidates.query, candidates.workspace.cluster
    others = tuple(gate for gate in candidates.rules.gates if gate.name != GATE)
    slots, allowed = capacity_slots(query, cluster, others, without=without)
    if not fit_on(slots, shape, cluster):
        return None
    domains = cluster.numa
    here = allowed[domains.node] & np.array([number != UNKNOWN for number in domains.number], dtype=np.bool_)
    return {
        "numa": "always",
        "needs": shape.tasks,
        "resource": "tasks",
        "total": int(np.minimum(np.minimum(slots, domains.most(query.request)), shape.tasks).sum()),
        "largest_cpu_millis": int(domains.size_cpu_millis[here].max(initial=0)),
        "largest_memory_mib": int(domains.size_memory_mib[here].max(initial=0)),
        "largest_gpus": int(_devices(candidates, query.request)[here].max(initial=0)),
        "gpus": query.request.per_task.gpus,
    }


def lacks_in_domains(candidates: Candidates, node: int) -> tuple[int, int, int, int] | None:
    """(domains, most CPU, most memory, most devices in one) free on a node; None where its domains are unknown."""
    numa = candidates.numa
    if numa is None or not domains_of(candidates, node):
        return None
    return domains_of(candidates, node), *numa.roomiest(candidates.query.request, node)


def domains_of(candidates: Candidates, node: int) -> int:
    """How many domains a node has; 0 where that is unknown."""
    domains = candidates.workspace.cluster.numa
    numbers = domains.number[domains.first[node] : domains.first[node + 1]]
    return 0 if numbers == [UNKNOWN] else len(numbers)


def _devices(candidates: Candidates, request: RequestClass) -> Ints:
    """How many devices of the request's kind each domain has."""
    cluster = candidates.workspace.cluster
    usable = cluster.devices.usable_bits(request.gpu_model, request.gpu_memory_mib)
    return np.array(
        [
            (bits & usable[node]).bit_count()
            for bits, node in zip(cluster.numa.bits, cluster.numa.node.tolist(), strict=True)
        ],
        dtype=np.int64,
    )
