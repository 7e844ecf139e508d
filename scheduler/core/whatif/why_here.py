"""Why here: the filters, the order and the scores by which a recorded cycle gave a job its nodes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from scheduler.core.placement.plugins import NO_PLUGINS, Plugins
from scheduler.core.plan import FilterCount, Plan
from scheduler.core.policy import Policy
from scheduler.core.reasons.shortfalls import filter_counts
from scheduler.core.snapshot.snapshot import Snapshot
from scheduler.core.whatif.explain import context_after

#: Nodes of the job that are shown, and nodes that it might have had instead.
MOST_CHOSEN: Final = 3
RUNNERS_UP: Final = 3


@dataclass(frozen=True, slots=True)
class NodeScore:
    """One node as the job was placed: the points of each scorer, 0 to 100, and their weighted mean."""

    node_id: int
    name: str
    chosen: bool
    total: int
    parts: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class WhyHere:
    """How a cycle came to the nodes of a job that it started."""

    place: int  # among the starts of the cycle, 1 = the first
    starts: int
    nodes: int  # of the cluster
    gates: tuple[FilterCount, ...]  # filters that turned nodes away
    eligible: int  # nodes that passed all
    scores: tuple[NodeScore, ...]  # of its nodes, then of the best others
    #: Whether the first node has the score that the cycle recorded: else others were started in between, by backfill.
    exact: bool


def why_here(
    snapshot: Snapshot, policy: Policy, plan: Plan, job_id: int, plugins: Plugins = NO_PLUGINS
) -> WhyHere | None:
    """Rederive the choice of nodes from a recorded snapshot, policy and plan; None where the plan starts no such job.

    The nodes are looked at as the cycle did: once all starts before this one hold what they were given.
    """
    number = next((place for place, start in enumerate(plan.starts) if start.job_id == job_id), None)
    if number is None:
        return None
    start = plan.starts[number]
    context = context_after(
        snapshot, policy, replace(plan, starts=plan.starts[:number], reserves=()), plugins
    )
    candidates = context.candidates(context.job_classes.of(snapshot.job_row(job_id)))
    scores, nodes = candidates.scores, context.cluster.nodes
    chosen = [nodes.row[node] for node in start.node_ids]
    others = [row for row in np.argsort(-scores, kind="stable").tolist() if row not in set(chosen)]
    shown = chosen[:MOST_CHOSEN] + [row for row in others[:RUNNERS_UP] if scores.item(row) >= 0]
    found = []
    for row in shown:
        parts = dict(candidates.parts(row))
        found.append(
            NodeScore(
                node_id=int(snapshot.nodes.id[row]),
                name=snapshot.nodes.name[row],
                chosen=row in chosen,
                total=parts.pop("total", 0),
                parts=tuple(parts.items()),
            )
        )
    return WhyHere(
        place=number + 1,
        starts=len(plan.starts),
        nodes=context.cluster.node_count,
        gates=filter_counts(candidates),
        eligible=int((scores >= 0).sum()),
        scores=tuple(found),
        exact=tuple(candidates.parts(chosen[0])) == start.scores,
    )
