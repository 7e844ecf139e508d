"""Shortfalls: why the nodes cannot take a job, never or not now, with the numbers of each filter."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from quotas.core.resources import GPU_MILLIS
from scheduler.core.cluster.index import ClusterIndex
from scheduler.core.columns import Bools, Ints
from scheduler.core.placement.binding import choose_nodes
from scheduler.core.placement.candidates import Candidates
from scheduler.core.placement.filters import FilterQuery, ResourceFilter, StaticFilter, task_slots
from scheduler.core.placement.gang_layout import domain_room, fit_on
from scheduler.core.placement.plugins import Rules
from scheduler.core.placement.shape import Shape
from scheduler.core.placement.topology_spread import Spread
from scheduler.core.plan import Decision, Facts, FilterCount, decide, sorted_facts
from scheduler.core.reason_codes import ReasonCode
from scheduler.core.reasons.numa_fit import GATE as NUMA_GATE
from scheduler.core.reasons.numa_fit import never_fits_one_domain, spans_domains_now

#: Allocations looked at before all of them, to say how much ends by when.
_FIRST_ENDS: Final = 512


def never_fits(candidates: Candidates, shape: Shape, rules: Rules) -> Decision | None:
    """What makes a request impossible on this cluster even when all of it is idle and open."""
    query, cluster, workspace = candidates.query, candidates.workspace.cluster, candidates.workspace
    if not shape.is_possible:
        return decide(
            ReasonCode.INVALID_SPEC,
            kind="shape",
            tasks=shape.tasks,
            nodes=shape.nodes,
            tasks_per_node=shape.tasks_per_node,
        )
    short = workspace.limits.short_pool(query.request, shape.tasks)
    if short is not None and short[1] > short[3]:
        return decide(
            ReasonCode.INVALID_SPEC, kind="total", resource=short[0], needs=short[1], total=short[3]
        )
    if shape.tasks == 1 and candidates.is_possible:
        return None
    slots, allowed = candidates.capacity
    if not allowed.any():
        return _no_matching_node(candidates, rules)
    if fit_on(slots, shape, cluster):
        return None
    rooms = _capacities(query, cluster, rules)
    counts = filter_counts(candidates)
    crosses = never_fits_one_domain(candidates, shape)
    if crosses is not None:
        return _with_gates(ReasonCode.INVALID_SPEC, crosses | {"kind": "numa"}, cluster, counts)
    facts: Facts
    if not slots.any():
        for name, column, need in rooms:
            largest = int(column[allowed].max())
            if need > largest:
                facts = {"kind": "node", "resource": name, "needs": need, "largest": largest}
                return _with_gates(ReasonCode.INVALID_SPEC, facts, cluster, counts)
        return _with_gates(ReasonCode.NO_MATCHING_NODE, {"gate": "combination"}, cluster, counts)
    for name, column, need in rooms:
        total = int(column[allowed].sum())
        if need * shape.tasks > total:
            facts = {"kind": "total", "resource": name, "needs": need * shape.tasks, "total": total}
            return _with_gates(ReasonCode.INVALID_SPEC, facts, cluster, counts)
    if shape.must and fit_on(slots, replace(shape, must=False), cluster):
        facts = {"kind": shape.pack, "resource": "tasks", **_nearest(slots, shape, cluster)}
        return _with_gates(ReasonCode.INVALID_SPEC, facts, cluster, counts)
    if shape.spread is not None and fit_on(slots, replace(shape, spread=None), cluster):
        rooms_in = shape.spread.capacities(np.minimum(slots, shape.tasks))
        facts = _spread_facts(shape.spread, int((rooms_in > 0).sum()))
        return _with_gates(ReasonCode.INVALID_SPEC, facts, cluster, counts)
    facts = {"kind": "total", "resource": "tasks", "needs": shape.tasks,
             "total": int(np.minimum(slots, shape.tasks).sum()), "nodes_wanted": shape.nodes,
             "tasks_per_node": shape.tasks_per_node}  # fmt: skip
    return _with_gates(ReasonCode.INVALID_SPEC, facts, cluster, counts)


def not_now(candidates: Candidates, shape: Shape, rules: Rules) -> Decision | None:
    """Which of the passing conditions keeps a request that is possible from its nodes; None = nothing."""
    if choose_nodes(candidates, shape) is not None:
        return None
    query, workspace = candidates.query, candidates.workspace
    cluster = workspace.cluster
    counts = filter_counts(candidates)
    suitable = candidates.suitable
    opened = candidates.opened
    for name, keep in candidates.filters.each_now() if candidates.filters.asks_outside else ():
        if name not in candidates.filters.facts and name not in candidates.filters.rooms:
            opened = opened & keep  # an outside gate

    if "reserved" in candidates.filters.facts:
        slots = task_slots(query, workspace, candidates.filters.passing(without="reserved"), rules.gates)
        held = cluster.nodes.reserved(query.reservation_rows) & (slots > 0)
        if held.any() and fit_on(slots, shape, cluster):
            facts = _reservation_facts(query, cluster, held)
            return _with_gates(ReasonCode.RESERVATION, facts, cluster, counts)

    affinity = _company_facts(candidates, shape, rules)
    if affinity is not None:
        return _with_gates(ReasonCode.JOB_AFFINITY, affinity, cluster, counts)

    if not (candidates.is_possible if cluster.nodes.all_up else (suitable & cluster.nodes.is_up).any()):
        silent = int(suitable.sum())
        return _with_gates(ReasonCode.AGENT_UNREACHABLE, {"unreachable": silent}, cluster, counts)

    crosses = spans_domains_now(candidates, shape)
    if crosses is not None:
        return _with_gates(ReasonCode.TOPOLOGY_FRAGMENTED, crosses, cluster, counts)

    for name, column, need in _frees(candidates):
        free = workspace.answers.sum_over(column, opened)
        if need * shape.tasks > free:
            facts = _resource_facts(
                candidates, name, needs=need * shape.tasks, free=free, opened=opened, suitable=suitable
            )
            return _with_gates(ReasonCode.WAITING_FOR_RESOURCES, facts, cluster, counts)
    if shape.must:
        slots = candidates.slots()
        if fit_on(slots, replace(shape, must=False), cluster):
            # Enough in all, but nowhere near enough to each other.
            facts = {"pack": shape.pack, "resource": "tasks", **_nearest(slots, shape, cluster)}
            return _with_gates(ReasonCode.TOPOLOGY_FRAGMENTED, facts, cluster, counts)
    rooms, rows = list(_frees(candidates)), np.flatnonzero(opened)
    if rooms and len(rows):
        # Enough in all, but in pieces: name the resource that splits worst, the first among equals.
        fitting = [
            (int((column[rows] >= need).sum()), place) for place, (_, column, need) in enumerate(rooms)
        ]
        name, column, need = rooms[min(fitting)[1]]
        facts = {
            "resource": name,
            "needs": need * shape.tasks,
            "per_task": need,
            "free": int(np.maximum(column[rows], 0).sum()),
            "largest": int(column[rows].max()),
        }
        return _with_gates(ReasonCode.TOPOLOGY_FRAGMENTED, facts, cluster, counts)
    # Nothing is measured, or every node is closed: say how many nodes are, the counts say why.
    facts = {
        "resource": "nodes",
        "needs": max(shape.nodes, 1),
        "free": len(rows),
        "total": int(suitable.sum()),
    }
    return _with_gates(ReasonCode.WAITING_FOR_RESOURCES, facts, cluster, counts)


def _nearest(slots: Ints, shape: Shape, cluster: ClusterIndex) -> Facts:
    """How many tasks the roomiest node, rack or zone holds, and all of them together."""
    taken = np.minimum(slots, shape.tasks)
    if shape.pack == "node":
        most = int(taken.max(initial=0))
    else:
        room = domain_room(slots, shape, cluster.nodes.domains(shape.pack))
        most = max(int(room.max(initial=0)), int(taken.max(initial=0)))
    return {"needs": shape.tasks, "largest": min(most, shape.tasks), "free": int(taken.sum())}


def _spread_facts(spread: Spread, domains: int) -> Facts:
    term = spread.term
    return {"kind": "spread", "topology": term.topology, "least": term.least, "most": term.most,
            "per_domain": term.per_domain, "domains": domains}  # fmt: skip


def _company_facts(candidates: Candidates, shape: Shape, rules: Rules) -> Facts | None:
    """What other jobs, or the spread of its own tasks, have to do with it; None when that is not what lacks."""
    query, workspace = candidates.query, candidates.workspace
    affinity_state, spread = workspace.affinity_state, shape.spread
    bound = affinity_state is not None and affinity_state.affinity.is_bound(query.who)
    if not bound and spread is None:
        return None
    slots = np.minimum(task_slots(query, workspace, candidates.filters.passing(), rules.gates), shape.tasks)
    if not fit_on(slots, replace(shape, spread=None), workspace.cluster):
        return None
    if spread is not None and not spread.term.soft and spread.shares(slots, shape.tasks) is None:
        return _spread_facts(spread, int((spread.capacities(slots) > 0).sum()))
    if affinity_state is None or not bound:
        return None
    room = slots > 0
    # The rule that leaves the fewest nodes that would have room, the first among equals.
    rules_of = list(affinity_state.refusals(query.who))
    kind, like, topology, met = min(rules_of, key=lambda one: int((one[3] & room).sum()))
    left = room & (affinity_state.open(query.who) > 0)
    return {"kind": kind, "jobs": affinity_state.affinity.likes[like].words, "topology": topology,
            "tasks": affinity_state.tasks_of(like), "open": int((met & room).sum()), "room": int(room.sum()),
            "left": int(left.sum())}  # fmt: skip


def filter_counts(candidates: Candidates) -> tuple[FilterCount, ...]:
    """For each gate that turns a node away: how many it is the first to turn away, and how many in all."""
    nodes = candidates.workspace.cluster.node_count
    left: Bools | None = None
    reached = nodes
    counts: list[FilterCount] = []
    for name, keep in candidates.filters.each_now():
        alone = nodes - int(np.count_nonzero(keep))
        if alone:
            left = keep if left is None else left & keep
            passed = int(np.count_nonzero(left))
            counts.append(FilterCount(name, first=reached - passed, alone=alone))
            reached = passed
    return tuple(counts)


def _no_matching_node(candidates: Candidates, rules: Rules) -> Decision:
    """No node passes the permanent gates: name the one that turns most away, and what it was asked for."""
    query, cluster = candidates.query, candidates.workspace.cluster
    request = query.request
    counts = filter_counts(candidates)
    permanent = {gate.name for gate in rules.gates if isinstance(gate, StaticFilter) and gate.permanent}
    worst = max((c for c in counts if c.gate in permanent), key=lambda count: count.alone, default=None)
    facts: Facts = {"gate": worst.gate if worst else "none"}
    if worst is not None and worst.gate == "gpu_model":
        facts["wanted"] = request.gpu_model
        if request.gpu_memory_mib:
            facts["gpu_memory_mib"] = request.gpu_memory_mib
    elif worst is not None and worst.gate == "labels":
        facts["wanted"] = ", ".join(f"{key}={value}" for key, value in request.node_selector)
    return _with_gates(ReasonCode.NO_MATCHING_NODE, facts, cluster, counts)


def _reservation_facts(query: FilterQuery, cluster: ClusterIndex, held: Bools) -> Facts:
    """Of the reservations that hold some of these nodes, the one that ends last.

    Named only where it has no owner, as maintenance: a reader of this job may not know of the owner's reservation.
    """
    reservations = cluster.snapshot.reservations
    there = [row for row in query.reservation_rows if (cluster.nodes.reserved((row,)) & held).any()]
    row = max(there, key=lambda row: (int(reservations.ends_ms[row]), -row))
    owned = reservations.project_ids[row] or reservations.user_ids[row] or reservations.job_ids[row]
    return {
        "reservation": "" if owned else reservations.name[row],
        "starts_ms": int(reservations.starts_ms[row]),
        "ends_ms": int(reservations.ends_ms[row]),
        "reserved_nodes": int(held.sum()),
    }


def _resource_facts(
    candidates: Candidates, name: str, *, needs: int, free: int, opened: Bools, suitable: Bools
) -> Facts:
    """Needed, free now, there in all, and how much of it ends by when."""
    query, cluster = candidates.query, candidates.workspace.cluster
    facts: Facts = {"resource": name, "needs": needs, "free": free}
    if name in {"gpus", "gpu_millis"} and query.request.gpu_model:
        facts["gpu_model"] = query.request.gpu_model
    total, amounts = cluster.amounts(name, query.request.gpu_model, query.request.gpu_memory_mib)
    facts["total"] = cluster.answers.sum_over(total, suitable)
    every = len(cluster.allocations.ending[0])
    for count in (_FIRST_ENDS, every):  # the first ends are mostly enough
        rows, running = cluster.allocations.released(opened, amounts, count)
        last = int(running.searchsorted(needs - free))
        if last < len(rows) or count >= every:
            break
    if len(rows) and running[-1]:
        last = min(last, int(running.searchsorted(running[-1])))  # all that ends is not enough
        facts["ending"] = int(running[last])
        facts["ending_by_ms"] = max(int(cluster.allocations.end_ms[rows[last]]), cluster.snapshot.now_ms)
    return facts


def _frees(candidates: Candidates) -> Iterator[tuple[str, Ints, int]]:
    """Every measured resource: what each node has free, and what a task needs."""
    request, workspace = candidates.query.request, candidates.workspace
    for name, (column, need) in candidates.filters.rooms.items():
        if name == NUMA_GATE:
            continue  # no amount of its own
        if name == "gpus" and request.shares_gpu:
            yield "gpu_millis", workspace.shares_left(request.gpu_model, request.gpu_memory_mib), need
        else:
            yield name, column, need


def _capacities(query: FilterQuery, cluster: ClusterIndex, rules: Rules) -> list[tuple[str, Ints, int]]:
    """Every measured resource: what each node has in all, and what a task needs."""
    found: list[tuple[str, Ints, int]] = []
    for gate in rules.gates:
        if isinstance(gate, ResourceFilter) and (headroom := gate.capacity(query, cluster)) is not None:
            if gate.name == NUMA_GATE:
                continue
            if gate.name == "gpus" and query.request.shares_gpu:
                found.append(("gpu_millis", headroom[0] * GPU_MILLIS, query.request.per_task.gpu_millis))
            else:
                found.append((gate.name, *headroom))
    return found


def _with_gates(
    reason: ReasonCode, facts: Facts, cluster: ClusterIndex, counts: tuple[FilterCount, ...]
) -> Decision:
    return Decision(reason, facts=sorted_facts(facts), nodes=cluster.node_count, gates=counts)
