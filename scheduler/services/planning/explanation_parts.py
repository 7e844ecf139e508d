"""Parts of previews and explanations: gates, blockers and nodes, in sentences for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Final

from scheduler.core.context.cycle_context import CycleContext
from scheduler.core.plan import Plan, Start
from scheduler.core.policy import Policy
from scheduler.core.reason_codes import CATEGORY, ReasonCategory, ReasonCode
from scheduler.core.reasons.causes import cause_of
from scheduler.core.reasons.messages import GATE_WORDS, sentence
from scheduler.core.snapshot.snapshot import Snapshot
from scheduler.core.whatif.explain import Explanation, NodeVerdict, node_table
from scheduler.services.planning.cycles import installed_plugins

#: Reasons that do not wait in line: no job is behind such a job.
NOT_IN_LINE: Final = frozenset({ReasonCode.BEGIN_TIME, ReasonCode.DEPENDENCY, ReasonCode.BACKOFF})


@dataclass(frozen=True, slots=True)
class PlannedJob:
    """One job in the cluster as a cycle leaves it."""

    snapshot: Snapshot
    policy: Policy
    job_id: int
    plan: Plan
    found: Explanation
    #: What is free once the plan is applied, where that was worked out already.
    after: CycleContext | None = None


@dataclass(frozen=True, slots=True)
class Gate:
    """One step of the funnel from all nodes to those that fit now."""

    name: str
    words: str
    turned_away: int
    left: int


@dataclass(frozen=True, slots=True)
class Blocker:
    """One thing that would have to change."""

    code: str
    category: str
    text: str
    #: What to change, for programs: a code of `CauseCode` and its subject.
    cause: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PreviewNode:
    """What one node would be given: tasks, and the indices of its devices."""

    node_id: int
    name: str
    tasks: int
    devices: tuple[int, ...] = ()


def node_verdicts(job: PlannedJob) -> tuple[NodeVerdict, ...]:
    """What each node says to the job, once every other job that starts now has started."""
    starts = tuple(start for start in job.plan.starts if start.job_id != job.job_id)
    after = job.after if job.found.start is None else None
    return node_table(
        job.snapshot, job.policy, job.job_id, replace(job.plan, starts=starts), installed_plugins(), after
    )


def funnel(verdicts: Sequence[NodeVerdict], policy: Policy) -> tuple[Gate, ...]:
    """From all nodes, gate by gate, to those that could take a task of it now."""
    closed = Counter(verdict.gate for verdict in verdicts)
    left = len(verdicts)
    gates = [Gate("all", "nodes in the cluster", 0, left)]
    for name in (*policy.filters, *policy.plugins):
        if closed[name]:
            left -= closed[name]
            gates.append(Gate(name, GATE_WORDS.get(name, f"are excluded by {name}"), closed[name], left))
    gates.append(Gate("fits", "fit now", 0, left))
    return tuple(gates)


def headline_of(found: Explanation) -> str:
    """The strongest reason in a sentence, with the jobs ahead where the job waits its turn."""
    assert found.headline is not None
    decision = found.headline
    if CATEGORY[decision.reason] is not ReasonCategory.WAIT:
        return sentence(decision.reason, decision.facts)  # who goes first changes nothing for it
    return sentence(decision.reason, decision.facts, ahead_jobs=found.ahead_jobs, ahead_gpus=found.ahead_gpus)


def blockers_of(found: Explanation, of_victims: str = "") -> tuple[Blocker, ...]:
    """All that would have to change; `of_victims` replaces the sentence about preemption, where one is given."""
    return tuple(
        Blocker(
            d.reason.value,
            CATEGORY[d.reason].value,
            of_victims
            if of_victims and d.reason is ReasonCode.WAITING_FOR_PREEMPTION
            else sentence(d.reason, d.facts),
            cause_of(d.reason, d.facts)._asdict(),
        )
        for d in found.blockers
    )


def nodes_of(start: Start, snapshot: Snapshot) -> tuple[PreviewNode, ...]:
    """The nodes of a start, in order of its first rank on each."""
    names = dict(zip(snapshot.nodes.id.tolist(), snapshot.nodes.name, strict=True))
    index = dict(zip(snapshot.devices.id.tolist(), snapshot.devices.position.tolist(), strict=True))
    return tuple(
        PreviewNode(
            node_id=node_id,
            name=names[node_id],
            tasks=sum(1 for p in start.placements if p.node_id == node_id),
            devices=tuple(
                sorted({index[d] for p in start.placements if p.node_id == node_id for d in p.device_ids})
            ),
        )
        for node_id in start.node_ids
    )


def moment_of(snapshot: Snapshot) -> datetime:
    """When the snapshot was taken."""
    return datetime.fromtimestamp(snapshot.now_ms / 1000, tz=UTC)
