"""Gang layout: the tasks of one job divided over nodes, near to each other, spread, or packed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from scheduler.core.cluster.free_columns import Floats
from scheduler.core.cluster.index import ClusterIndex
from scheduler.core.columns import Ints
from scheduler.core.placement.shape import Shape
from scheduler.core.placement.topology_spread import Spread

#: For each wish, the topology levels to try, nearest first, before any nodes of the cluster.
_PACKINGS: Final[Mapping[str, tuple[str, ...]]] = {
    "": (), "node": (), "rack": ("rack", "zone"), "zone": ("zone",),
}  # fmt: skip


def lay_out_near(
    slots: Ints, scores: Floats, shape: Shape, cluster: ClusterIndex, wish: str
) -> list[tuple[int, int]] | None:
    """Divide a job's tasks over nodes with these slots, near to each other if that is wished and can be.

    One node first; then the rack, or zone, with the fewest slots that holds it, by name among equals; then
    anywhere, unless it must be near.
    """
    anywhere = lay_out(slots, scores, shape)
    if anywhere is None or len(anywhere) == 1:
        return anywhere
    for level in (shape.pack,) if shape.must else _PACKINGS[wish]:
        if level == "node":
            continue
        domains = cluster.nodes.domains(level)
        room = domain_room(slots, shape, domains)
        for number in np.argsort(room, kind="stable").tolist():
            if room[number] >= shape.tasks:
                here = np.where(domains == number, slots, 0)
                chosen = lay_out(here, scores, shape)
                if chosen is not None:
                    return chosen
    return None if shape.must else anywhere


def fit_on(slots: Ints, shape: Shape, cluster: ClusterIndex) -> bool:
    """Whether a job's tasks fit on nodes with these slots."""
    if shape.tasks == 1:
        return bool((slots > 0).any())
    scores = np.zeros(len(slots))
    if shape.must:
        return lay_out_near(slots, scores, shape, cluster, shape.pack) is not None
    return lay_out(slots, scores, shape) is not None


def domain_room(slots: Ints, shape: Shape, domains: Ints) -> Ints:
    """How many of a job's tasks each rack or zone has slots for."""
    room = np.zeros(int(domains.max(initial=-1)) + 1, dtype=np.int64)
    known = domains >= 0
    np.add.at(room, domains[known], np.minimum(slots[known], shape.tasks))
    return room


def lay_out(slots: Ints, scores: Floats, shape: Shape) -> list[tuple[int, int]] | None:
    """Divide a job's tasks over nodes; None when they do not all fit. `slots[row]`: tasks that fit on the node now."""
    if shape.spread is not None:
        return _over_domains(slots, scores, shape, shape.spread)
    tasks, nodes, each = shape.tasks, shape.nodes, shape.tasks_per_node
    if each:
        return _equal_parts(slots, scores, tasks, each)
    if nodes:
        return _exactly(slots, scores, tasks, nodes)
    # One node for all.
    whole = np.flatnonzero(slots >= tasks)
    if len(whole):
        return [(int(whole[scores[whole].argmax()]), tasks)]
    # As few nodes as can be: the roomiest first, and the best of those that hold what is left at the end.
    rows = np.flatnonzero(slots > 0)
    if int(np.minimum(slots[rows], tasks).sum()) < tasks:
        return None
    chosen: list[tuple[int, int]] = []
    order = rows[np.lexsort((rows, -scores[rows], -slots[rows]))]
    for position, row in enumerate(order.tolist()):
        left = order[position:]
        holding = left[slots[left] >= tasks]
        if len(holding):
            fewest = holding[slots[holding] == slots[holding].min()]
            chosen.append((int(fewest[np.lexsort((fewest, -scores[fewest]))[0]]), tasks))
            break
        chosen.append((row, int(slots[row])))
        tasks -= int(slots[row])
    return chosen


def _over_domains(slots: Ints, scores: Floats, shape: Shape, spread: Spread) -> list[tuple[int, int]] | None:
    """Tasks over as few domains as the job's rule allows and hold them, as evenly as they do."""
    plain = replace(shape, spread=None)
    shares = spread.shares(np.minimum(slots, shape.tasks), shape.tasks)
    if shares is None:
        return lay_out(slots, scores, plain) if spread.term.soft else None
    chosen: list[tuple[int, int]] = []
    for domain, tasks in shares:
        here = lay_out(np.where(spread.domains == domain, slots, 0), scores, Shape(tasks))
        assert here is not None  # its nodes hold that many
        chosen.extend(here)
    return chosen


def _equal_parts(slots: Ints, scores: Floats, tasks: int, each: int) -> list[tuple[int, int]] | None:
    """`each` tasks on every node, and what is left over on one more."""
    full, rest = divmod(tasks, each)
    rows = _best_rows(np.flatnonzero(slots >= each), scores)
    if len(rows) < full:
        return None
    chosen = [(row, each) for row in rows[:full]]
    if rest:
        others = np.flatnonzero(slots >= rest)
        spare = [row for row in _best_rows(others, scores) if row not in set(rows[:full])]
        if not spare:
            return None
        chosen.append((spare[0], rest))
    return chosen


def _exactly(slots: Ints, scores: Floats, tasks: int, nodes: int) -> list[tuple[int, int]] | None:
    """At least one task on each of `shape.nodes` nodes: evenly when that fits, else the roomiest take more."""
    even, more = divmod(tasks, nodes)
    roomy = _best_rows(np.flatnonzero(slots >= even + (1 if more else 0)), scores)
    if len(roomy) >= nodes:
        return [(row, even + (1 if place < more else 0)) for place, row in enumerate(sorted(roomy[:nodes]))]
    rows = np.flatnonzero(slots > 0)
    rows = rows[np.lexsort((rows, -scores[rows], -slots[rows]))][:nodes]
    if len(rows) < nodes or int(np.minimum(slots[rows], tasks).sum()) < tasks:
        return None
    chosen: list[tuple[int, int]] = []
    for place, row in enumerate(rows.tolist()):
        count = min(int(slots[row]), tasks - (nodes - place - 1))  # leave one for each node after it
        chosen.append((row, count))
        tasks -= count
    return chosen


def _best_rows(rows: Ints, scores: Floats) -> list[int]:
    order: list[int] = rows[np.lexsort((rows, -scores[rows]))].tolist()
    return order
