"""Binding: nodes chosen for a whole job, and its tasks bound to nodes, devices and NUMA domains."""

from __future__ import annotations

from collections.abc import Callable

from scheduler.core.cluster.index import ClusterIndex
from scheduler.core.columns import Ints
from scheduler.core.placement.candidates import Candidates
from scheduler.core.placement.gang_layout import fit_on, lay_out_near
from scheduler.core.placement.shape import Shape
from scheduler.core.plan import Placement


def choose_nodes(candidates: Candidates, shape: Shape) -> list[tuple[int, int]] | None:
    """(node row, tasks on it) for a whole job, by row; None when it does not fit whole.

    One node when one can take all, else as few as can be, the last one the tightest that holds the rest.
    """
    if candidates.failed and shape in candidates.failed:
        return None
    chosen: list[tuple[int, int]] | None = None
    if shape.tasks == 1 and shape.nodes <= 1:
        row = candidates.best()
        if row >= 0:
            return [(row, 1)]
    elif not shape.is_possible:
        return None
    else:
        chosen = _packed(candidates, candidates.slots(), shape)
    if chosen is None:
        if not candidates.may_open:
            candidates.failed.add(shape)
        return None
    return sorted(chosen) if len(chosen) > 1 else chosen


def _packed(candidates: Candidates, slots: Ints, shape: Shape) -> list[tuple[int, int]] | None:
    """Divide a job's tasks, near to each other as it must, or wishes, or else as the policy wishes."""
    cluster, wish = candidates.workspace.cluster, candidates.rules.packing
    return lay_out_near(slots, candidates.scores, shape, cluster, shape.pack or wish)


def choose_largest(candidates: Candidates, shape: Shape, most: int) -> list[tuple[int, int]] | None:
    """`choose_nodes` for as many tasks as fit, at most `most`; None when too few do."""
    least = choose_nodes(candidates, shape)
    if least is None or most <= shape.tasks:
        return least
    slots, cluster = candidates.slots(), candidates.workspace.cluster
    fits = largest(shape.tasks, most, lambda tasks: _fits_sized(slots, shape.sized(tasks), cluster))
    return choose_nodes(candidates, shape.sized(fits)) or least


def _fits_sized(slots: Ints, shape: Shape, cluster: ClusterIndex) -> bool:
    return shape.is_possible and fit_on(slots, shape, cluster)


def largest(least: int, most: int, fits: Callable[[int], bool]) -> int:
    """The largest number that fits, where the least does and whatever fits at more fits at less."""
    while least < most:
        middle = (least + most + 1) // 2
        least, most = (middle, most) if fits(middle) else (least, middle - 1)
    return least


#: (node row, rows of its devices, row of the NUMA domain that it is bound to or -1) of a task.
BoundTask = tuple[int, list[int], int]


def bind_tasks(
    candidates: Candidates, chosen: list[tuple[int, int]]
) -> tuple[tuple[Placement, ...], list[BoundTask]]:
    """Hand out nodes and devices to every task, in rank order, from the workspace: by ids, and by rows."""
    workspace, query, numa, millis = (
        candidates.workspace, candidates.query, candidates.numa, candidates.millis,
    )  # fmt: skip
    cluster, per_task, who = workspace.cluster, query.request.per_task, query.who
    index, node_ids = cluster.devices, cluster.nodes.ids
    seats: list[BoundTask] = []
    placements: list[Placement] = []
    for row, count in chosen:
        node_id = node_ids[row]
        for _ in range(count):
            domain = -1 if numa is None else numa.pick(query.request, row)
            devices = candidates.pick_devices(row, domain) if millis else []
            workspace.take(row, per_task, devices, millis, who, domain)
            ids: tuple[int, ...] = ()
            number = cluster.numa.number[domain] if domain >= 0 else -1
            if len(devices) == 1:
                ids = (index.ids[devices[0]],)
                number = index.numa_numbers[devices[0]]
            elif devices:
                ids = tuple([index.ids[device] for device in devices])
                number = index.numa_of(devices)
            placements.append(Placement(len(seats), node_id, ids, millis, number))
            seats.append((row, devices, domain))
    return tuple(placements), seats
