"""Node scores: how reliable and how fast a node is, from the attempts that ended there lately."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from statistics import median
from typing import Final, NamedTuple

#: The failure rate at which `reliability` is half of what it is without failures.
HALVING_RATE: Final = 0.05
#: Attempts without failure that each node begins with, so that one failure of few says little.
PRIOR_ATTEMPTS: Final = 20.0
#: What the attempts of one person on one node weigh at most, and the compared runs of one person there.
PERSON_ATTEMPTS: Final = 50.0
PERSON_RUNS: Final = 10.0
#: Compared runs at the speed of the other nodes that each node begins with.
PRIOR_RUNS: Final = 3.0
#: A run counts as at most this many times faster or slower than those on other nodes.
MOST_RATIO: Final = 4.0
#: What a failure by its job's own processes counts that succeeded on another node afterwards.
SUCCEEDED_ELSEWHERE: Final = 0.5


@dataclass(frozen=True, slots=True)
class PersonOnNode:
    """The ended attempts of one person on one node; `weight` and `failed` are decayed by age, the rest are counts."""

    node_id: int
    user_id: int
    weight: float
    failed: float
    attempts: int = 0
    failed_starts: int = 0
    lost: int = 0
    infrastructure: int = 0
    succeeded_elsewhere: int = 0


@dataclass(frozen=True, slots=True)
class Outages:
    """How often a node stopped responding; `weight` is decayed by age."""

    node_id: int
    count: int
    weight: float


class Run(NamedTuple):
    """One run that succeeded on a single node. Runs of one `kind` are comparable; `weight` is decayed by age."""

    node_id: int
    user_id: int
    kind: Hashable
    seconds: float
    weight: float


@dataclass(frozen=True, slots=True)
class NodeScores:
    """The scores of a node, 0 to 100, and what they are from; None = nothing is known.

    `speed_percent`: how fast comparable jobs run there; 100 = as on the other nodes of its type.
    """

    reliability: int | None = None
    attempts: int = 0
    failed_starts: int = 0
    lost: int = 0
    infrastructure: int = 0
    succeeded_elsewhere: int = 0
    outages: int = 0
    performance: int | None = None
    speed_percent: int | None = None
    compared_runs: int = 0


def score_nodes(
    people: Iterable[PersonOnNode], outages: Iterable[Outages], runs: Iterable[Run]
) -> dict[int, NodeScores]:
    """The scores of all nodes of a cluster of which anything is known, by id."""
    found = _reliability(list(people), list(outages))
    for node, speed in _speeds(list(runs)).items():
        found[node] = replace(
            found.get(node, NodeScores()),
            performance=min(round(50 * speed.ratio), 100),
            speed_percent=round(100 * speed.ratio),
            compared_runs=speed.runs,
        )
    return found


# ------------------------------------------------------------------ reliability


def _reliability(people: list[PersonOnNode], outages: list[Outages]) -> dict[int, NodeScores]:
    """100 * 2 ** (-rate / HALVING_RATE), with rate = failed / (weight + PRIOR_ATTEMPTS).

    An outage is an attempt that failed.
    """
    weight: dict[int, float] = defaultdict(float)
    failed: dict[int, float] = defaultdict(float)
    counts: dict[int, NodeScores] = {}
    for one in people:
        if not one.attempts:
            continue
        part = min(1.0, PERSON_ATTEMPTS / one.weight) if one.weight else 0.0
        weight[one.node_id] += part * one.weight
        failed[one.node_id] += part * one.failed
        counts[one.node_id] = _added(counts.get(one.node_id, NodeScores()), one)
    for outage in outages:
        weight[outage.node_id] += outage.weight
        failed[outage.node_id] += outage.weight
        counts[outage.node_id] = replace(counts.get(outage.node_id, NodeScores()), outages=outage.count)
    return {
        node: replace(
            counted,
            reliability=_points(failed[node] / (weight[node] + PRIOR_ATTEMPTS)),
        )
        for node, counted in counts.items()
    }


def _points(rate: float) -> int:
    return round(100 * 2 ** (-rate / HALVING_RATE))


def _added(so_far: NodeScores, one: PersonOnNode) -> NodeScores:
    return replace(
        so_far,
        attempts=so_far.attempts + one.attempts,
        failed_starts=so_far.failed_starts + one.failed_starts,
        lost=so_far.lost + one.lost,
        infrastructure=so_far.infrastructure + one.infrastructure,
        succeeded_elsewhere=so_far.succeeded_elsewhere + one.succeeded_elsewhere,
    )


# ------------------------------------------------------------------ performance


@dataclass(frozen=True, slots=True)
class _Speed:
    ratio: float  # 1 = as fast as the other nodes
    runs: int


def _speeds(runs: list[Run]) -> dict[int, _Speed]:
    """The weighted geometric mean of (median run time elsewhere / median run time here), kind by kind of jobs.

    PRIOR_RUNS runs at the speed of the others are added, so that few runs say little.
    """
    by_kind: dict[Hashable, dict[int, list[Run]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        by_kind[run.user_id, run.kind][run.node_id].append(run)
    #: By node and person: (logarithm of the ratio, weight) of each kind.
    compared: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    counts: dict[int, int] = defaultdict(int)
    for nodes in by_kind.values():
        for node, here in nodes.items():
            there = [run for other, some in nodes.items() if other != node for run in some]
            if not there:
                continue
            weight = min(sum(run.weight for run in here), sum(run.weight for run in there))
            ratio = median(run.seconds for run in there) / median(run.seconds for run in here)
            bounded = min(max(ratio, 1 / MOST_RATIO), MOST_RATIO)
            compared[node, here[0].user_id].append((math.log(bounded), weight))
            counts[node] += len(here)
    return {node: _Speed(_mean_ratio(node, compared), count) for node, count in sorted(counts.items())}


def _mean_ratio(node: int, compared: Mapping[tuple[int, int], list[tuple[float, float]]]) -> float:
    total, whole = 0.0, PRIOR_RUNS
    for (at, _), some in sorted(compared.items()):
        if at != node:
            continue
        weight = sum(one for _, one in some)
        part = min(1.0, PERSON_RUNS / weight) if weight else 0.0
        total += part * sum(ratio * one for ratio, one in some)
        whole += part * weight
    return math.exp(total / whole)
