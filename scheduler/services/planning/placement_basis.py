"""Placement basis: why a job that has started runs where it does, from the recording of the cycle that started it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from scheduler.core.placement.plugins import PluginError, PluginFailed
from scheduler.core.reasons.messages import GATE_WORDS
from scheduler.core.snapshot import codec
from scheduler.core.snapshot.codec import CodecError
from scheduler.core.whatif.why_here import WhyHere, why_here
from scheduler.models import Attempt, Cycle, Job
from scheduler.services.planning.cycles import installed_plugins
from scheduler.services.planning.explanation_parts import Gate
from scheduler.state.records import recordings
from scheduler.state.records.recordings import NotRecorded


@dataclass(frozen=True, slots=True)
class ScoredNode:
    """A node that the job has, or that it might have had, with the points of each scorer from 0 to 100."""

    node_id: int
    name: str
    chosen: bool
    total: int
    parts: dict[str, int]


@dataclass(frozen=True, slots=True)
class PlacementBasis:
    """How the job came to its nodes. `unknown` says why that is not known any more; "" = it is."""

    cycle: int | None = None
    at: datetime | None = None
    order: str = ""
    placement: str = ""
    backfill: str = ""
    place: int = 0
    starts: int = 0
    gates: tuple[Gate, ...] = ()
    nodes: tuple[ScoredNode, ...] = ()
    exact: bool = False
    unknown: str = ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def placement_basis(job: Job) -> PlacementBasis | None:
    """The basis of the latest attempt; None for a job that has never started. Nothing is stored for it beforehand."""
    attempt = Attempt.objects.filter(job=job).order_by("-epoch").values_list("cycle_id", flat=True).first()
    if attempt is None:
        return None
    at = Cycle.objects.filter(pk=attempt).values_list("started_at", flat=True).first()
    try:
        recording = recordings.load(attempt)
        snapshot, policy = codec.decode_snapshot(recording.snapshot), codec.decode_policy(recording.policy)
        plan = codec.decode_plan(recording.plan)
        found = why_here(snapshot, policy, plan, job.number, installed_plugins())
        queue = policy.of_queue(job.queue_id)
    except NotRecorded:
        return PlacementBasis(attempt, at, unknown="The recording of the cycle is no longer kept.")
    except (CodecError, PluginError, PluginFailed, KeyError) as error:
        return PlacementBasis(attempt, at, unknown=f"The recording cannot be read: {error}.")
    if found is None:
        return PlacementBasis(attempt, at, unknown="The recording of the cycle does not name the job.")
    return PlacementBasis(
        cycle=attempt,
        at=at,
        order=queue.name,
        placement=queue.placement,
        backfill=policy.backfill,
        place=found.place,
        starts=found.starts,
        gates=_funnel(found),
        nodes=tuple(
            ScoredNode(one.node_id, one.name, one.chosen, one.total, dict(one.parts)) for one in found.scores
        ),
        exact=found.exact,
    )


def _funnel(found: WhyHere) -> tuple[Gate, ...]:
    """From all nodes, filter by filter, to those that were scored."""
    left = found.nodes
    gates = [Gate("all", "nodes in the cluster", 0, left)]
    for count in found.gates:
        if count.first:
            left -= count.first
            gates.append(
                Gate(
                    count.gate, GATE_WORDS.get(count.gate, f"are excluded by {count.gate}"), count.first, left
                )
            )
    return (*gates, Gate("fits", "were eligible", 0, found.eligible))
