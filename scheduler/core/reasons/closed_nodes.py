"""Closed nodes: which filters close the nodes that could hold a job, and which of them to open."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Final

import numpy as np

from scheduler.core.cluster.index import ClusterIndex
from scheduler.core.columns import Bools, Ints
from scheduler.core.placement.candidates import Candidates
from scheduler.core.placement.filters import ResourceFilter, capacity_slots, task_slots
from scheduler.core.placement.gang_layout import fit_on
from scheduler.core.placement.shape import Shape
from scheduler.core.plan import Facts
from scheduler.core.snapshot.agent_features import in_words
from scheduler.core.snapshot.constraints import HARD_EFFECTS, Requirement
from scheduler.core.snapshot.node_isolation import lacking, level_of_bits

#: Filters on what operators set of a node, and what a job asks of that: an operator can open them. Where several close
#: different nodes, the first of these is named: what the job asks for is taken as meant as long as that is possible.
LASTING: Final = ("taints", "agent", "isolation", "wall", "partition", "affinity", "labels")

#: Filters on the state of a node and on who uses it; plugins come after them.
PASSING: Final = ("cordoned", "draining", "fault", "gpu_health", "reserved", "state", "jobs")

#: What a job asks of a node: one that any of these closes is none that could hold the job.
_ASKED: Final = ("wall", "partition", "affinity", "labels")

#: Of these, what an idle node is named for beside open nodes that are busy.
_NAMED_BESIDE: Final = ("cordoned", "draining")


@dataclass(frozen=True, slots=True, eq=False)
class Opening:
    """The fewest filters that, if they let all nodes through, give a job nodes; `nodes`: what they close to it."""

    gates: tuple[str, ...]
    nodes: Bools
    beside_open: bool  # other nodes are open, but too few
    masks: Mapping[str, Bools]  # by filter, the nodes that it lets through

    def rows(self, gate: str = "") -> Ints:
        """The rows of these nodes, or of those that one of the filters closes, where it does."""
        rows = np.flatnonzero(self.nodes)
        shut = rows[~self.masks[gate][rows]] if gate in self.masks else rows
        return shut if len(shut) else rows

    def leaves_closed(self, idle: Ints) -> bool:
        """Whether only something else closes more nodes that could hold a task: these are not all of them."""
        open_to_all = np.ones(len(idle), dtype=np.bool_)
        left = ~self.nodes & (idle > 0)
        for gate, mask in self.masks.items():
            open_to_all &= mask
            if gate in self.gates or gate in _ASKED:
                left &= mask
        return bool((left & ~open_to_all).any())


def closed_always(candidates: Candidates, shape: Shape) -> Facts | None:
    """What operators set that closes the nodes; None where the machines themselves are too small or too few."""
    query, cluster = candidates.query, candidates.workspace.cluster
    slots, _ = capacity_slots(query, cluster, candidates.rules.gates, without=LASTING)
    masks = {name: mask for name, mask in candidates.filters.facts.items() if name in LASTING}
    found = _smallest(masks, LASTING, lambda _: slots, shape, cluster)
    return None if found is None else facts_of_opening(candidates, found, slots)


def closed_now(candidates: Candidates, shape: Shape, opened: Bools) -> tuple[Opening, Facts] | None:
    """What closes the nodes for the time being; None where those in `opened` could hold the job once they are idle."""
    if shape.tasks == 1:
        if np.count_nonzero(opened):
            return None
    elif np.array_equal(opened, candidates.suitable) and candidates.workspace.cluster.devices.all_healthy:
        return None
    cluster, workspace = candidates.workspace.cluster, candidates.workspace
    idle, _ = candidates.capacity
    works = np.minimum(idle, _working_slots(candidates))
    if fit_on(np.where(opened, works, 0), shape, cluster):
        return None
    masks = _passing_masks(candidates)
    order = (*PASSING, *(name for name in masks if name not in PASSING))
    if not np.array_equal(works, idle):
        masks.setdefault("gpu_health", np.ones(cluster.node_count, dtype=np.bool_))

    def idle_slots(gates: tuple[str, ...]) -> Ints:
        return idle if "gpu_health" in gates else works

    def free_slots(gates: tuple[str, ...]) -> Ints:
        everywhere = np.ones(cluster.node_count, dtype=np.bool_)
        free = task_slots(candidates.query, workspace, everywhere, candidates.rules.gates)
        return np.minimum(free, idle_slots(gates))

    found = _smallest(masks, order, free_slots, shape, cluster, most=1)
    found = found or _smallest(masks, order, idle_slots, shape, cluster)
    return None if found is None else (found, facts_of_opening(candidates, found, idle))


def _passing_masks(candidates: Candidates) -> dict[str, Bools]:
    """By filter on state, other jobs or a plugin: the nodes that it lets through."""
    filters = candidates.filters
    masks = {name: mask for name, mask in filters.facts.items() if name in PASSING}
    for name, keep in filters.each_now() if filters.asks_outside else ():
        if name not in filters.facts and name not in filters.rooms:
            masks[name] = keep
    return masks


def closed_beside(candidates: Candidates, shape: Shape) -> Facts:
    """A cordoned or draining node that has enough free for the one task of a job; empty where there is none."""
    facts = candidates.filters.facts
    for gate in _NAMED_BESIDE if shape.tasks == 1 else ():
        if gate not in facts:
            continue
        rows = np.flatnonzero(~facts[gate])
        for name, mask in facts.items():
            rows = rows if name == gate else rows[mask[rows]]
        for column, need in candidates.filters.rooms.values():
            rows = rows[column[rows] >= need]
        if len(rows):
            names = candidates.workspace.cluster.snapshot.nodes.name
            return {"closed_gate": gate, "closed_node": names[int(rows[0])], "closed_nodes": len(rows)}
    return {}


def _smallest(
    masks: Mapping[str, Bools],
    order: tuple[str, ...],
    slots_of: Callable[[tuple[str, ...]], Ints],
    shape: Shape,
    cluster: ClusterIndex,
    *,
    most: int = 0,
) -> Opening | None:
    """One filter before two, two before all of them; of equally many the first by `order`. `most` 1: one only."""
    closing = [name for name in order if name in masks and (name == "gpu_health" or not masks[name].all())]
    tries = [*combinations(closing, 1)]
    if most != 1:
        tries += [*combinations(closing, 2), tuple(closing)]
    now = _all_of(masks, (), cluster)
    for gates in tries:
        slots, opened = slots_of(gates), _all_of(masks, gates, cluster)
        if fit_on(np.where(opened, slots, 0), shape, cluster):
            shut = opened & ~now & (slots > 0)
            if not shut.any():
                shut = opened & (slots > 0)  # it is open, with too few devices in working order
            return Opening(gates, shut, bool((now & (slots > 0)).any()), masks)
    return None


def _all_of(masks: Mapping[str, Bools], without: tuple[str, ...], cluster: ClusterIndex) -> Bools:
    opened: Bools = np.ones(cluster.node_count, dtype=np.bool_)
    for name, mask in masks.items():
        if name not in without:
            opened &= mask
    return opened


def _working_slots(candidates: Candidates) -> Ints:
    """How many tasks the healthy devices of each node could take; more than any job has where none is asked for."""
    query, cluster = candidates.query, candidates.workspace.cluster
    request = query.request
    if not request.per_task.gpus or not any(
        isinstance(gate, ResourceFilter) for gate in candidates.rules.gates
    ):
        return np.full(cluster.node_count, np.iinfo(np.int64).max)
    devices = cluster.devices.per_node(cluster.devices.usable(request.gpu_model, request.gpu_memory_mib))
    if request.shares_gpu:
        return devices * (1000 // request.per_task.gpu_millis)
    return devices // request.per_task.gpus


def facts_of_opening(candidates: Candidates, opening: Opening, idle: Ints) -> Facts:
    """Which nodes, by what they are closed, and for each filter what exactly it asks for.

    Of several filters each may close other nodes: of each, one node is looked at.
    """
    nodes, rows = candidates.workspace.cluster.snapshot.nodes, opening.rows()
    facts: Facts = {
        "gates": ", ".join(opening.gates),
        "node": nodes.name[_nearest(candidates, rows)],
        "nodes": len(rows),
        "beside_open": int(opening.beside_open or opening.leaves_closed(idle)),
    }
    if "labels" not in opening.gates:
        wanted = candidates.query.request.node_selector
        facts["with_labels"] = ", ".join(f"{key}={value}" for key, value in wanted)
    for gate in opening.gates:
        if gate in _SUBJECTS:
            facts[gate] = _SUBJECTS[gate](candidates, _nearest(candidates, opening.rows(gate)))
    if "wall" in opening.gates:
        facts["limit"] = int(nodes.max_wall_seconds[rows].max())
    if "isolation" in opening.gates:
        has, needed = nodes.isolation, candidates.query.isolation
        row = max(rows.tolist(), key=lambda one: ((has.item(one) & needed).bit_count(), -one))
        facts |= {"node": nodes.name[row], "lacks": " and ".join(lacking(has.item(row), needed))}
    return facts


def _nearest(candidates: Candidates, rows: Ints) -> int:
    """Of these nodes the one that lacks the fewest labels, the first among equals."""
    nearest: int = min(rows.tolist(), key=lambda row: (len(_missing_labels(candidates, row)), row))
    return nearest


def _missing_labels(candidates: Candidates, row: int) -> list[str]:
    have = dict(candidates.workspace.cluster.snapshot.nodes.labels[row])
    return [
        f"{key}={value}" for key, value in candidates.query.request.node_selector if have.get(key) != value
    ]


def _taints(candidates: Candidates, row: int) -> str:
    tolerations = candidates.query.request.tolerations
    return ", ".join(
        f"{taint.key}={taint.value}:{taint.effect}" if taint.value else f"{taint.key}:{taint.effect}"
        for taint in candidates.workspace.cluster.snapshot.nodes.taints[row]
        if taint.effect in HARD_EFFECTS and not any(one.tolerates(taint) for one in tolerations)
    )


def _affinity(candidates: Candidates, row: int) -> str:
    """The conditions that this node does not meet, of the alternative of which it meets the most."""
    cluster = candidates.workspace.cluster
    terms = [
        [requirement for requirement in term if not cluster.nodes.meets(requirement)[row]]
        for term in candidates.query.request.required_affinity
    ]
    return " and ".join(_condition(one) for one in min(terms, key=len, default=[]))


def _condition(requirement: Requirement) -> str:
    """`pool In a, b`, as it is written in a manifest."""
    return " ".join(filter(None, (requirement.key, requirement.operator, ", ".join(requirement.values))))


def _agent(candidates: Candidates, row: int) -> str:
    needs = candidates.query.request.features
    return in_words(needs & ~candidates.workspace.cluster.snapshot.nodes.features.item(row))


#: By filter, what exactly of a node it turns away.
_SUBJECTS: Final[Mapping[str, Callable[[Candidates, int], str]]] = {
    "taints": _taints,
    "labels": lambda candidates, row: ", ".join(_missing_labels(candidates, row)),
    "affinity": _affinity,
    "agent": _agent,
    "isolation": lambda candidates, _: level_of_bits(candidates.query.isolation).value,
}
