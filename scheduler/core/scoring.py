"""Scoring: which of the nodes that can take a task should; parts of 0 to 100, higher is better."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from scheduler.core.feasibility import Question
from scheduler.core.workspace import Floats, NodeView


class Scorer(Protocol):
    """A wish among nodes. None means that all nodes are alike to it, for this request."""

    @property
    def name(self) -> str: ...

    def score(self, request: Question, nodes: NodeView) -> Floats | None:
        """0..100 for each of these nodes."""
        ...


@dataclass(frozen=True, slots=True)
class BuiltInScorer:
    name: str
    compute: Callable[[Question, NodeView], Floats | None]

    def score(self, request: Question, nodes: NodeView) -> Floats | None:
        return self.compute(request, nodes)


def _tightness(question: Question, nodes: NodeView) -> Floats | None:
    """Least left over, so that large free pieces stay whole (N29, C19)."""
    space = nodes.workspace
    return nodes.floats(space.tight_with_gpu if question.request.per_task.gpus else space.tight_without_gpu)


def _looseness(question: Question, nodes: NodeView) -> Floats | None:
    """Most left over: the load is spread."""
    tight = _tightness(question, nodes)
    return None if tight is None else 100.0 - tight


def _device_fit(question: Question, nodes: NodeView) -> Floats | None:
    """100 when all devices come from one NUMA domain (N18, N19), or a share from a device already shared."""
    per_task = question.request.per_task
    if not per_task.gpus:
        return None
    features = nodes.workspace.gpu_features(question.request)
    if question.request.shares_gpu:
        fits = nodes.ints(features.partial) >= per_task.gpu_millis
    elif per_task.gpus == 1:
        return None  # one device is always in one domain
    else:
        fits = nodes.ints(features.numa_best) >= per_task.gpus
    return np.multiply(fits, 100.0, dtype=np.float64)


def _spare_gpus(question: Question, nodes: NodeView) -> Floats | None:
    """Work without GPUs goes where the fewest are idle."""
    return None if question.request.per_task.gpus else nodes.floats(nodes.workspace.gpus_taken)


def _soft_taints(question: Question, nodes: NodeView) -> Floats | None:
    """0 on a node whose PreferNoSchedule taint is not tolerated."""
    repelled = nodes.workspace.world.repelled(question.request.tolerations, hard=False)
    return None if repelled is None else np.where(nodes.bools(repelled), 0.0, 100.0)


BUILT_IN: Final[Mapping[str, BuiltInScorer]] = {
    scorer.name: scorer
    for scorer in (
        BuiltInScorer("tightness", _tightness),
        BuiltInScorer("looseness", _looseness),
        BuiltInScorer("device_fit", _device_fit),
        BuiltInScorer("spare_gpus", _spare_gpus),
        BuiltInScorer("soft_taints", _soft_taints),
    )
}

WeightedScorers = tuple[tuple[Scorer, int], ...]

#: Weights of each placement. A soft taint outweighs all, then locality all that is left: 160 > 40 + 40 + 39.
STRATEGIES: Final[Mapping[str, tuple[tuple[str, int], ...]]] = {
    "best_fit": (("soft_taints", 160), ("device_fit", 80), ("spare_gpus", 40), ("tightness", 39)),
    "spread": (("soft_taints", 160), ("device_fit", 80), ("spare_gpus", 40), ("looseness", 39)),
}


def total_score(scorers: WeightedScorers, question: Question, nodes: NodeView) -> Floats:
    """The weighted sum of all parts: at least 0, and only its order matters."""
    total: Floats | None = None
    for scorer, weight in scorers:
        part = scorer.score(question, nodes)
        if part is not None:
            part = part * weight
            total = part if total is None else total + part
    return np.zeros(len(nodes)) if total is None else total


def score_parts(scorers: WeightedScorers, question: Question, nodes: NodeView) -> tuple[tuple[str, int], ...]:
    """Each part for the first of these nodes and their weighted mean, rounded to whole points."""
    parts: list[tuple[str, int]] = []
    total = weights = 0.0
    for scorer, weight in scorers:
        part = scorer.score(question, nodes)
        if part is not None:
            points = float(part[0])
            parts.append((scorer.name, round(points)))
            total, weights = total + points * weight, weights + weight
    if weights:
        parts.append(("total", round(total / weights)))
    return tuple(parts)
