"""Explain why one job waits, in all and node by node; the same for a job that is not submitted yet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np

from scheduler.core.backfill.gang_reservation import close_nodes
from scheduler.core.cluster.index import ClusterIndex
from scheduler.core.columns import Ints, rows_of
from scheduler.core.context.cycle_context import CycleContext
from scheduler.core.context.pending_reasons import PendingReasons
from scheduler.core.context.running_jobs import RunningJobs
from scheduler.core.cycle import plan_cycle
from scheduler.core.placement.candidates import Candidates
from scheduler.core.placement.equivalence import JobClass
from scheduler.core.placement.filters import ResourceFilter
from scheduler.core.placement.node_view import NodeView
from scheduler.core.placement.plugins import NO_PLUGINS, Plugins, resolve
from scheduler.core.plan import Decision, Plan, Start
from scheduler.core.policy import Policy
from scheduler.core.preemption.preemption import awaited_rows, hold_places
from scheduler.core.preemption.suspension import take_cpus
from scheduler.core.reason_codes import PRECEDENCE
from scheduler.core.reasons.job_reasons import array_reasons, job_reasons
from scheduler.core.reasons.messages import amount
from scheduler.core.reasons.numa_fit import lacks_in_domains
from scheduler.core.snapshot.agent_features import in_words
from scheduler.core.snapshot.constraints import Labels
from scheduler.core.snapshot.node_isolation import lacking, level_of_bits
from scheduler.core.snapshot.request_classes import RequestClass
from scheduler.core.snapshot.snapshot import NodeColumns, PendingColumns, Snapshot

#: What one node does by the filter that refuses it, where the sentence has no numbers.
_REFUSALS: Final = {
    "fault": "reports a fault and takes no tasks",
    "cordoned": "cordoned",
    "draining": "draining",
    "partition": "outside the job's partitions",
    "wall": "in partitions with a shorter time limit",
    "affinity": "does not match the node affinity",
    "reserved": "reserved for others",
    "gpu_model": "no GPU of the requested model",
    "gpu_health": "too few healthy GPUs",
}


@dataclass(frozen=True, slots=True)
class Explanation:
    """What a cycle decided about one job. `blockers`: everything that would have to change, the strongest first."""

    job_id: int
    start: Start | None
    headline: Decision | None  # None when it starts
    blockers: tuple[Decision, ...] = ()
    ahead_jobs: int = 0
    ahead_gpus: int = 0

    @property
    def position(self) -> int:
        """The place in the queue; 1 = the next."""
        return self.ahead_jobs + 1


@dataclass(frozen=True, slots=True)
class NodeVerdict:
    """Whether one node could take a task of a job; `gate` is the first filter that refuses, None if it could."""

    node_id: int
    name: str
    gate: str | None
    sentence: str
    slots: int = 0  # how many tasks it could take now


@dataclass(frozen=True, slots=True)
class Hypothetical:
    """A job that is not submitted."""

    request: RequestClass
    queue_id: int
    project_id: int
    user_id: int = 0
    priority: int = 50
    tasks: int = 1
    nodes: int = 0
    tasks_per_node: int = 0
    most_tasks: int = 0
    pack: int = 0
    time_limit_seconds: int = 0
    eligible_ms: int = 0
    name: str = ""
    labels: Labels = ()
    reservation_id: int = 0


def explain(
    snapshot: Snapshot,
    policy: Policy,
    job_id: int,
    plan: Plan | None = None,
    plugins: Plugins = NO_PLUGINS,
    after: CycleContext | None = None,
) -> Explanation:
    """Everything that keeps a pending job waiting, once the plan is applied.

    `plan`: the plan of the cycle, and `after`: what `context_after` gives for it, if the caller has them. Raises
    KeyError for a job that is not pending in the snapshot.
    """
    snapshot.job_row(job_id)
    plan = plan if plan is not None else plan_cycle(snapshot, policy, plugins)
    start = plan.start_of(job_id)
    if start is not None:
        return Explanation(job_id, start, None)
    context = after or context_after(snapshot, policy, plan, plugins)
    row = snapshot.job_row(job_id)
    headline = plan.decision_of(job_id)
    found = [headline, *PendingReasons(context).of_class(context.job_classes.of(row))]
    for blockers in (
        job_reasons(context.cluster),
        array_reasons(context.cluster, context.workspace),
        context.workspace.budgets.blockers(),
    ):
        found.extend(decision for rows, decision in blockers if row in rows)
    details = plan.details_of(job_id)
    return Explanation(
        job_id,
        None,
        headline,
        tuple(sorted(dict.fromkeys(found), key=lambda decision: PRECEDENCE[decision.reason])),
        ahead_jobs=int(details["ahead_jobs"]),
        ahead_gpus=int(details["ahead_gpus"]),
    )


def node_table(
    snapshot: Snapshot,
    policy: Policy,
    job_id: int,
    plan: Plan | None = None,
    plugins: Plugins = NO_PLUGINS,
    after: CycleContext | None = None,
) -> tuple[NodeVerdict, ...]:
    """Whether each node could take a task of a pending job once the plan is applied, by node id."""
    row = snapshot.job_row(job_id)
    plan = plan if plan is not None else plan_cycle(snapshot, policy, plugins)
    context = after or context_after(snapshot, policy, plan, plugins)
    job_class = context.job_classes.of(row)
    candidates = context.candidates(job_class)
    candidates.refresh()
    cluster, everywhere = context.cluster, NodeView(candidates.workspace)
    first: list[str | None] = [None] * cluster.node_count
    for gate in candidates.rules.gates:
        closed = ~gate.filter(candidates.query, everywhere)
        for node in np.flatnonzero(closed).tolist():
            first[node] = first[node] or gate.name
    slots = np.minimum(candidates.slots(), job_class.shape.tasks).tolist()
    return tuple(
        NodeVerdict(
            node_id=int(cluster.snapshot.nodes.id[node]),
            name=cluster.snapshot.nodes.name[node],
            gate=closed_gate,
            sentence=_node_sentence(candidates, job_class, node, closed_gate, slots[node]),
            slots=slots[node],
        )
        for node, closed_gate in enumerate(first)
    )


def preview(
    snapshot: Snapshot, policy: Policy, job: Hypothetical, plugins: Plugins = NO_PLUGINS
) -> Explanation:
    """Whether a job submitted now would start in the next cycle, and where, or why not.

    Raises KeyError when its queue or project is not in the snapshot.
    """
    asked, job_id = with_job(snapshot, job)
    return explain(asked, policy, job_id, plugins=plugins)


def with_job(snapshot: Snapshot, job: Hypothetical) -> tuple[Snapshot, int]:
    """The snapshot with one more pending job, and the id of that job."""
    taken = np.concatenate([snapshot.pending.id, snapshot.running.id])
    job_id = int(taken.max(initial=0)) + 1
    row = {
        "id": job_id,
        "class_index": len(snapshot.classes),
        "submitted_ms": snapshot.now_ms,
        **{f.name: getattr(job, f.name) for f in fields(job) if f.name != "request"},
    }
    pending = snapshot.pending
    columns: dict[str, Any] = {}
    for f in fields(pending):
        column, value = getattr(pending, f.name), row.get(f.name, f.metadata["default"])
        columns[f.name] = (
            (*column, value) if f.metadata["kind"] == "objects" else np.append(column, value or 0)
        )
    groups = {f.name: getattr(snapshot, f.name) for f in fields(snapshot)}
    asked = Snapshot.build(
        **(groups | {"classes": (*snapshot.classes, job.request), "pending": PendingColumns(**columns)})
    )
    return asked, job_id


def context_after(
    snapshot: Snapshot, policy: Policy, plan: Plan, plugins: Plugins = NO_PLUGINS
) -> CycleContext:
    """The context of a cycle after a plan: its starts, resumed jobs and gang reservations hold what it gives them."""
    cluster = ClusterIndex(snapshot)
    context = CycleContext(cluster, resolve(policy, plugins))
    pending = snapshot.pending
    started = np.array([start.job_id for start in plan.starts], dtype=np.int64)
    started_rows = rows_of(pending.id, started, what="pending job")
    clear = np.ones(len(pending), dtype=np.bool_)
    for rows, _ in job_reasons(cluster):
        clear[rows] = False
    awaited = awaited_rows(cluster, np.flatnonzero(clear))
    left = awaited[~np.isin(awaited, started_rows)]
    if len(left):
        # As in the cycle: first the starts of jobs whose victims have ended, then the nodes of victims that still
        # end are held for their preemptors, then the other starts.
        first = int(np.isin(started_rows, awaited).sum())
        _take_starts(context, started_rows[:first], plan.starts[:first])
        hold_places(context, left)
        _take_starts(context, started_rows[first:], plan.starts[first:])
    else:
        _take_starts(context, started_rows, plan.starts)
    if plan.resumes:
        jobs = RunningJobs(context)
        ids = np.array([one.job_id for one in plan.resumes], dtype=np.int64)
        for row in rows_of(snapshot.running.id, ids, what="running job").tolist():
            take_cpus(context, jobs, row)
    for reserve in plan.reserves:
        close_nodes(context, reserve.node_ids)
    return context


def _take_starts(context: CycleContext, rows: Ints, starts: tuple[Start, ...]) -> None:
    cluster, workspace = context.cluster, context.workspace
    pending = cluster.snapshot.pending
    for row, start in zip(rows.tolist(), starts, strict=True):
        job_class = context.job_classes.of(row)
        for placement in start.placements:
            devices = [cluster.devices.row[device_id] for device_id in placement.device_ids]
            node, request = cluster.nodes.row[placement.node_id], job_class.query.request
            domain = cluster.numa.of(request, node, placement.numa) if request.one_domain else -1
            workspace.take(node, start.per_task, devices, placement.gpu_millis, job_class.query.who, domain)
            context.count_start(job_class, [(node, context.end_ms(row))])
        workspace.limits.take(
            queue_row=job_class.queue_row,
            array_id=int(pending.array_id[row]),
            charges=context.charges_placed(job_class, start.placements),
            request=job_class.query.request,
            tasks=len(start.placements),
        )
        workspace.budgets.take(row)


def _node_sentence(
    candidates: Candidates, job_class: JobClass, node: int, gate: str | None, slots: int
) -> str:
    """One line about one node: what it lacks in numbers, or what it could take."""
    if gate is None:
        tasks = job_class.shape.tasks
        return "eligible" if tasks == 1 else f"eligible for {slots} of {tasks} tasks"
    if gate in _SENTENCES:
        return _SENTENCES[gate](candidates, node)
    return _shortfall(candidates, gate, node) or _REFUSALS.get(gate, f"excluded by {gate}")


def _state_words(candidates: Candidates, node: int) -> str:
    return f"not responding (state {_nodes(candidates).state[node]})"


def _label_words(candidates: Candidates, node: int) -> str:
    have = dict(_nodes(candidates).labels[node])
    wanted = candidates.query.request.node_selector
    return f"lacks {', '.join(f'{key}={value}' for key, value in wanted if have.get(key) != value)}"


def _isolation_words(candidates: Candidates, node: int) -> str:
    needed = candidates.query.isolation
    lacks = lacking(_nodes(candidates).isolation.item(node), needed)
    return f"{' and '.join(lacks)}; the queue requires {level_of_bits(needed)} isolation"


def _agent_words(candidates: Candidates, node: int) -> str:
    unknown = candidates.query.request.features & ~_nodes(candidates).features.item(node)
    return f"runs an agent older than needed for {in_words(unknown)}"


def _taint_words(candidates: Candidates, node: int) -> str:
    tolerations = candidates.query.request.tolerations
    keys = [
        f"{taint.key}={taint.value}:{taint.effect}" if taint.value else f"{taint.key}:{taint.effect}"
        for taint in _nodes(candidates).taints[node]
        if not any(toleration.tolerates(taint) for toleration in tolerations)
    ]
    return f"untolerated taint {', '.join(keys)}"


def _size_words(candidates: Candidates, node: int) -> str:
    nodes = _nodes(candidates)
    cores, memory = nodes.size_cpu_millis.item(node), nodes.size_memory_mib.item(node)
    has = f"{amount('cpu_millis', cores)} and {amount('memory_mib', memory)}"
    return f"too small for one task: the node has {has}"


def _nodes(candidates: Candidates) -> NodeColumns:
    return candidates.workspace.cluster.snapshot.nodes


def _domain_words(candidates: Candidates, node: int) -> str:
    """`has 2 NUMA domains; the most free in one is 8 CPUs, 32 GiB of memory and 1 GPU`."""
    found = lacks_in_domains(candidates, node)
    if found is None:
        return "reports no size of its NUMA domains"
    domains, cpu, memory, gpus = found
    most = [amount("cpu_millis", cpu), amount("memory_mib", memory)]
    most += [amount("gpus", gpus)] if candidates.query.request.per_task.gpus else []
    has = "one NUMA domain" if domains == 1 else f"{domains} NUMA domains"
    return f"has {has}; the most free in one is {', '.join(most[:-1])} and {most[-1]}"


def _affinity_words(candidates: Candidates, node: int) -> str:
    """`the rack has no job labelled app=db`: the first affinity term that refuses a node."""
    affinity_state, who = candidates.workspace.affinity_state, candidates.query.who
    for kind, like, topology, met in affinity_state.refusals(who) if affinity_state is not None else ():
        if not met[node]:
            jobs = affinity_state.affinity.selectors[like].words if affinity_state is not None else ""
            where = "the node" if topology == "node" else f"the {topology}"
            if kind == "near":
                return f"{where} has no job {jobs}"
            if kind == "apart":
                return f"{where} has a job {jobs}"
            return f"{where} has a job with anti-affinity to jobs {jobs}"
    return "excluded by affinity to other jobs"


def _shortfall(candidates: Candidates, gate: str, node: int) -> str | None:
    """`needs 4 GPUs, has 2 GPUs free`, for a filter of amounts; None for another filter."""
    query, workspace = candidates.query, candidates.workspace
    for rule in candidates.rules.gates:
        if rule.name == gate and isinstance(rule, ResourceFilter):
            headroom = rule.free(query, workspace)
            if headroom is not None:
                name = "gpu_millis" if gate == "gpus" and query.request.shares_gpu else gate
                free = max(int(headroom[0][node]), 0)
                return f"needs {amount(name, headroom[1])}, has {amount(name, free)} free"
    return None


#: What a node does, in words, by the name of the filter that refuses it.
_SENTENCES: Final[dict[str, Callable[[Candidates, int], str]]] = {
    "state": _state_words,
    "labels": _label_words,
    "isolation": _isolation_words,
    "agent": _agent_words,
    "taints": _taint_words,
    "size": _size_words,
    "jobs": _affinity_words,
    "numa": _domain_words,
}
