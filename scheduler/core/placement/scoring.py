"""Scoring: which of the nodes that can take a task should; parts of 0 to 100, higher is better."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, runtime_checkable

import numpy as np

from scheduler.core.cluster.affinity import AffinityState
from scheduler.core.cluster.free_columns import Floats
from scheduler.core.cluster.workspace import Workspace
from scheduler.core.columns import Ints
from scheduler.core.placement.filters import FilterQuery
from scheduler.core.placement.fragmentation import FragmentationScorer
from scheduler.core.placement.node_view import NodeView
from scheduler.core.placement.scorers import SCORERS, preferred
from scheduler.core.policy import Policy
from scheduler.core.snapshot.request_classes import RequestClass


class Scorer(Protocol):
    """A wish among nodes. None means that all nodes are alike to it, for this request."""

    @property
    def name(self) -> str: ...

    def score(self, request: FilterQuery, nodes: NodeView) -> Floats | None:
        """0..100 for each of these nodes."""
        ...


@runtime_checkable
class PicksDevice(Protocol):
    """A scorer that also has a wish among the devices of the node it liked best."""

    def pick_device(self, request: RequestClass, workspace: Workspace, row: int) -> int | None:
        """The device row for a share; None when it does not care."""
        ...


#: A live column of points times a weight; or of whole numbers, and a table of that for each.
Summand = tuple[Any, Floats | None]


class Part(Protocol):
    """A part of a score that a cache may read for single nodes."""

    def points(self, rows: Ints | None) -> Floats:
        """0..100 for each of these nodes (None = all), as of now."""
        ...

    def summand(self, weight: int) -> Summand:
        """What to add to a score: these points times a weight."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class FixedPart(Part):
    """Points that stay all cycle."""

    column: Floats

    def points(self, rows: Ints | None) -> Floats:
        return self.column if rows is None else self.column.take(rows)

    def summand(self, weight: int) -> Summand:
        return self.column * weight, None


@dataclass(frozen=True, slots=True, eq=False)
class LivePart(Part):
    """Points that the workspace keeps up to date, or 100 minus them."""

    workspace: Workspace
    name: str
    flipped: bool = False

    def points(self, rows: Ints | None) -> Floats:
        column = self.workspace.columns.points(self.name, flipped=self.flipped)
        return column if rows is None else column.take(rows)

    def summand(self, weight: int) -> Summand:
        return self.workspace.columns.points(self.name, flipped=self.flipped, weight=weight), None


@dataclass(frozen=True, slots=True, eq=False)
class WishPart(Part):
    """How much a node meets of wishes of which some are about where other jobs are: it moves as they start."""

    affinity_state: AffinityState
    who: int
    wished: int
    met: Floats

    def points(self, rows: Ints | None) -> Floats:
        more, near = self.affinity_state.met(self.who)
        column: Floats = (self.met + near) * 100.0 / (self.wished + more)
        return column if rows is None else column.take(rows)

    def points_of(self, row: int) -> float:
        return float(self.points(None).item(row))

    def summand(self, weight: int) -> tuple[Floats | Ints, Floats | None]:
        return self.affinity_state.points(self.who, self.wished, self.met, weight), None


@dataclass(frozen=True, slots=True, eq=False)
class Enough(Part):
    """100 where a live column of whole numbers, none above `largest`, reaches `at_least`, and 0 elsewhere."""

    column: Ints
    at_least: int
    largest: int

    def points(self, rows: Ints | None) -> Floats:
        values = self.column if rows is None else self.column.take(rows)
        return np.where(values >= self.at_least, 100.0, 0.0)

    def summand(self, weight: int) -> Summand:
        return self.column, np.where(np.arange(self.largest + 1) >= self.at_least, 100.0 * weight, 0.0)


@dataclass(frozen=True, slots=True)
class ColumnScorer:
    """A built-in scorer: a cache may read single nodes of its part."""

    name: str
    part: Callable[[FilterQuery, Workspace], Part | None]

    def score(self, request: FilterQuery, nodes: NodeView) -> Floats | None:
        found = self.part(request, nodes.workspace)
        return None if found is None else found.points(nodes.rows)


def _tightness(query: FilterQuery, workspace: Workspace, *, flipped: bool = False) -> Part:
    """Least left over, so that large free pieces stay whole."""
    name = "tight_with_gpu" if query.request.per_task.gpus else "tight_without_gpu"
    return LivePart(workspace, name, flipped)


def _looseness(query: FilterQuery, workspace: Workspace) -> Part:
    """Most left over: the load is spread."""
    return _tightness(query, workspace, flipped=True)


def _device_fit(query: FilterQuery, workspace: Workspace) -> Part | None:
    """100 when all devices come from one NUMA domain, or a share from a device already shared."""
    request, largest = query.request, workspace.columns.largest_count
    if request.shares_gpu:
        return Enough(workspace.columns.gpu_features(request).partial, request.per_task.gpu_millis, largest)
    if request.per_task.gpus < 2:
        return None  # one device is always in one domain
    return Enough(workspace.columns.gpu_features(request).numa_best, request.per_task.gpus, largest)


def _spare_gpus(query: FilterQuery, workspace: Workspace) -> Part | None:
    """Work without GPUs goes where the fewest are idle."""
    return None if query.request.per_task.gpus else LivePart(workspace, "gpus_taken")


def _soft_taints(query: FilterQuery, workspace: Workspace) -> Part | None:
    """0 on a node whose PreferNoSchedule taint is not tolerated."""
    repelled = workspace.cluster.nodes.repelled(query.request.tolerations, hard=False)
    return None if repelled is None else FixedPart(np.where(repelled, 0.0, 100.0))


def _preferred(query: FilterQuery, workspace: Workspace) -> Part | None:
    """How much of what the job prefers the node meets, by weight."""
    wished, met = preferred(query.request, workspace)
    affinity_state = workspace.affinity_state
    if affinity_state is not None and affinity_state.affinity.wishes(query.who):
        return WishPart(affinity_state, query.who, wished, met)
    return FixedPart(met * 100.0 / wished) if wished else None


_FRAGMENTATION: Final = FragmentationScorer()
_ALL: Final[tuple[Scorer, ...]] = (
    ColumnScorer("tightness", _tightness),
    ColumnScorer("looseness", _looseness),
    ColumnScorer("device_fit", _device_fit),
    ColumnScorer("spare_gpus", _spare_gpus),
    ColumnScorer("soft_taints", _soft_taints),
    ColumnScorer("preferred", _preferred),
    _FRAGMENTATION,
    *SCORERS,
)
BUILT_IN: Final[Mapping[str, Scorer]] = {scorer.name: scorer for scorer in _ALL}

WeightedScorers = tuple[tuple[Scorer, int], ...]

#: Soft taints outweigh what the job prefers, and that outweighs where it fits best.
_WISHES: Final = (("soft_taints", 320), ("preferred", 160))

#: Weights of each placement. After wishes, best fit puts locality before all that is left: 80 > 40 + 39.
STRATEGIES: Final[Mapping[str, tuple[tuple[str, int], ...]]] = {
    "best_fit": (*_WISHES, ("device_fit", 80), ("spare_gpus", 40), ("tightness", 39)),
    "spread": (*_WISHES, ("device_fit", 80), ("spare_gpus", 40), ("looseness", 39)),
    "frag": (*_WISHES, ("fragmentation", 100)),
    "least_loaded": (*_WISHES, ("load", 100)),
    "resource_balance": (*_WISHES, ("balance", 100)),
    "round_robin": (*_WISHES, ("turn", 100)),
    # Profiles: weights are shares of the whole. A part that is the same everywhere is left out.
    "balanced": (("fit", 30), ("affinity", 20), ("load", 20), ("data_locality", 20), ("cost", 10)),
    "k8s": (("fit", 40), ("load", 30), ("affinity", 20), ("network", 10)),
    "multi-criteria": (("performance", 25), ("cost", 25), ("reliability", 25), ("network", 25)),
    "quality": (*_WISHES, ("placement_quality", 100)),
}


def counts_gpu_requests(policy: Policy) -> bool:
    """Whether a placement under this policy, or that of one of its queues, depends on how often GPUs are asked for."""
    each = [policy, *(own for _, own in policy.queues)]
    return any(
        name == _FRAGMENTATION.name for one in each for name, _ in one.weights or STRATEGIES[one.placement]
    )
