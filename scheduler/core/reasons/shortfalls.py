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
from scheduler.core.placement.filters import (
    FilterQuery,
    ResourceFilter,
    StaticFilter,
    capacity_slots,
    slots_by_amount,
    slots_by_capacity,
    task_slots,
)
from scheduler.core.placement.gang_layout import domain_room, fit_on
from scheduler.core.placement.plugins import Rules
from scheduler.core.placement.shape import Shape
from scheduler.core.placement.topology_spread import Spread
from scheduler.core.plan import Decision, Facts, FilterCount, decide, sorted_facts
from scheduler.core.reason_codes import ReasonCode
from scheduler.core.reasons.closed_nodes import LASTING, closed_always, closed_beside, closed_now
from scheduler.core.reasons.numa_fit import GATE as NUMA_GATE
from scheduler.core.reasons.numa_fit import never_fits_one_domain, spans_domains_now

#: Allocations looked at before all of them, to say how much ends by when.
_FIRST_ENDS: Final = 512


#: A reason and its numbers.
_Shortfall = tuple[ReasonCode, Facts]


def never_fits(candidates: Candidates, shape: Shape, rules: Rules) -> Decision | None:
    """What makes a request impossible on this cluster even when all of it is idle and open."""
    query, workspace = candidates.query, candidates.workspace
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
    if fit_on(candidates.capacity[0], shape, workspace.cluster):
        return None
    counts = filter_counts(candidates)
    closed = closed_always(candidates, shape)
    if closed is not None:
        return _with_gates(ReasonCode.NODES_UNAVAILABLE, closed, workspace.cluster, counts)
    slots, allowed = capacity_slots(query, workspace.cluster, rules.gates, without=LASTING)
    if not allowed.any():
        return _no_matching_node(candidates, rules, counts)
    if (spans := never_fits_one_domain(candidates, shape, without=LASTING)) is not None:
        reason, facts = ReasonCode.INVALID_SPEC, spans | {"kind": "numa"}
    elif not slots.any():
        reason, facts = _no_node_is_large_enough(candidates, rules, allowed)
    else:
        reason, facts = ReasonCode.INVALID_SPEC, _too_large_in_all(candidates, shape, rules, slots, allowed)
    return _with_gates(reason, facts, workspace.cluster, counts)


def _no_node_is_large_enough(candidates: Candidates, rules: Rules, allowed: Bools) -> _Shortfall:
    """The first amount that no single node has; each may be had somewhere, but not all on one node."""
    for name, column, need in _capacities(candidates.query, candidates.workspace.cluster, rules):
        largest = int(column[allowed].max())
        if need > largest:
            facts: Facts = {"kind": "node", "resource": name, "needs": need, "largest": largest}
            return ReasonCode.INVALID_SPEC, facts
    return ReasonCode.NO_MATCHING_NODE, {"gate": "combination"}


def _too_large_in_all(
    candidates: Candidates, shape: Shape, rules: Rules, slots: Ints, allowed: Bools
) -> Facts:
    """Why tasks that fit one by one never fit together: amounts, distance, spread, or places for tasks."""
    cluster = candidates.workspace.cluster
    for name, column, need in _capacities(candidates.query, cluster, rules):
        total = int(column[allowed].sum())
        if need * shape.tasks > total:
            return {"kind": "total", "resource": name, "needs": need * shape.tasks, "total": total}
    if shape.must and fit_on(slots, replace(shape, must=False), cluster):
        return {"kind": shape.pack, "resource": "tasks", **_nearest(slots, shape, cluster)}
    if shape.spread is not None and fit_on(slots, replace(shape, spread=None), cluster):
        rooms_in = shape.spread.capacities(np.minimum(slots, shape.tasks))
        return _spread_facts(shape.spread, int((rooms_in > 0).sum()))
    return {
        "kind": "total",
        "resource": "tasks",
        "needs": shape.tasks,
        "total": int(np.minimum(slots, shape.tasks).sum()),
        "nodes_wanted": shape.nodes,
        "tasks_per_node": shape.tasks_per_node,
    }


def not_now(candidates: Candidates, shape: Shape, rules: Rules) -> Decision | None:
    """Which of the passing conditions keeps a request that is possible from its nodes; None = nothing."""
    if choose_nodes(candidates, shape) is not None:
        return None
    counts = filter_counts(candidates)
    reason, facts = _first_shortfall(candidates, shape, rules)
    if "gates" not in facts and reason in (ReasonCode.WAITING_FOR_RESOURCES, ReasonCode.TOPOLOGY_FRAGMENTED):
        facts |= closed_beside(candidates, shape)
    return _with_gates(reason, facts, candidates.workspace.cluster, counts)


def _first_shortfall(candidates: Candidates, shape: Shape, rules: Rules) -> _Shortfall:
    """Conditions in the order in which people can act on them; the last one always holds."""
    opened = _opened_now(candidates)
    return (
        _held_by_reservations(candidates, shape, rules)
        or _held_in_part(candidates, shape, rules)
        or _away_from_other_jobs(candidates, shape, rules)
        or _unreachable(candidates)
        or _closed(candidates, shape, opened)
        or _spanning_domains(candidates, shape)
        or too_little_free(candidates, shape, opened)
        or _too_far_apart(candidates, shape)
        or _in_pieces(candidates, shape, opened)
        or _closed_nodes(candidates, shape, opened)
    )


def _opened_now(candidates: Candidates) -> Bools:
    """Suitable nodes that static filters, other jobs and plugins let through."""
    filters, opened = candidates.filters, candidates.opened
    for name, keep in filters.each_now() if filters.asks_outside else ():
        if name not in filters.facts and name not in filters.rooms:
            opened = opened & keep
    return opened


def _held_by_reservations(candidates: Candidates, shape: Shape, rules: Rules) -> _Shortfall | None:
    query, workspace = candidates.query, candidates.workspace
    if "reserved" not in candidates.filters.facts:
        return None
    slots = task_slots(query, workspace, candidates.filters.passing(without="reserved"), rules.gates)
    held = workspace.cluster.nodes.reserved(query.reservation_rows) & (slots > 0)
    if not held.any() or not fit_on(slots, shape, workspace.cluster):
        return None
    return ReasonCode.RESERVATION, _reservation_facts(query, workspace.cluster, held)


def _held_in_part(candidates: Candidates, shape: Shape, rules: Rules) -> _Shortfall | None:
    """Parts of nodes are reserved, without which the job would fit."""
    query, workspace = candidates.query, candidates.workspace
    everything = workspace.unreserved
    if everything is workspace or query.inside >= 0:
        return None
    passing = candidates.filters.passing()
    slots = task_slots(query, everything, passing, rules.gates)
    held = slots > task_slots(query, workspace, passing, rules.gates)
    if not held.any() or not fit_on(slots, shape, workspace.cluster):
        return None
    facts = _reservation_facts(query, workspace.cluster, held)
    node = workspace.cluster.snapshot.nodes.name[int(held.argmax())]
    return ReasonCode.RESERVATION, facts | {"in_part": 1, "node": node}


def _away_from_other_jobs(candidates: Candidates, shape: Shape, rules: Rules) -> _Shortfall | None:
    facts = _company_facts(candidates, shape, rules)
    return None if facts is None else (ReasonCode.JOB_AFFINITY, facts)


def _unreachable(candidates: Candidates) -> _Shortfall | None:
    nodes, suitable = candidates.workspace.cluster.nodes, candidates.suitable
    nodes_of = candidates.workspace.cluster.snapshot.nodes
    if candidates.is_possible if nodes.all_up else (suitable & nodes.is_up).any():
        return None
    count, first = int(suitable.sum()), int(suitable.argmax())
    return ReasonCode.AGENT_UNREACHABLE, {"unreachable": count, "node": nodes_of.name[first]}


def _closed(candidates: Candidates, shape: Shape, opened: Bools) -> _Shortfall | None:
    """The open nodes could not hold the job even idle: what closes the others."""
    found = closed_now(candidates, shape, opened)
    if found is None:
        return None
    opening, facts = found
    apart = _too_far_apart(candidates, shape)
    if apart is not None:
        return apart[0], apart[1] | facts  # enough fits now, but not near to each other: both are ways out
    if opening.gates == ("reserved",):
        query, cluster = candidates.query, candidates.workspace.cluster
        if all(cluster.snapshot.reservations.id.item(row) < 0 for row in query.reservation_rows):
            return None  # gangs gather nodes that are in use: `gathering_id`
        return ReasonCode.RESERVATION, _reservation_facts(query, cluster, opening.nodes)
    return ReasonCode.WAITING_FOR_RESOURCES, facts


def _spanning_domains(candidates: Candidates, shape: Shape) -> _Shortfall | None:
    facts = spans_domains_now(candidates, shape)
    return None if facts is None else (ReasonCode.TOPOLOGY_FRAGMENTED, facts)


def too_little_free(candidates: Candidates, shape: Shape, opened: Bools) -> _Shortfall | None:
    """The first resource of which all open nodes together have too little free."""
    for name, column, need in _frees(candidates):
        free = candidates.workspace.answers.sum_over(column, opened)
        if need * shape.tasks > free:
            facts = _resource_facts(
                candidates,
                name,
                needs=need * shape.tasks,
                free=free,
                opened=opened,
                suitable=candidates.suitable,
            )
            return ReasonCode.WAITING_FOR_RESOURCES, facts
    return None


def _too_far_apart(candidates: Candidates, shape: Shape) -> _Shortfall | None:
    """Enough in all, but nowhere near enough to each other."""
    if not shape.must:
        return None
    slots, cluster = candidates.slots(), candidates.workspace.cluster
    if not fit_on(slots, replace(shape, must=False), cluster):
        return None
    facts: Facts = {"pack": shape.pack, "resource": "tasks", **_nearest(slots, shape, cluster)}
    return ReasonCode.TOPOLOGY_FRAGMENTED, facts


def _in_pieces(candidates: Candidates, shape: Shape, opened: Bools) -> _Shortfall | None:
    """Enough in all, but in pieces: name a resource of which no node has enough for a task.

    Where there is none, the one that would let the most tasks in were all of it free; among equals the one that splits
    worst, then the first.
    """
    rooms, rows = list(_frees(candidates)), np.flatnonzero(opened)
    if not rooms or not len(rows):
        return None
    fitting: list[tuple[int, ...]] = [
        (int((column[rows] >= need).sum()), place) for place, (_, column, need) in enumerate(rooms)
    ]
    if (
        len(rooms) > 1 and min(fitting)[0] > 0
    ):  # each is to be had on some node: not all on one, or too few times
        gains = _tasks_once_free(candidates, shape, rows)
        names = ("gpus" if name == "gpu_millis" else name for name, _, _ in rooms)
        fitting = [(-gains.get(name, 0), *key) for name, key in zip(names, fitting, strict=True)]
    name, column, need = rooms[min(fitting)[-1]]
    return ReasonCode.TOPOLOGY_FRAGMENTED, {
        "resource": name,
        "needs": need * shape.tasks,
        "per_task": need,
        "free": int(np.maximum(column[rows], 0).sum()),
        "largest": int(column[rows].max()),
    }


def _tasks_once_free(candidates: Candidates, shape: Shape, rows: Ints) -> dict[str, int]:
    """By filter of an amount: how many tasks these nodes would take if all of that amount were free."""
    query, workspace = candidates.query, candidates.workspace
    now: dict[str, Ints] = {}
    idle: dict[str, Ints] = {}
    for gate in candidates.rules.rooms:
        free = slots_by_amount(query, workspace, gate)
        whole = slots_by_capacity(query, workspace.cluster, gate)
        if free is not None and whole is not None:
            now[gate.name], idle[gate.name] = np.minimum(free, shape.tasks)[rows], whole[rows]
    return {
        name: int(
            np.maximum(np.minimum.reduce([*(now[one] for one in now if one != name), idle[name]]), 0)
            .clip(max=shape.tasks)
            .sum()
        )
        for name in now
    }


def _closed_nodes(candidates: Candidates, shape: Shape, opened: Bools) -> _Shortfall:
    """Nothing is measured, or every node is closed: say how many nodes are, the counts say why."""
    return ReasonCode.WAITING_FOR_RESOURCES, {
        "resource": "nodes",
        "needs": max(shape.nodes, 1),
        "free": int(np.count_nonzero(opened)),
        "total": int(candidates.suitable.sum()),
    }


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
    return {"kind": kind, "jobs": affinity_state.affinity.selectors[like].words, "topology": topology,
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


def _no_matching_node(candidates: Candidates, rules: Rules, counts: tuple[FilterCount, ...]) -> Decision:
    """No machine is of the kind: name the filter that turns most away, and what it was asked for."""
    request, cluster = candidates.query.request, candidates.workspace.cluster
    hardware = {
        gate.name
        for gate in rules.gates
        if isinstance(gate, StaticFilter) and gate.permanent and gate.name not in LASTING
    }
    worst = max((c for c in counts if c.gate in hardware), key=lambda count: count.alone, default=None)
    facts: Facts = {"gate": worst.gate if worst else "none"}
    if worst is not None and worst.gate == "gpu_model":
        facts["wanted"] = request.gpu_model
        if request.gpu_memory_mib:
            facts["gpu_memory_mib"] = request.gpu_memory_mib
    return _with_gates(ReasonCode.NO_MATCHING_NODE, facts, cluster, counts)


def _reservation_facts(query: FilterQuery, cluster: ClusterIndex, held: Bools) -> Facts:
    """Of the reservations that hold some of these nodes, the one that ends last.

    Named only where it has no owner, as maintenance: a reader of this job may not know of the owner's reservation.
    """
    reservations = cluster.snapshot.reservations
    nodes = cluster.nodes
    there = [
        row
        for row in query.reservation_rows
        if ((nodes.reserved((row,)) | nodes.reserved_in_part((row,))) & held).any()
    ]
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
    if query.inside >= 0:
        return facts  # what ends beside the reservation gives its jobs nothing
    every = len(cluster.allocations.ending[0])
    for count in (_FIRST_ENDS, every):  # the first ends are mostly enough
        rows, running = cluster.allocations.released(opened, amounts, count)
        last = int(running.searchsorted(needs - free))
        if last < len(rows) or count >= every:
            break
    if len(rows) and running[-1]:
        last = min(last, int(running.searchsorted(running[-1])))  # all that ends is not enough
        # An end that is only expected moves with every run: to say it would write the reason of all that wait anew.
        if cluster.allocations.has_limit[rows[: last + 1]].all():
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
