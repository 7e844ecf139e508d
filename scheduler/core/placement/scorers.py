"""Scorers: load, balance, preferences of the job, and what labels and past jobs say of a node, each 0 to 100."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from scheduler.core.cluster.free_columns import Floats
from scheduler.core.cluster.workspace import Workspace
from scheduler.core.columns import Bools, Ints
from scheduler.core.placement.filters import FilterQuery
from scheduler.core.placement.node_view import NodeView
from scheduler.core.snapshot.request_classes import RequestClass

#: Labels with numbers that an operator may put on nodes. A node without one is rated as average.
COST: Final = "muster.io/cost-per-hour"
RELIABILITY: Final = "muster.io/reliability"
PERFORMANCE: Final = "muster.io/performance"
LATENCY: Final = "muster.io/latency-ms"

#: `data/NAME` on a node says that a data set lies there; a job prefers it with that label.
DATA_PREFIX: Final = "data/"

#: A node about which nothing is known.
NEUTRAL: Final = 50.0

#: A PreferNoSchedule taint counts as a wish of this weight, the largest that a job may give to one of its own.
_SOFT_TAINT: Final = 100


@dataclass(frozen=True, slots=True)
class LabelScorer:
    """A part of a score that is worked out for some nodes at a time. None = all nodes are alike to it."""

    name: str
    rate: Callable[[FilterQuery, NodeView], Floats | None]

    def score(self, request: FilterQuery, nodes: NodeView) -> Floats | None:
        return self.rate(request, nodes)


def _used_after(request: RequestClass, nodes: NodeView) -> list[Floats]:
    """Of each resource of these nodes, how much (0..1) is used once one task is there."""
    workspace, per_task = nodes.workspace, request.per_task
    have = workspace.cluster.snapshot.nodes
    gpus = workspace.cluster.devices.gpu_capacity
    return [
        1.0 - (nodes.ints(free) - need) / np.maximum(nodes.ints(capacity), 1)
        for free, capacity, need in (
            (workspace.free_cpu_millis, have.cpu_millis, per_task.cpu_millis),
            (workspace.free_memory_mib, have.memory_mib, per_task.memory_mib),
            (workspace.free_gpu_millis, gpus, per_task.gpu_millis_charged),
        )
        if capacity is not gpus or per_task.gpus
    ]


def _fit(query: FilterQuery, nodes: NodeView) -> Floats:
    """How full the node is with the task on it: 100 = nothing left over."""
    used = _used_after(query.request, nodes)
    points: Floats = 100.0 * np.clip(np.mean(used, axis=0), 0.0, 1.0)
    return points


def _load(query: FilterQuery, nodes: NodeView) -> Floats:
    """How idle the node stays with the task on it: 100 minus the busiest of its resources."""
    busiest = np.max(_used_after(query.request, nodes), axis=0)
    points: Floats = 100.0 * (1.0 - np.clip(busiest, 0.0, 1.0))
    return points


def _balance(query: FilterQuery, nodes: NodeView) -> Floats:
    """How evenly CPU, memory and GPUs are used with the task on it: 100 = all alike."""
    used = np.array(_used_after(query.request, nodes))
    points: Floats = 100.0 * (1.0 - np.clip(used.max(axis=0) - used.min(axis=0), 0.0, 1.0))
    return points


def _turn(query: FilterQuery, nodes: NodeView) -> Floats:
    """The node with the fewest tasks is next: each gets one before any gets two."""
    return 100.0 / (1.0 + np.maximum(nodes.ints(nodes.workspace.tasks_on), 0))


def _affinity(query: FilterQuery, nodes: NodeView) -> Floats | None:
    """How much of what the job prefers the node meets, by weight; a soft taint is a wish not met."""
    cluster, request = nodes.workspace.cluster, query.request
    repelled = cluster.nodes.repelled(request.tolerations, hard=False)
    wished, met = wishes(query, nodes.workspace)
    if repelled is not None:
        wished, met = wished + _SOFT_TAINT, met + np.where(repelled, 0.0, float(_SOFT_TAINT))
    return nodes.floats(met * 100.0 / wished) if wished else None


def _data_locality(query: FilterQuery, nodes: NodeView) -> Floats | None:
    """How much of the data that the job prefers to be near lies on the node."""
    wished, met = preferred(query.request, nodes.workspace, prefix=DATA_PREFIX)
    return nodes.floats(met * 100.0 / wished) if wished else None


def preferred(request: RequestClass, workspace: Workspace, *, prefix: str = "") -> tuple[int, Floats]:
    """The weight of all wishes that are about labels with this prefix, and what each node meets of it."""
    cluster = workspace.cluster
    met, wished = np.zeros(cluster.node_count), 0
    for preference in request.preferred_affinity:
        if prefix and not any(one.key.startswith(prefix) for one in preference.requirements):
            continue
        holds: Bools = np.ones(cluster.node_count, dtype=np.bool_)
        for requirement in preference.requirements:
            holds &= cluster.nodes.meets(requirement)
        wished += preference.weight
        met += np.where(holds, float(preference.weight), 0.0)
    return wished, met


def wishes(query: FilterQuery, workspace: Workspace) -> tuple[int, Floats]:
    """All that a job prefers, of labels and of where other jobs are, and what each node meets of it."""
    wished, met = preferred(query.request, workspace)
    if workspace.affinity_state is None or not query.who:
        return wished, met
    more, near = workspace.affinity_state.met(query.who)
    return wished + more, met + near


def _by_label(
    key: str, *, low_is_good: bool, observed: str = ""
) -> Callable[[FilterQuery, NodeView], Floats | None]:
    """0..100 between the worst and the best value of a label; None when all nodes are alike.

    `observed` is the column of nodes with 0..100 of what was seen there: it counts where a node has no label.
    """

    def rate(query: FilterQuery, nodes: NodeView) -> Floats | None:
        memo = nodes.workspace.memo
        name = f"label {key}"
        if name not in memo:
            memo[name] = _node_points(nodes.workspace, key, observed, low_is_good=low_is_good)
        points = memo[name]
        return nodes.floats(points) if isinstance(points, np.ndarray) else None

    return rate


def _node_points(workspace: Workspace, key: str, observed: str, *, low_is_good: bool) -> Floats | None:
    labelled = _label_points(workspace, key, low_is_good=low_is_good)
    if not observed:
        return labelled
    seen: Ints = getattr(workspace.cluster.snapshot.nodes, observed)
    if not (known := seen >= 0).any():
        return labelled
    # Of a node that is not known nothing is said but that it is one of these.
    points = np.where(known, seen, seen[known].mean())
    if labelled is not None:
        points = np.where(np.isnan(workspace.cluster.nodes.label_numbers(key)), points, labelled)
    return points if (points != points[0]).any() else None


def _label_points(workspace: Workspace, key: str, *, low_is_good: bool) -> Floats | None:
    values = workspace.cluster.nodes.label_numbers(key)
    known = ~np.isnan(values)
    if not known.any():
        return None
    low, high = values[known].min(), values[known].max()
    if low == high:
        return None
    points = (values - low) / (high - low) * 100.0
    return np.where(known, 100.0 - points if low_is_good else points, NEUTRAL)


def _placement_quality(query: FilterQuery, nodes: NodeView) -> Floats:
    """100 for one node, 30 more where the devices share a NUMA domain, up to 20 for a tight fit; of 150."""
    request = query.request
    local = nodes.ints(nodes.workspace.columns.gpu_features(request).numa_best) >= request.per_task.gpus
    quality = 100.0 + np.where(local, 30.0, 0.0) + _fit(query, nodes) / 5.0
    return quality / 1.5


SCORERS: Final = (
    LabelScorer("fit", _fit),
    LabelScorer("load", _load),
    LabelScorer("balance", _balance),
    LabelScorer("turn", _turn),
    LabelScorer("affinity", _affinity),
    LabelScorer("data_locality", _data_locality),
    LabelScorer("cost", _by_label(COST, low_is_good=True)),
    LabelScorer("reliability", _by_label(RELIABILITY, low_is_good=False, observed="reliability")),
    LabelScorer("performance", _by_label(PERFORMANCE, low_is_good=False, observed="performance")),
    LabelScorer("network", _by_label(LATENCY, low_is_good=True)),
    LabelScorer("placement_quality", _placement_quality),
)
