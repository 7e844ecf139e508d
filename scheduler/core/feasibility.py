"""Feasibility: may a task of this question run on these nodes? The one place that says no, gate by gate."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from quotas.core.resources import GPU_MILLIS
from scheduler.core.classes import RequestClass
from scheduler.core.columns import Bools, Ints
from scheduler.core.node_view import NodeView
from scheduler.core.policy import FILTERS
from scheduler.core.workspace import Workspace
from scheduler.core.world import World


@dataclass(frozen=True, slots=True)
class Question:
    """A request class where it is asked from: its queue's partitions, and the reservations that bar it.

    Jobs with an equal question get an equal answer from every node.
    """

    request: RequestClass
    queue_partition_ids: tuple[int, ...] = ()  # () = every node
    reservation_rows: tuple[int, ...] = ()
    who: int = 0  # what it has to do with other jobs: a profile of `World.company`; 0 = nothing
    wall: int = (
        0  # the largest bound of a node's partitions, in seconds, that it asks for more than; 0 = none
    )
    rules: int = 0  # by whose rules nodes are chosen: 0 = the cluster's (`Answers.rules_of`)


class NodeFilter(Protocol):
    """A gate. `dynamic` gates are asked again for nodes that changed during a cycle; others once."""

    @property
    def name(self) -> str: ...

    @property
    def dynamic(self) -> bool: ...

    def filter(self, request: Question, nodes: NodeView) -> Bools:
        """True for each of these nodes that this gate lets through."""
        ...


Headroom = tuple[Ints, int]  # a column of what there is on each node, and what one task needs of it


@dataclass(frozen=True, slots=True)
class FactGate:
    """A gate on facts that do not change during a cycle; `permanent` ones no job's end will open."""

    name: str
    keep: Callable[[Question, World], Bools | None]  # None = lets every node through
    permanent: bool = False
    dynamic: bool = False

    def filter(self, request: Question, nodes: NodeView) -> Bools:
        mask = self.keep(request, nodes.workspace.world)
        return np.ones(len(nodes), dtype=np.bool_) if mask is None else nodes.bools(mask)


@dataclass(frozen=True, slots=True)
class RoomGate:
    """A gate on amounts: what is free now must hold what one task needs.

    `capacity` gives the same for an empty node, to tell "not now" from "never".
    """

    name: str
    free: Callable[[Question, Workspace], Headroom | None]  # None = the question needs none of it
    capacity: Callable[[Question, World], Headroom | None]
    permanent: bool = False
    dynamic: bool = True

    def filter(self, request: Question, nodes: NodeView) -> Bools:
        headroom = self.free(request, nodes.workspace)
        if headroom is None:
            return np.ones(len(nodes), dtype=np.bool_)
        column, need = headroom
        return nodes.ints(column) >= need


@dataclass(frozen=True, slots=True)
class JobsGate:
    """A gate on where other jobs are: it moves as jobs start, on nodes that nobody touched too."""

    name: str = "jobs"
    permanent: bool = False
    dynamic: bool = True

    def open(self, request: Question, workspace: Workspace) -> Headroom | None:
        """A live column that is 1 where the job may go; None when it has to do with nobody."""
        neighbours = workspace.neighbours
        if neighbours is None or not neighbours.company.is_bound(request.who):
            return None
        return neighbours.open(request.who), 1

    def filter(self, request: Question, nodes: NodeView) -> Bools:
        found = self.open(request, nodes.workspace)
        return np.ones(len(nodes), dtype=np.bool_) if found is None else nodes.ints(found[0]) >= 1


# Facts.


def _state(_: Question, world: World) -> Bools | None:
    return None if world.all_up else world.is_up


def _cordoned(_: Question, world: World) -> Bools | None:
    return world.not_cordoned


def _draining(_: Question, world: World) -> Bools | None:
    return world.not_draining


def _partition(question: Question, world: World) -> Bools | None:
    wanted, allowed = question.request.partition_ids, question.queue_partition_ids
    if not wanted and not allowed:
        return None
    mask = np.ones(world.node_count, dtype=np.bool_)
    for partition_ids in (wanted, allowed):
        if partition_ids:
            mask &= world.in_partitions(partition_ids)
    return mask


def _wall(question: Question, world: World) -> Bools | None:
    if not question.wall:
        return None
    bound = world.snapshot.nodes.max_wall_seconds
    mask: Bools = (bound == 0) | (bound > question.wall)
    return mask


def _labels(question: Question, world: World) -> Bools | None:
    if not question.request.node_selector:
        return None
    masks = [world.labelled(key, value) for key, value in question.request.node_selector]
    return masks[0] if len(masks) == 1 else np.logical_and.reduce(masks)


def _taints(question: Question, world: World) -> Bools | None:
    repelled = world.repelled(question.request.tolerations, hard=True)
    return None if repelled is None else ~repelled


def _affinity(question: Question, world: World) -> Bools | None:
    if not question.request.required_affinity:
        return None
    mask = np.zeros(world.node_count, dtype=np.bool_)
    for term in question.request.required_affinity:
        met = np.ones(world.node_count, dtype=np.bool_)
        for requirement in term:
            met &= world.meets(requirement)
        mask |= met
    return mask


def _reserved(question: Question, world: World) -> Bools | None:
    return ~world.reserved(question.reservation_rows) if question.reservation_rows else None


def _gpu_model(question: Question, world: World) -> Bools | None:
    request = question.request
    if not request.per_task.gpus or not (request.gpu_model or request.gpu_memory_mib):
        return None
    return world.has_gpus(request.gpu_model, request.gpu_memory_mib)


def _gpu_health(question: Question, world: World) -> Bools | None:
    """Turns away only nodes that have the devices but not in working order."""
    request = question.request
    if not request.per_task.gpus or world.all_healthy:
        return None
    fitting = world.gpu_matches(request.gpu_model, request.gpu_memory_mib)
    have, work = world.per_node(fitting), world.per_node(fitting & world.device_healthy)
    return (work >= request.per_task.gpus) | (have < request.per_task.gpus)


def _size(question: Question, world: World) -> Bools | None:
    """However much is promised of a machine, no single task gets more than it has."""
    if world.sizes is None:
        return None
    cpu, memory = world.sizes
    per_task = question.request.per_task
    mask: Bools = (cpu >= per_task.cpu_millis) & (memory >= per_task.memory_mib)
    return mask


# Amounts.


def _free_gpus(question: Question, workspace: Workspace) -> Headroom | None:
    request = question.request
    if not request.per_task.gpus:
        return None
    features = workspace.gpu_features(request)
    if request.shares_gpu:
        return features.room, request.per_task.gpu_millis
    return features.whole, request.per_task.gpus


def _all_gpus(question: Question, world: World) -> Headroom | None:
    request = question.request
    if not request.per_task.gpus:
        return None
    return world.gpu_counts(request.gpu_model, request.gpu_memory_mib), request.per_task.gpus


def _free_cpu(question: Question, workspace: Workspace) -> Headroom | None:
    need = question.request.per_task.cpu_millis
    return (workspace.free_cpu_millis, need) if need else None


def _all_cpu(question: Question, world: World) -> Headroom | None:
    need = question.request.per_task.cpu_millis
    return (world.snapshot.nodes.cpu_millis, need) if need else None


def _free_memory(question: Question, workspace: Workspace) -> Headroom | None:
    need = question.request.per_task.memory_mib
    return (workspace.free_memory_mib, need) if need else None


def _all_memory(question: Question, world: World) -> Headroom | None:
    need = question.request.per_task.memory_mib
    return (world.snapshot.nodes.memory_mib, need) if need else None


def _free_storage(question: Question, workspace: Workspace) -> Headroom | None:
    need = question.request.per_task.storage_mib
    return (workspace.free_storage_mib, need) if need else None


def _all_storage(question: Question, world: World) -> Headroom | None:
    need = question.request.per_task.storage_mib
    return (world.snapshot.nodes.storage_mib, need) if need else None


def _free_domains(question: Question, workspace: Workspace) -> Headroom | None:
    if not question.request.one_domain or workspace.numa is None:
        return None
    return workspace.numa.slots(question.request), 1


def _all_domains(question: Question, world: World) -> Headroom | None:
    return (world.numa.most(question.request), 1) if question.request.one_domain else None


BUILT_IN: Final[Mapping[str, FactGate | RoomGate | JobsGate]] = {
    gate.name: gate
    for gate in (
        FactGate("state", _state),
        FactGate("cordoned", _cordoned),
        FactGate("draining", _draining),
        FactGate("partition", _partition, permanent=True),
        FactGate("wall", _wall, permanent=True),
        FactGate("labels", _labels, permanent=True),
        FactGate("taints", _taints, permanent=True),
        FactGate("affinity", _affinity, permanent=True),
        FactGate("reserved", _reserved),
        JobsGate(),
        FactGate("gpu_model", _gpu_model, permanent=True),
        FactGate("gpu_health", _gpu_health),
        FactGate("size", _size, permanent=True),
        RoomGate("gpus", _free_gpus, _all_gpus),
        RoomGate("cpu_millis", _free_cpu, _all_cpu),
        RoomGate("memory_mib", _free_memory, _all_memory),
        RoomGate("storage_mib", _free_storage, _all_storage),
        RoomGate("numa", _free_domains, _all_domains),
    )
}
assert tuple(BUILT_IN) == FILTERS


def task_slots(question: Question, workspace: Workspace, keep: Bools, gates: tuple[NodeFilter, ...]) -> Ints:
    """How many tasks each kept node could take at once, now; a gang asks this, a single task need not."""
    slots = np.where(keep, np.iinfo(np.int64).max, 0)
    for gate in gates:
        if isinstance(gate, RoomGate):
            headroom = gate.free(question, workspace)
            if headroom is not None:
                count = (
                    _shares_free(question, workspace)
                    if _is_share(gate, question)
                    else headroom[0] // headroom[1]
                )
                np.minimum(slots, count, out=slots)
    return np.maximum(slots, 0)


def capacity_slots(question: Question, world: World, gates: tuple[NodeFilter, ...]) -> tuple[Ints, Bools]:
    """How many tasks each node could take were it empty and open, and which nodes no gate bars for ever."""
    allowed = np.ones(world.node_count, dtype=np.bool_)
    for gate in gates:
        if isinstance(gate, FactGate) and gate.permanent:
            mask = gate.keep(question, world)
            allowed = allowed if mask is None else allowed & mask
    slots = np.where(allowed, np.iinfo(np.int64).max, 0)
    for gate in gates:
        if isinstance(gate, RoomGate):
            headroom = gate.capacity(question, world)
            if headroom is not None:
                count = headroom[0] // headroom[1]
                if _is_share(gate, question):
                    count = headroom[0] * (GPU_MILLIS // question.request.per_task.gpu_millis)
                np.minimum(slots, count, out=slots)
    return slots, allowed


def fits_empty(
    question: Question, world: World, rooms: tuple[RoomGate, ...], facts: tuple[Bools, ...]
) -> Bools:
    """Where `capacity_slots` has a slot; `facts` are the masks of all permanent gates."""
    fits, _ = world.where(facts)
    for gate in rooms:
        headroom = gate.capacity(question, world)
        if headroom is not None:
            reached = world.reaches(*headroom)
            fits = reached if fits is None else fits & reached
    return np.ones(world.node_count, dtype=np.bool_) if fits is None else fits


def _is_share(gate: RoomGate, question: Question) -> bool:
    return gate.name == "gpus" and question.request.shares_gpu


def _shares_free(question: Question, workspace: Workspace) -> Ints:
    """How many shares of this size the devices of each node still hold together."""
    world, request = workspace.world, question.request
    usable = world.gpu_matches(request.gpu_model, request.gpu_memory_mib) & world.device_healthy
    shares = (GPU_MILLIS - workspace.device_used[usable]) // request.per_task.gpu_millis
    total = np.zeros(world.node_count, dtype=np.int64)
    np.add.at(total, world.device_node[usable], shares)
    return total
