"""Revalidate: which starts of a plan no longer hold on a fresh snapshot, by the planner's own filters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from quotas.core.resources import GPU_MILLIS
from scheduler.core.cluster.index import ClusterIndex
from scheduler.core.columns import Ints
from scheduler.core.context.cycle_context import CycleContext
from scheduler.core.context.pending_reasons import PendingReasons
from scheduler.core.placement.candidates import Candidates
from scheduler.core.placement.equivalence import JobClass
from scheduler.core.placement.filters import AffinityFilter, NodeFilter, ResourceFilter
from scheduler.core.placement.node_view import NodeView
from scheduler.core.placement.plugins import NO_PLUGINS, Plugins, resolve
from scheduler.core.plan import Decision, Fact, Placement, Plan, Start
from scheduler.core.policy import Policy
from scheduler.core.reason_codes import PRECEDENCE, ReasonCode
from scheduler.core.reasons.job_reasons import array_reasons, job_reasons
from scheduler.core.snapshot.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Conflict:
    """A start that must not be written, and why: the job goes on waiting with this reason."""

    job_id: int
    reason: ReasonCode
    facts: tuple[Fact, ...] = ()


def find_conflicts(
    plan: Plan, fresh: Snapshot, policy: Policy, plugins: Plugins = NO_PLUGINS
) -> tuple[Conflict, ...]:
    """The starts that do not hold any more, in plan order; each that holds takes its share first.

    `fresh` need not be a whole cluster: the rows of the plan's jobs, nodes, devices, queues and quota
    lines are enough. A job that is gone or whose generation moved is `NotEvaluatedYet`.
    """
    rules = resolve(policy, plugins)
    cluster = ClusterIndex(fresh)
    context = CycleContext(cluster, rules)
    blocked: dict[int, Decision] = {}
    for rows, decision in job_reasons(cluster):
        for row in rows.tolist():
            known = blocked.get(row)
            if known is None or PRECEDENCE[decision.reason] < PRECEDENCE[known.reason]:
                blocked[row] = decision
    conflicts: list[Conflict] = []
    facts = _Facts(context)
    for start in plan.starts:
        conflict = _conflict_of(start, context, blocked, facts)
        if conflict is not None:
            conflicts.append(conflict)
    return tuple(conflicts)


@dataclass(frozen=True, slots=True)
class _Gates:
    """The gates as one query meets them; a plan changes amounts, never facts."""

    closed: list[str]  # of each node the first gate on facts that is closed; "" where all are open
    room: list[tuple[str, Ints, int]]  # name, live column and need of each gate on amounts
    others: list[NodeFilter]  # what has to be asked anew every time
    usable: Sequence[bool]  # of each device


class _Facts:
    """What all starts are checked against, each looked up once."""

    def __init__(self, context: CycleContext) -> None:
        pending = context.cluster.snapshot.pending
        self._context = context
        self.reasons = PendingReasons(context)
        self.affinity = tuple(gate for gate in context.rules.gates if isinstance(gate, AffinityFilter))
        self.has_arrays = bool(pending.array_max_running.any())
        self.row_of = {number: row for row, number in enumerate(pending.id.tolist())}
        self.generation: list[int] = pending.generation.tolist()
        self.array_id: list[int] = pending.array_id.tolist()
        self.device_node: list[int] = context.cluster.devices.node.tolist()
        self._gates: dict[int, _Gates] = {}

    def gates(self, candidates: Candidates) -> _Gates:
        key = id(candidates)  # which live as long as the answers
        if key not in self._gates:
            self._gates[key] = self._meet(candidates)
        return self._gates[key]

    def _meet(self, candidates: Candidates) -> _Gates:
        workspace, query = candidates.workspace, candidates.query
        everywhere = NodeView(workspace)
        closed = [""] * len(everywhere)
        room: list[tuple[str, Ints, int]] = []
        others: list[NodeFilter] = []
        for gate in candidates.rules.gates:
            if not gate.dynamic:
                for row in np.flatnonzero(~gate.filter(query, everywhere)).tolist():
                    closed[row] = closed[row] or gate.name
            elif isinstance(gate, ResourceFilter):
                headroom = gate.free(query, workspace)
                if headroom is not None:
                    room.append((gate.name, *headroom))
            elif not isinstance(gate, AffinityFilter):
                # Where other jobs are was asked before the first task: its own do not count.
                others.append(gate)
        request = query.request
        usable = workspace.columns.gpu_features(request).usable if request.per_task.gpus else []
        return _Gates(closed, room, others, usable)


def _conflict_of(
    start: Start, context: CycleContext, blocked: dict[int, Decision], facts: _Facts
) -> Conflict | None:
    """Take this start's share, or say why it cannot have it and take nothing."""
    row = facts.row_of.get(start.job_id)
    if row is None:
        return _changed(start, "not pending any more")
    if facts.generation[row] != start.generation:
        return _changed(start, "the job was changed")
    stopped = _stopped_by(row, context, blocked, facts)
    if stopped is not None:
        return Conflict(start.job_id, stopped.reason, stopped.facts)
    job_class = context.job_classes.of(row)
    tasks, shape = len(start.placements), job_class.shape
    if tasks != shape.tasks and not shape.tasks < tasks <= shape.most:
        return _changed(start, "the job was changed")
    if tasks > shape.tasks:
        job_class = job_class._replace(shape=shape.sized(tasks))
    reasons = facts.reasons
    limits = [reasons.queue(job_class.queue_row), *reasons.quota(job_class), reasons.pool(job_class)]
    for limit in limits:
        if limit is not None:
            return Conflict(start.job_id, limit.reason, limit.facts)
    if shape.must and not _is_near(start, shape.pack, context.cluster):
        return _changed(start, "its nodes were moved")
    return _take(start, row, job_class, context, facts)


def _changed(start: Start, what: str) -> Conflict:
    return Conflict(start.job_id, ReasonCode.NOT_EVALUATED_YET, (("change", what),))


def _stopped_by(
    row: int, context: CycleContext, blocked: dict[int, Decision], facts: _Facts
) -> Decision | None:
    """What of its own stops the job now: its row, its queue, its array or its budget."""
    workspace = context.workspace
    if row in blocked:
        return blocked[row]
    for rows, decision in array_reasons(context.cluster, workspace) if facts.has_arrays else ():
        if row in rows:
            return decision
    for rows, decision in workspace.budgets.blockers() if workspace.budgets.short(row) else ():
        if row in rows:
            return decision
    return None


def _take(
    start: Start, row: int, job_class: JobClass, context: CycleContext, facts: _Facts
) -> Conflict | None:
    """Take nodes, devices and limits for every task, or nothing."""
    workspace, candidates = context.workspace, context.candidates(job_class)
    if workspace.affinity_state is not None or job_class.shape.spread is not None:
        moved = _moved(start, job_class, candidates, facts)
        if moved is not None:
            return moved
    if len(start.placements) == 1:
        # Looked at whole before anything is taken: nothing to undo.
        found = _place(start.placements[0], candidates, facts)
        if isinstance(found, _Closed):
            return Conflict(start.job_id, ReasonCode.WAITING_FOR_RESOURCES, found.facts)
        charges = context.charges_placed(job_class, start.placements)
        conflict = _short(start, job_class, charges, context, facts.reasons)
        if conflict is None:
            _hold(found, candidates)
            context.count_start(job_class, [(found.row, context.end_ms(row))])
            _count(row, job_class, charges, context, facts)
        return conflict
    with workspace.trial() as trial, context.parts.trial(trial):
        for placement in start.placements:
            found = _place(placement, candidates, facts)
            if isinstance(found, _Closed):
                return Conflict(start.job_id, ReasonCode.WAITING_FOR_RESOURCES, found.facts)
            _hold(found, candidates)
            context.count_start(job_class, [(found.row, context.end_ms(row))])
        charges = context.charges_placed(job_class, start.placements)
        conflict = _short(start, job_class, charges, context, facts.reasons)
        if conflict is not None:
            return conflict
        _count(row, job_class, charges, context, facts)
        trial.keep()
    return None


Charges = tuple[tuple[int, int], ...]


def _short(
    start: Start, job_class: JobClass, charges: Charges, context: CycleContext, reasons: PendingReasons
) -> Conflict | None:
    """Whether a quota line has too little left for the devices that it is given."""
    short = context.workspace.limits.short_quota(charges)
    no_room = reasons.quota_line(*short, job_class.payer) if short is not None else None
    return None if no_room is None else Conflict(start.job_id, no_room.reason, no_room.facts)


def _count(row: int, job_class: JobClass, charges: Charges, context: CycleContext, facts: _Facts) -> None:
    """Count the job that starts on its queue, array, quota lines, pools and budgets."""
    workspace = context.workspace
    workspace.limits.take(
        queue_row=job_class.queue_row,
        array_id=facts.array_id[row],
        charges=charges,
        request=job_class.query.request,
        tasks=job_class.shape.tasks,
    )
    workspace.budgets.take(row)


def _is_near(start: Start, level: str, cluster: ClusterIndex) -> bool:
    """Whether its nodes, as they are now, are one node, or in one rack or zone."""
    rows = [cluster.nodes.row.get(node, -1) for node in start.node_ids]
    if len(rows) == 1 or -1 in rows:
        return True  # a node that is gone is found where it is missed
    if level == "node":
        return False
    domains = {cluster.nodes.domains(level).item(row) for row in rows}
    return len(domains) == 1 and -1 not in domains


def _moved(start: Start, job_class: JobClass, candidates: Candidates, facts: _Facts) -> Conflict | None:
    """Whether its nodes are still where its rules about other jobs and its own tasks let it be."""
    workspace, spread = candidates.workspace, job_class.shape.spread
    cluster = workspace.cluster
    rows = [cluster.nodes.row[one.node_id] for one in start.placements if one.node_id in cluster.nodes.row]
    if len(rows) < len(start.placements):
        return None  # one is gone, which is said below
    if spread is not None and len(rows) > 1 and not spread.term.soft and not spread.is_kept(rows):
        return Conflict(start.job_id, ReasonCode.NOT_EVALUATED_YET, (("change", "its nodes were moved"),))
    for gate in facts.affinity:
        nodes = NodeView(workspace, np.array(sorted(set(rows)), dtype=np.int64))
        for node in np.flatnonzero(~gate.filter(candidates.query, nodes)).tolist():
            why = (("gate", gate.name), ("node", nodes.names[node]))
            return Conflict(start.job_id, ReasonCode.JOB_AFFINITY, why)
    return None


class _Closed(NamedTuple):
    """The node, and the first gate that is closed now."""

    facts: tuple[Fact, ...]


class _Place(NamedTuple):
    """Where one task goes: rows of its node and devices."""

    row: int
    devices: list[int]
    gpu_millis: int
    domain: int  # the NUMA domain that it is bound to; -1 = none


def _place(placement: Placement, candidates: Candidates, facts: _Facts) -> _Place | _Closed:
    """The place that the plan names for one task, if it can be had now."""
    workspace, request = candidates.workspace, candidates.query.request
    cluster = workspace.cluster
    workspace.sync()
    row = cluster.nodes.row.get(placement.node_id)
    if row is None:
        return _Closed((("gate", "gone"), ("node_id", placement.node_id)))
    name = cluster.snapshot.nodes.name[row]
    gates = facts.gates(candidates)
    if (closed_by := _closing_filter(gates, candidates, row)) is not None:
        return _Closed((("gate", closed_by), ("node", name)))
    wanted = request.device_millis
    room = wanted if request.shares_gpu else GPU_MILLIS  # whole devices and slices are not shared
    devices: list[int] = []
    for device_id in placement.device_ids:
        device = cluster.devices.row.get(device_id)
        if (
            device is None
            or facts.device_node[device] != row
            or not gates.usable[device]
            or not workspace.devices.has_free(device, room)
            or device in devices
        ):
            return _Closed((("device_id", device_id), ("gate", "device"), ("node", name)))
        devices.append(device)
    if len(devices) != request.per_task.gpus or placement.gpu_millis != wanted:
        return _Closed((("gate", "device"), ("node", name)))
    domain, numa = -1, candidates.numa
    if numa is not None:
        domain = cluster.numa.find(row, placement.numa)
        if not numa.fits(request, row, domain, devices):
            return _Closed((("gate", "numa"), ("node", name), ("numa", placement.numa)))
    return _Place(row, devices, wanted, domain)


def _closing_filter(gates: _Gates, candidates: Candidates, row: int) -> str | None:
    """The name of the first filter that closes a node to the query now; None when all let it through."""
    if gates.closed[row]:
        return gates.closed[row]
    for name, column, need in gates.room:
        if column.item(row) < need:
            return name
    if gates.others:
        only = NodeView(candidates.workspace, np.array([row], dtype=np.int64))
        for other in gates.others:
            if not other.filter(candidates.query, only)[0]:
                return other.name
    return None


def _hold(place: _Place, candidates: Candidates) -> None:
    query = candidates.query
    candidates.workspace.take(
        place.row, query.request.per_task, place.devices, place.gpu_millis, query.who, place.domain
    )
