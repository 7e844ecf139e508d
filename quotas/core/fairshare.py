"""Fair share: from weights and decayed use to a factor of 0 to 1, for a flat list or a tree.

Flat: `weight / (usage + 1.0)`, the use in GPU-hours. Who has the larger number goes first.

Tree, in the manner of Slurm's Fair Tree (https://slurm.schedmd.com/fair_tree.html), written anew: among
siblings the level fair share of each is S / U, where S is its weight over the sum of theirs and U is its use
over the sum of theirs. All that hangs below the sibling with the higher one goes before all that hangs below
the lower one; so a group's standing is its own, and cannot be spoilt or bought by how its people share it.
Going down the tree in that order gives every leaf a place, and its factor is the part of all leaves that are
not before it: 1 for the first, 1/n for the last. Equals share a place: two tied groups are looked at as one,
their children side by side. Who has used nothing goes before all who have.

Product: `entitled / (usage + 1.0)`, where entitled is the product of the S from the root down to a person.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

#: What a use is metered in: seconds of a GPU, of a core, of a GiB of memory.
METERED: Final = ("gpu", "cpu", "memory")

#: Factors are handed on in whole steps, so that a recorded cycle repeats to the bit.
STEPS: Final = 1_000_000

NOTHING, SOFT, HARD = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Metering:
    """How much a GPU, a core and a GiB count; by default only GPUs do.

    `dominant`: not the sum counts but the largest part that somebody has of any one resource of the site
    (dominant resource fairness), expressed in GPU-hours of the whole site's GPUs.
    """

    gpu: float = 1.0
    cpu: float = 0.0
    memory: float = 0.0
    dominant: bool = False

    def __post_init__(self) -> None:
        weights = (self.gpu, self.cpu, self.memory)
        if min(weights) < 0 or not any(weights):
            raise ValueError("the weights of fair share are 0 or more, and one of them above 0")

    def usage(self, used: Mapping[str, Floats], capacity: Mapping[str, float]) -> Floats:
        """One figure from the use of each resource; `capacity` is what the whole site has of each."""
        weighed = {name: getattr(self, name) * used[name] for name in METERED}
        if not self.dominant:
            total: Floats = sum((weighed[name] for name in METERED), np.zeros(len(used["gpu"])))
            return total
        parts = [weighed[name] / capacity[name] for name in METERED if capacity.get(name, 0.0) > 0]
        if not parts:
            return np.zeros(len(used["gpu"]))
        largest: Floats = np.maximum.reduce(parts) * max(capacity.get("gpu", 0.0), 1.0)
        return largest


def flat_share(weight: Ints | Floats, usage_hours: Floats) -> Floats:
    """`weight / (usage + 1.0)` with the usage in GPU-hours: the less was used, the sooner it is one's turn."""
    share: Floats = weight / (usage_hours + 1.0)
    return share


@dataclass(frozen=True)
class Standings:
    """Of every node of a tree, in the order given."""

    #: Weight over the sum of its siblings' weights: its target ratio.
    share: Floats
    #: Use of all that hangs below it and its own, and that over its siblings' sum.
    used: Floats
    ratio: Floats
    #: Shares multiplied down from the root: what it is entitled to of the whole.
    entitled: Floats
    #: share / ratio; infinite for who has used nothing.
    level: Floats
    #: Leaves: how many are before it. Groups: the same of the best leaf below it.
    ahead: Ints
    #: In millionths.
    factor: Ints
    leaves: int

    __hash__ = None  # type: ignore[assignment]


def fair_tree(parent: Ints, weight: Ints, used: Floats) -> Standings:
    """The standing of every node. `parent` is a row before the node's own, or -1 for the highest ones.

    Raises ValueError for a parent that does not stand before its child: so there can be no circle.
    """
    count = len(parent)
    rows = np.arange(count)
    if (parent >= rows).any() or (parent < -1).any():
        raise ValueError("every parent stands before its children")
    depth = _depths(parent)
    levels = [np.flatnonzero(depth == level) for level in range(int(depth.max(initial=-1)) + 1)]
    total = used.astype(np.float64)
    for nodes in reversed(levels[1:]):
        np.add.at(total, parent[nodes], total[nodes])
    sibling = parent + 1  # groups of siblings, numbered by their parent; 0 is the highest level
    all_weight = np.bincount(sibling, weights=weight, minlength=count + 1)[sibling]
    all_used = np.bincount(sibling, weights=total, minlength=count + 1)[sibling]
    share = np.divide(weight, all_weight, out=np.zeros(count), where=all_weight > 0)
    ratio = np.divide(total, all_used, out=np.zeros(count), where=all_used > 0)
    # share / ratio with one division: equal quotients of whole numbers are then equal to the last bit.
    level_share = np.divide(
        weight * all_used,
        all_weight * total,
        out=np.where(share > 0, np.inf, 0.0),
        where=(share > 0) & (total > 0),
    )
    entitled = share.copy()
    for nodes in levels[1:]:
        entitled[nodes] *= entitled[parent[nodes]]

    leaf = np.ones(count, dtype=np.bool_)
    leaf[parent[parent >= 0]] = False
    ahead = _places(parent, levels, level_share, leaf)
    leaves = int(leaf.sum())
    for nodes in reversed(levels[1:]):
        np.minimum.at(ahead, parent[nodes], ahead[nodes])
    factor = (leaves - ahead) * STEPS // max(leaves, 1)
    return Standings(share, total, ratio, entitled, level_share, ahead, factor, leaves)


def product_factors(standings: Standings) -> Ints:
    """By shares multiplied down the tree: entitled / (use in GPU-hours + 1.0), in millionths of the largest.

    The flat formula with the product of all normalised sibling weights as the weight. A person's own use counts, not
    that of the siblings or of the groups above.
    """
    value = flat_share(standings.entitled, standings.used / 3600)
    best = float(value.max(initial=0.0))
    factors: Ints = (value / best * STEPS).astype(np.int64) if best else np.zeros(len(value), dtype=np.int64)
    return factors


def _depths(parent: Ints) -> Ints:
    depth = np.zeros(len(parent), dtype=np.int64)
    above = parent.copy()
    while (below := above >= 0).any():
        depth[below] += 1
        above[below] = parent[above[below]]
    return depth


def _places(parent: Ints, levels: list[Ints], level_share: Floats, leaf: npt.NDArray[np.bool_]) -> Ints:
    """How many leaves are before each leaf; groups get more than any leaf can have.

    Level by level every node gets a number: its parent's number first, then the higher level fair share.
    Tied groups have the same number, so their children are numbered side by side. A leaf above the lowest
    level goes on with the number it has, before the children of a group that it ties with.
    """
    count = len(parent)
    number = np.zeros(count, dtype=np.int64)
    done = np.zeros(0, dtype=np.int64)  # leaves of higher levels
    for level, nodes in enumerate(levels):
        above = number[parent[nodes]] if level else np.zeros(len(nodes), dtype=np.int64)
        all_nodes = np.concatenate([done, nodes])
        group = np.concatenate([number[done], above])
        key = np.concatenate([np.full(len(done), -np.inf), -level_share[nodes]])
        late = np.concatenate([np.zeros(len(done), dtype=np.int64), np.ones(len(nodes), dtype=np.int64)])
        order = np.lexsort((key, late, group))
        changed = (
            (np.diff(group[order]) != 0) | (np.diff(late[order]) != 0) | (key[order][1:] != key[order][:-1])
        )
        number[all_nodes[order]] = np.concatenate([[0], np.cumsum(changed)])[: len(order)]
        done = np.concatenate([done, nodes[leaf[nodes]]])
    ahead = np.full(count, count, dtype=np.int64)
    if len(done):
        ranks, counts = np.unique(number[done], return_counts=True)
        before = np.concatenate([[0], np.cumsum(counts)[:-1]])
        ahead[done] = before[np.searchsorted(ranks, number[done])]
    return ahead


def over_share(used: Floats, full: float, soft_percent: Ints, hard_percent: Ints) -> Ints:
    """Which limit of a share each has passed: NOTHING, SOFT or HARD; a limit of 0 is none.

    The limits are percents of the whole site, over the time that counts: `full` is the use of somebody
    who holds all of it all the time.
    """
    percent = used * 100.0 / full if full > 0 else np.zeros(len(used))
    over = np.where((soft_percent > 0) & (percent >= soft_percent), SOFT, NOTHING)
    worst: Ints = np.where((hard_percent > 0) & (percent >= hard_percent), HARD, over).astype(np.int64)
    return worst
