"""Room now: the nodes that could take a whole job at this moment, if it were the only one in line."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from quotas.core.resources import Resources
from scheduler.core.cluster.index import ClusterIndex
from scheduler.core.context.cycle_context import CycleContext
from scheduler.core.placement.binding import bind_tasks, choose_nodes
from scheduler.core.placement.plugins import NO_PLUGINS, Plugins, resolve
from scheduler.core.plan import Placement
from scheduler.core.policy import Policy
from scheduler.core.snapshot.snapshot import GROUPS, Part, Snapshot


@dataclass(frozen=True, slots=True)
class RoomNow:
    """The nodes for all tasks of a job, none when not all fit now; and how many tasks there is room for."""

    node_ids: tuple[int, ...]
    tasks: int
    #: What the tasks would hold of each node.
    parts: tuple[Part, ...] = field(default=(), compare=False)


def room_now(
    snapshot: Snapshot,
    policy: Policy,
    job_id: int,
    *,
    tasks: int,
    node_ids: Collection[int],
    plugins: Plugins = NO_PLUGINS,
) -> RoomNow:
    """Choose nodes for `tasks` tasks of a pending job, among `node_ids`, as a cycle chooses them.

    Use and reservations count; other pending jobs and limits do not. Raises KeyError for a job that is
    not pending in the snapshot.
    """
    context = CycleContext(ClusterIndex(_only_on(snapshot, node_ids)), resolve(policy, plugins))
    job_class = context.job_classes.of(snapshot.job_row(job_id))
    candidates, shape = context.whole_candidates(job_class), job_class.shape.sized(tasks)
    room = int(np.minimum(candidates.slots(), tasks).sum())
    chosen = choose_nodes(candidates, shape)
    ids = [] if chosen is None else [context.cluster.nodes.ids[row] for row, _ in chosen]
    if chosen is None:
        return RoomNow((), min(room, tasks))
    placements, _ = bind_tasks(candidates, chosen)
    return RoomNow(tuple(sorted(ids)), min(room, tasks), _parts(placements, job_class.query.request.per_task))


def _parts(placements: Iterable[Placement], per_task: Resources) -> tuple[Part, ...]:
    found: dict[int, Part] = {}
    for placement in placements:
        _, cpu, memory, devices = found.get(placement.node_id, (0, 0, 0, ()))
        found[placement.node_id] = (
            placement.node_id, cpu + per_task.cpu_millis, memory + per_task.memory_mib,
            tuple(sorted({*devices, *placement.device_ids})),
        )  # fmt: skip
    return tuple(found[node] for node in sorted(found))


def _only_on(snapshot: Snapshot, node_ids: Collection[int]) -> Snapshot:
    """The same with every other node cordoned."""
    nodes = snapshot.nodes
    others = ~np.isin(nodes.id, np.array(sorted(node_ids), dtype=np.int64))
    groups = {name: getattr(snapshot, name) for name in GROUPS}
    groups["nodes"] = replace(nodes, cordoned=nodes.cordoned | others)
    return Snapshot.build(now_ms=snapshot.now_ms, classes=snapshot.classes, **groups)
