"""Scoring: which of the nodes that can take a task should; parts of 0 to 100, higher is better."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, runtime_checkable

import numpy as np

from scheduler.core.classes import RequestClass
from scheduler.core.columns import Ints
from scheduler.core.feasibility import Question
from scheduler.core.fragmentation import FragmentationScorer
from scheduler.core.ratings import RATINGS, preferred
from scheduler.core.workspace import Floats, NodeView, Workspace


class Scorer(Protocol):
    """A wish among nodes. None means that all nodes are alike to it, for this request."""

    @property
    def name(self) -> str: ...

    def score(self, request: Question, nodes: NodeView) -> Floats | None:
        """0..100 for each of these nodes."""
        ...


@runtime_checkable
class PicksDevice(Protocol):
    """A scorer that also has a wish among the devices of the node it liked best."""

    def pick_device(self, request: RequestClass, workspace: Workspace, row: int) -> int | None:
        """The device row for a share; None when it does not care."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class ScoreColumn:
    """A live column of the workspace, and how its values become points.

    As they are, or 100 minus them, or 100 where they reach `at_least` and 0 elsewhere.
    """

    column: Floats | Ints
    at_least: int | None = None
    flipped: bool = False

    def points(self, values: Any) -> Any:
        """The points of some values of the column: one number or an array, by the same arithmetic."""
        if self.at_least is not None:
            return (values >= self.at_least) * 100.0
        return 100.0 - values if self.flipped else values

    def table(self, weight: int, largest: int) -> Floats | None:
        """Weighted points for every value from 0 on, where there are only two: a look-up is the cheapest step."""
        if self.at_least is None:
            return None
        return np.where(np.arange(largest + 1) >= self.at_least, 100.0 * weight, 0.0)


@dataclass(frozen=True, slots=True)
class ColumnScorer:
    """A built-in scorer: it names its column, so that a cache may read single rows of it."""

    name: str
    column: Callable[[Question, Workspace], ScoreColumn | None]

    def score(self, request: Question, nodes: NodeView) -> Floats | None:
        found = self.column(request, nodes.workspace)
        if found is None:
            return None
        values = found.column if nodes.rows is None else found.column.take(nodes.rows)
        return np.asarray(found.points(values), dtype=np.float64)


def _tightness(question: Question, workspace: Workspace) -> ScoreColumn:
    """Least left over, so that large free pieces stay whole (N29, C19)."""
    per_task = question.request.per_task
    return ScoreColumn(workspace.tight_with_gpu if per_task.gpus else workspace.tight_without_gpu)


def _looseness(question: Question, workspace: Workspace) -> ScoreColumn:
    """Most left over: the load is spread."""
    return ScoreColumn(_tightness(question, workspace).column, flipped=True)


def _device_fit(question: Question, workspace: Workspace) -> ScoreColumn | None:
    """100 when all devices come from one NUMA domain (N18, N19), or a share from a device already shared."""
    request = question.request
    if request.shares_gpu:
        return ScoreColumn(workspace.gpu_features(request).partial, at_least=request.per_task.gpu_millis)
    if request.per_task.gpus < 2:
        return None  # one device is always in one domain
    return ScoreColumn(workspace.gpu_features(request).numa_best, at_least=request.per_task.gpus)


def _spare_gpus(question: Question, workspace: Workspace) -> ScoreColumn | None:
    """Work without GPUs goes where the fewest are idle."""
    return None if question.request.per_task.gpus else ScoreColumn(workspace.gpus_taken)


def _soft_taints(question: Question, workspace: Workspace) -> ScoreColumn | None:
    """0 on a node whose PreferNoSchedule taint is not tolerated."""
    repelled = workspace.world.repelled(question.request.tolerations, hard=False)
    return None if repelled is None else ScoreColumn(np.where(repelled, 0.0, 100.0))


def _preferred(question: Question, workspace: Workspace) -> ScoreColumn | None:
    """How much of what the job prefers the node meets, by weight."""
    wished, met = preferred(question.request, workspace)
    return ScoreColumn(met * 100.0 / wished) if wished else None


_ALL: Final[tuple[Scorer, ...]] = (
    ColumnScorer("tightness", _tightness),
    ColumnScorer("looseness", _looseness),
    ColumnScorer("device_fit", _device_fit),
    ColumnScorer("spare_gpus", _spare_gpus),
    ColumnScorer("soft_taints", _soft_taints),
    ColumnScorer("preferred", _preferred),
    FragmentationScorer(),
    *RATINGS,
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
    # Profiles: weights are shares of the whole (C5). A part that is the same everywhere is left out.
    "balanced": (("fit", 30), ("affinity", 20), ("load", 20), ("data_locality", 20), ("cost", 10)),
    "k8s": (("fit", 40), ("load", 30), ("affinity", 20), ("network", 10)),
    "multi-criteria": (("performance", 25), ("cost", 25), ("reliability", 25), ("network", 25)),
}
