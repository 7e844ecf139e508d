"""Filters: whether a task may run on each node; the one place that says no, with the filter that does."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from quotas.core.resources import GPU_MILLIS
from scheduler.core.cluster.index import ClusterIndex
from scheduler.core.cluster.workspace import Workspace
from scheduler.core.columns import Bools, Ints
from scheduler.core.placement.node_view import NodeView
from scheduler.core.policy import FILTERS
from scheduler.core.snapshot.request_classes import RequestClass


@dataclass(frozen=True, slots=True)
class FilterQuery:
    """A request class where it is asked from: its queue's partitions, and the reservations that bar it.

    Jobs with an equal query get an equal answer from every node.
    """

    request: RequestClass
    queue_partition_ids: tuple[int, ...] = ()  # () = every node
    reservation_rows: tuple[int, ...] = ()
    who: int = 0  # what it has to do with other jobs: a profile of `ClusterIndex.company`; 0 = nothing
    wall: int = (
        0  # the largest bound of a node's partitions, in seconds, that it asks for more than; 0 = none
    )
    isolation: int = 0  # bits that a node needs, of `node_isolation.BITS`; 0 = any node
    inside: int = -1  # the row of the reservation that it names; -1 = none
    whole_nodes: bool = False  # a part of a node that is reserved closes the whole node to it
    rules: int = 0  # by whose rules nodes are chosen: 0 = the cluster's (`Answers.rules_of`)


class NodeFilter(Protocol):
    """A gate. `dynamic` gates are asked again for nodes that changed during a cycle; others once."""

    @property
    def name(self) -> str: ...

    @property
    def dynamic(self) -> bool: ...

    def filter(self, request: FilterQuery, nodes: NodeView) -> Bools:
        """True for each of these nodes that this gate lets through."""
        ...


Headroom = tuple[Ints, int]  # a column of what there is on each node, and what one task needs of it


@dataclass(frozen=True, slots=True)
class StaticFilter:
    """A gate on facts that do not change during a cycle; `permanent` ones no job's end will open."""

    name: str
    keep: Callable[[FilterQuery, ClusterIndex], Bools | None]  # None = lets every node through
    permanent: bool = False
    dynamic: bool = False

    def filter(self, request: FilterQuery, nodes: NodeView) -> Bools:
        mask = self.keep(request, nodes.workspace.cluster)
        return np.ones(len(nodes), dtype=np.bool_) if mask is None else nodes.bools(mask)


@dataclass(frozen=True, slots=True)
class ResourceFilter:
    """A gate on amounts: what is free now must hold what one task needs.

    `capacity` gives the same for an empty node, to tell "not now" from "never".
    """

    name: str
    free: Callable[[FilterQuery, Workspace], Headroom | None]  # None = the query needs none of it
    capacity: Callable[[FilterQuery, ClusterIndex], Headroom | None]
    permanent: bool = False
    dynamic: bool = True

    def filter(self, request: FilterQuery, nodes: NodeView) -> Bools:
        headroom = self.free(request, nodes.workspace)
        if headroom is None:
            return np.ones(len(nodes), dtype=np.bool_)
        column, need = headroom
        return nodes.ints(column) >= need


@dataclass(frozen=True, slots=True)
class AffinityFilter:
    """A filter on where other jobs are: it moves as jobs start, also on nodes that no task was put on."""

    name: str = "jobs"
    permanent: bool = False
    dynamic: bool = True

    def open(self, request: FilterQuery, workspace: Workspace) -> Headroom | None:
        """A live column that is 1 where the job may go; None when no term of any job concerns it."""
        affinity_state = workspace.affinity_state
        if affinity_state is None or not affinity_state.affinity.is_bound(request.who):
            return None
        return affinity_state.open(request.who), 1

    def filter(self, request: FilterQuery, nodes: NodeView) -> Bools:
        found = self.open(request, nodes.workspace)
        return np.ones(len(nodes), dtype=np.bool_) if found is None else nodes.ints(found[0]) >= 1


# Facts.


def _state(_: FilterQuery, cluster: ClusterIndex) -> Bools | None:
    return None if cluster.nodes.all_up else cluster.nodes.is_up


def _fault(_: FilterQuery, cluster: ClusterIndex) -> Bools | None:
    return cluster.nodes.not_faulty


def _cordoned(_: FilterQuery, cluster: ClusterIndex) -> Bools | None:
    return cluster.nodes.not_cordoned


def _draining(_: FilterQuery, cluster: ClusterIndex) -> Bools | None:
    return cluster.nodes.not_draining


def _partition(query: FilterQuery, cluster: ClusterIndex) -> Bools | None:
    wanted, allowed = query.request.partition_ids, query.queue_partition_ids
    if not wanted and not allowed:
        return None
    mask = np.ones(cluster.node_count, dtype=np.bool_)
    for partition_ids in (wanted, allowed):
        if partition_ids:
            mask &= cluster.nodes.in_partitions(partition_ids)
    return mask


def _wall(query: FilterQuery, cluster: ClusterIndex) -> Bools | None:
    if not query.wall:
        return None
    bound = cluster.snapshot.nodes.max_wall_seconds
    mask: Bools = (bound == 0) | (bound > query.wall)
    return mask


def _labels(query: FilterQuery, cluster: ClusterIndex) -> Bools | None:
    if not query.request.node_selector:
        return None
    masks = [cluster.nodes.labelled(key, value) for key, value in query.request.node_selector]
    return masks[0] if len(masks) == 1 else np.logical_and.reduce(masks)


def _isolation(query: FilterQuery, cluster: ClusterIndex) -> Bools | None:
    if not query.isolation:
        return None
    mask: Bools = (cluster.snapshot.nodes.isolation & query.isolation) == query.isolation
    return mask


def _agent(query: FilterQuery, cluster: ClusterIndex) -> Bools | None:
    needs = query.request.features
    if not needs:
        return None
    mask: Bools = (cluster.snapshot.nodes.features & needs) == needs
    return mask


def _taints(query: FilterQuery, cluster: ClusterIndex) -> Bools | None:
    repelled = cluster.nodes.repelled(query.request.tolerations, hard=True)
    return None if repelled is None else ~repelled


def _affinity(query: FilterQuery, cluster: ClusterIndex) -> Bools | None:
    if not query.request.required_affinity:
        return None
    mask = np.zeros(cluster.node_count, dtype=np.bool_)
    for term in query.request.required_affinity:
        met = np.ones(cluster.node_count, dtype=np.bool_)
        for requirement in term:
            met &= cluster.nodes.meets(requirement)
        mask |= met
    return mask


def not_reserved(query: FilterQuery, cluster: ClusterIndex) -> Bools | None:
    """Nodes that no reservation keeps from the query; inside a reservation, those that it holds something of."""
    closed: Bools | None = None
    if query.reservation_rows:
        closed = cluster.nodes.reserved(query.reservation_rows)
        if query.whole_nodes:
            closed |= cluster.nodes.reserved_in_part(query.reservation_rows)
    if query.inside >= 0:
        inside = cluster.nodes.reserved((query.inside,))
        if not query.whole_nodes:
            inside |= cluster.nodes.reserved_in_part((query.inside,))
        closed = ~inside if closed is None else closed | ~inside
    return None if closed is None else ~closed


def _gpu_model(query: FilterQuery, cluster: ClusterIndex) -> Bools | None:
    request = query.request
    if not request.per_task.gpus or not (request.gpu_model or request.gpu_memory_mib):
        return None
    return cluster.answers.reaches(cluster.devices.counts(request.gpu_model, request.gpu_memory_mib), 1)


def _gpu_health(query: FilterQuery, cluster: ClusterIndex) -> Bools | None:
    """Turns away only nodes that have the devices but not in working order."""
    request = query.request
    if not request.per_task.gpus or cluster.devices.all_healthy:
        return None
    fitting = cluster.devices.matching(request.gpu_model, request.gpu_memory_mib)
    have, work = (
        cluster.devices.per_node(fitting),
        cluster.devices.per_node(fitting & cluster.devices.healthy),
    )
    return (work >= request.per_task.gpus) | (have < request.per_task.gpus)


def _size(query: FilterQuery, cluster: ClusterIndex) -> Bools | None:
    """However much is promised of a machine, no single task gets more than it has."""
    if cluster.nodes.sizes is None:
        return None
    cpu, memory = cluster.nodes.sizes
    per_task = query.request.per_task
    mask: Bools = (cpu >= per_task.cpu_millis) & (memory >= per_task.memory_mib)
    return mask


# Amounts.


def _free_gpus(query: FilterQuery, workspace: Workspace) -> Headroom | None:
    request = query.request
    if not request.per_task.gpus:
        return None
    features = workspace.columns.gpu_features(request)
    if request.shares_gpu:
        return features.room, request.per_task.gpu_millis
    return features.whole, request.per_task.gpus


def _all_gpus(query: FilterQuery, cluster: ClusterIndex) -> Headroom | None:
    request = query.request
    if not request.per_task.gpus:
        return None
    return cluster.devices.counts(request.gpu_model, request.gpu_memory_mib), request.per_task.gpus


def _free_cpu(query: FilterQuery, workspace: Workspace) -> Headroom | None:
    need = query.request.per_task.cpu_millis
    return (workspace.free_cpu_millis, need) if need else None


def _all_cpu(query: FilterQuery, cluster: ClusterIndex) -> Headroom | None:
    need = query.request.per_task.cpu_millis
    return (cluster.snapshot.nodes.cpu_millis, need) if need else None


def _free_memory(query: FilterQuery, workspace: Workspace) -> Headroom | None:
    need = query.request.per_task.memory_mib
    return (workspace.free_memory_mib, need) if need else None


def _all_memory(query: FilterQuery, cluster: ClusterIndex) -> Headroom | None:
    need = query.request.per_task.memory_mib
    return (cluster.snapshot.nodes.memory_mib, need) if need else None


def _free_storage(query: FilterQuery, workspace: Workspace) -> Headroom | None:
    need = query.request.per_task.storage_mib
    return (workspace.free_storage_mib, need) if need else None


def _all_storage(query: FilterQuery, cluster: ClusterIndex) -> Headroom | None:
    need = query.request.per_task.storage_mib
    return (cluster.snapshot.nodes.storage_mib, need) if need else None


def _free_domains(query: FilterQuery, workspace: Workspace) -> Headroom | None:
    if not query.request.one_domain or workspace.numa is None:
        return None
    return workspace.numa.slots(query.request), 1


def _all_domains(query: FilterQuery, cluster: ClusterIndex) -> Headroom | None:
    return (cluster.numa.most(query.request), 1) if query.request.one_domain else None


BUILT_IN: Final[Mapping[str, StaticFilter | ResourceFilter | AffinityFilter]] = {
    gate.name: gate
    for gate in (
        StaticFilter("state", _state),
        StaticFilter("fault", _fault),
        StaticFilter("cordoned", _cordoned),
        StaticFilter("draining", _draining),
        StaticFilter("partition", _partition, permanent=True),
        StaticFilter("wall", _wall, permanent=True),
        StaticFilter("labels", _labels, permanent=True),
        StaticFilter("isolation", _isolation, permanent=True),
        StaticFilter("agent", _agent, permanent=True),
        StaticFilter("taints", _taints, permanent=True),
        StaticFilter("affinity", _affinity, permanent=True),
        StaticFilter("reserved", not_reserved),
        AffinityFilter(),
        StaticFilter("gpu_model", _gpu_model, permanent=True),
        StaticFilter("gpu_health", _gpu_health),
        StaticFilter("size", _size, permanent=True),
        ResourceFilter("gpus", _free_gpus, _all_gpus),
        ResourceFilter("cpu_millis", _free_cpu, _all_cpu),
        ResourceFilter("memory_mib", _free_memory, _all_memory),
        ResourceFilter("storage_mib", _free_storage, _all_storage),
        ResourceFilter("numa", _free_domains, _all_domains),
    )
}
assert tuple(BUILT_IN) == FILTERS


def task_slots(query: FilterQuery, workspace: Workspace, keep: Bools, gates: tuple[NodeFilter, ...]) -> Ints:
    """How many tasks each kept node could take at once, now; a gang asks this, a single task need not."""
    slots = np.where(keep, np.iinfo(np.int64).max, 0)
    for gate in gates:
        if isinstance(gate, ResourceFilter):
            count = slots_by_amount(query, workspace, gate)
            if count is not None:
                np.minimum(slots, count, out=slots)
    return np.maximum(slots, 0)


def slots_by_amount(query: FilterQuery, workspace: Workspace, gate: ResourceFilter) -> Ints | None:
    """How many tasks each node could take now by this amount alone; None where a task needs none of it."""
    headroom = gate.free(query, workspace)
    if headroom is None:
        return None
    return _shares_free(query, workspace) if _is_share(gate, query) else headroom[0] // headroom[1]


def slots_by_capacity(query: FilterQuery, cluster: ClusterIndex, gate: ResourceFilter) -> Ints | None:
    """The same of nodes that are empty."""
    headroom = gate.capacity(query, cluster)
    if headroom is None:
        return None
    if _is_share(gate, query):
        return headroom[0] * (GPU_MILLIS // query.request.per_task.gpu_millis)
    return headroom[0] // headroom[1]


def capacity_slots(
    query: FilterQuery,
    cluster: ClusterIndex,
    gates: tuple[NodeFilter, ...],
    *,
    without: Collection[str] = (),
) -> tuple[Ints, Bools]:
    """How many tasks each node could take were it empty and open, and which nodes no filter bars always.

    Static filters named in `without` bar none.
    """
    allowed = np.ones(cluster.node_count, dtype=np.bool_)
    for gate in gates:
        if isinstance(gate, StaticFilter) and gate.permanent and gate.name not in without:
            mask = gate.keep(query, cluster)
            allowed = allowed if mask is None else allowed & mask
    slots = np.where(allowed, np.iinfo(np.int64).max, 0)
    for gate in gates:
        if isinstance(gate, ResourceFilter):
            count = slots_by_capacity(query, cluster, gate)
            if count is not None:
                np.minimum(slots, count, out=slots)
    return slots, allowed


def fits_empty(
    query: FilterQuery, cluster: ClusterIndex, rooms: tuple[ResourceFilter, ...], facts: tuple[Bools, ...]
) -> Bools:
    """Where `capacity_slots` has a slot; `facts` are the masks of all permanent gates."""
    fits, _ = cluster.answers.where(facts)
    for gate in rooms:
        headroom = gate.capacity(query, cluster)
        if headroom is not None:
            reached = cluster.answers.reaches(*headroom)
            fits = reached if fits is None else fits & reached
    return np.ones(cluster.node_count, dtype=np.bool_) if fits is None else fits


def _is_share(gate: ResourceFilter, query: FilterQuery) -> bool:
    return gate.name == "gpus" and query.request.shares_gpu


def _shares_free(query: FilterQuery, workspace: Workspace) -> Ints:
    """How many shares of this size the devices of each node still hold together."""
    cluster, request = workspace.cluster, query.request
    usable = cluster.devices.matching(request.gpu_model, request.gpu_memory_mib) & cluster.devices.healthy
    shares = (GPU_MILLIS - workspace.devices.used[usable]) // request.per_task.gpu_millis
    total = np.zeros(cluster.node_count, dtype=np.int64)
    np.add.at(total, cluster.devices.node[usable], shares)
    return total
