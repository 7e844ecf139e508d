"""Conflicts: which starts of a plan no longer hold on a fresh snapshot, by the planner's own predicates."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from quotas.core.resources import GPU_MILLIS
from scheduler.core.blockers import Answers, array_blockers, own_blockers
from scheduler.core.columns import rows_of
from scheduler.core.feasibility import JobsGate, NodeFilter
from scheduler.core.groups import Group
from scheduler.core.placement import Candidates
from scheduler.core.plan import Decision, Fact, Placement, Plan, Start
from scheduler.core.plugins import NO_PLUGINS, Plugins, Rules, resolve
from scheduler.core.policy import Policy
from scheduler.core.reasons import PRECEDENCE, ReasonCode
from scheduler.core.snapshot import Snapshot
from scheduler.core.workspace import NodeView
from scheduler.core.world import World


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
    world = World(fresh)
    answers = Answers(world, rules)
    blocked: dict[int, Decision] = {}
    for rows, decision in own_blockers(world):
        for row in rows.tolist():
            known = blocked.get(row)
            if known is None or PRECEDENCE[decision.reason] < PRECEDENCE[known.reason]:
                blocked[row] = decision
    conflicts: list[Conflict] = []
    facts = _Facts(rules, world)
    for start in plan.starts:
        conflict = _conflict_of(start, answers, blocked, facts)
        if conflict is not None:
            conflicts.append(conflict)
    return tuple(conflicts)


class _Facts:
    """The gates on facts, asked once a question for all nodes: a plan changes amounts, never facts."""

    def __init__(self, rules: Rules, world: World) -> None:
        self.company = tuple(gate for gate in rules.gates if isinstance(gate, JobsGate))
        self.has_arrays = bool(world.snapshot.pending.array_max_running.any())
        self._closed: dict[int, list[str]] = {}

    def changing(self, candidates: Candidates) -> Iterator[NodeFilter]:
        """The other gates. Where other jobs are was asked before the first task: its own do not count."""
        for gate in candidates.rules.gates:
            if gate.dynamic and not isinstance(gate, JobsGate):
                yield gate

    def closed(self, question_number: int, candidates: Candidates) -> list[str]:
        """For each node the first such gate that is closed for this question; "" where all are open."""
        if question_number not in self._closed:
            everywhere = NodeView(candidates.workspace)
            first = [""] * len(everywhere)
            for gate in candidates.rules.gates:
                if gate.dynamic:
                    continue
                for row in np.flatnonzero(~gate.filter(candidates.question, everywhere)).tolist():
                    first[row] = first[row] or gate.name
            self._closed[question_number] = first
        return self._closed[question_number]


def _conflict_of(
    start: Start, answers: Answers, blocked: dict[int, Decision], facts: _Facts
) -> Conflict | None:
    """Take this start's share, or say why it cannot have it and take nothing."""
    world, workspace = answers.world, answers.workspace
    pending = world.snapshot.pending
    try:
        row = int(rows_of(pending.id, np.array([start.job_id], dtype=np.int64), what="pending job")[0])
    except KeyError:
        return Conflict(start.job_id, ReasonCode.NOT_EVALUATED_YET, (("change", "not pending any more"),))
    if int(pending.generation[row]) != start.generation:
        return Conflict(start.job_id, ReasonCode.NOT_EVALUATED_YET, (("change", "the job was changed"),))
    if row in blocked:
        return Conflict(start.job_id, blocked[row].reason, blocked[row].facts)
    for rows, decision in array_blockers(world, workspace) if facts.has_arrays else ():
        if row in rows:
            return Conflict(start.job_id, decision.reason, decision.facts)
    for rows, decision in workspace.budgets.blockers() if workspace.budgets.short(row) else ():
        if row in rows:
            return Conflict(start.job_id, decision.reason, decision.facts)
    group = answers.groups.of(row)
    tasks, shape = len(start.placements), group.shape
    if tasks != shape.tasks and not shape.tasks < tasks <= shape.most:
        return Conflict(start.job_id, ReasonCode.NOT_EVALUATED_YET, (("change", "the job was changed"),))
    if tasks > shape.tasks:
        group = group._replace(shape=shape.sized(tasks))
    limits = [answers.queue(group.queue_row), *answers.quota(group), answers.pool(group)]
    for limit in limits:
        if limit is not None:
            return Conflict(start.job_id, limit.reason, limit.facts)
    if shape.must and not _is_near(start, shape.pack, world):
        return Conflict(start.job_id, ReasonCode.NOT_EVALUATED_YET, (("change", "its nodes were moved"),))

    candidates = answers.candidates(group)
    closed = facts.closed(group.question_number, candidates)
    moved = _moved(start, group, candidates, facts)
    if moved is not None:
        return moved
    with workspace.trial() as trial:
        for placement in start.placements:
            why = _take(placement, candidates, closed, facts)
            if why is not None:
                return Conflict(start.job_id, ReasonCode.WAITING_FOR_RESOURCES, why)
        charges = answers.charges_placed(group, start.placements)
        short = workspace.short_quota(charges)
        no_room = answers.quota_line(*short, group.payer) if short is not None else None
        if no_room is not None:
            return Conflict(start.job_id, no_room.reason, no_room.facts)
        workspace.take_limits(
            queue_row=group.queue_row,
            array_id=int(pending.array_id[row]),
            charges=charges,
            request=group.question.request,
            tasks=group.shape.tasks,
        )
        workspace.budgets.take(row)
        trial.keep()
    return None


def _is_near(start: Start, level: str, world: World) -> bool:
    """Whether its nodes, as they are now, are one node, or in one rack or zone."""
    rows = [world.node_row.get(node, -1) for node in start.node_ids]
    if len(rows) == 1 or -1 in rows:
        return True  # a node that is gone is found where it is missed
    if level == "node":
        return False
    domains = {world.domains(level).item(row) for row in rows}
    return len(domains) == 1 and -1 not in domains


def _moved(start: Start, group: Group, candidates: Candidates, facts: _Facts) -> Conflict | None:
    """Whether its nodes are still where its rules about other jobs and its own tasks let it be."""
    workspace, spread = candidates.workspace, group.shape.spread
    world = workspace.world
    rows = [world.node_row[one.node_id] for one in start.placements if one.node_id in world.node_row]
    if len(rows) < len(start.placements):
        return None  # one is gone, which is said below
    if spread is not None and len(rows) > 1 and not spread.term.soft and not spread.is_kept(rows):
        return Conflict(start.job_id, ReasonCode.NOT_EVALUATED_YET, (("change", "its nodes were moved"),))
    for gate in facts.company:
        nodes = NodeView(workspace, np.array(sorted(set(rows)), dtype=np.int64))
        for node in np.flatnonzero(~gate.filter(candidates.question, nodes)).tolist():
            why = (("gate", gate.name), ("node", nodes.names[node]))
            return Conflict(start.job_id, ReasonCode.JOB_AFFINITY, why)
    return None


def _take(
    placement: Placement, candidates: Candidates, closed: list[str], facts: _Facts
) -> tuple[Fact, ...] | None:
    """Put one task where the plan says, or name the node and the first gate that is closed now."""
    workspace, request = candidates.workspace, candidates.question.request
    world = workspace.world
    row = world.node_row.get(placement.node_id)
    if row is None:
        return (("gate", "gone"), ("node_id", placement.node_id))
    nodes = NodeView(workspace, np.array([row], dtype=np.int64))
    if closed[row]:
        return (("gate", closed[row]), ("node", nodes.names[0]))
    for gate in facts.changing(candidates):
        if not gate.filter(candidates.question, nodes)[0]:
            return (("gate", gate.name), ("node", nodes.names[0]))
    usable = workspace.gpu_features(request).usable if request.per_task.gpus else []
    wanted = (
        (request.per_task.gpu_millis if request.shares_gpu else GPU_MILLIS) if request.per_task.gpus else 0
    )
    devices: list[int] = []
    for device_id in placement.device_ids:
        device = world.device_row.get(device_id)
        if (
            device is None
            or int(world.device_node[device]) != row
            or not usable[device]
            or not workspace.device_is_free(device, wanted)
            or device in devices
        ):
            return (("device_id", device_id), ("gate", "device"), ("node", nodes.names[0]))
        devices.append(device)
    if len(devices) != request.per_task.gpus or placement.gpu_millis != wanted:
        return (("gate", "device"), ("node", nodes.names[0]))
    workspace.take(row, request.per_task, devices, wanted, candidates.question.who)
    return None
