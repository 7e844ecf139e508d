"""The plan of a drain: which job moves where, which ends by itself, which is requeued, and what each loses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.utils import timezone

from scheduler.core.whatif.moved import Place
from scheduler.models import Attempt, Job, Node
from scheduler.services.moves.fates import (
    FATE_WORDS,
    Cost,
    Fate,
    attempts_on,
    cost_of,
    end_of,
    fate_of,
    last_checkpoints,
)
from scheduler.services.moves.places import find_places


@dataclass(frozen=True, slots=True)
class JobPlan:
    """What a drain means for one job."""

    job: Job
    fate: Fate
    cost: Cost
    #: Where it would go on, for one that moves.
    nodes: tuple[str, ...] = ()
    #: Why no place is free, for one that waits.
    why: str = ""
    ends_at: datetime | None = None

    @property
    def words(self) -> str:
        return FATE_WORDS[self.fate]


@dataclass(frozen=True, slots=True)
class DrainPlan:
    """What a drain of some nodes means, at the moment that it was asked for."""

    nodes: tuple[Node, ...]
    deadline: datetime | None
    jobs: tuple[JobPlan, ...]

    @property
    def counts(self) -> Mapping[Fate, int]:
        return Counter(plan.fate for plan in self.jobs)

    @property
    def lost_gpu_seconds(self) -> float:
        return sum(plan.cost.gpu_seconds for plan in self.jobs)

    @property
    def lost_seconds(self) -> int:
        """Work that is done once more, of all jobs, without regard to their size."""
        return sum(plan.cost.lost_seconds for plan in self.jobs)


def plan_drain(nodes: Sequence[Node], deadline: datetime | None, *, now: datetime | None = None) -> DrainPlan:
    """What becomes of the jobs on these nodes of one cluster; places are those that are free now. Plans: it is slow."""
    now = now or timezone.now()
    attempts = attempts_on(nodes)
    fates = {attempt.job_id: fate_of(attempt, deadline) for attempt in attempts}
    moving = [attempt.job for attempt in attempts if fates[attempt.job_id] == Fate.MOVES]
    places = _places(nodes, moving)
    saved = last_checkpoints(fates)
    plans = []
    for attempt in attempts:
        fate, place = fates[attempt.job_id], places.get(attempt.job_id)
        if fate == Fate.MOVES and (place is None or not place.nodes):
            fate = Fate.WAITS
        plans.append(
            JobPlan(
                job=attempt.job,
                fate=fate,
                cost=_cost(attempt, fate, saved.get(attempt.job_id), deadline or now),
                nodes=place.nodes if place else (),
                why=place.why_not if place else "",
                ends_at=end_of(attempt),
            )
        )
    return DrainPlan(tuple(nodes), deadline, tuple(plans))


def _places(nodes: Iterable[Node], jobs: Sequence[Job]) -> dict[int, Place]:
    closed = {node.pk for node in nodes}
    cluster_id = next((node.cluster_id for node in nodes), 0)
    return find_places(cluster_id, [(job, {}) for job in jobs], closed=closed)


def _cost(attempt: Attempt, fate: Fate, saved: Any, at: datetime) -> Cost:
    if fate in (Fate.CONTINUES, Fate.ENDS):
        return Cost(0, None, None, 0.0)
    # One that has to leave at the deadline is asked to save before it is stopped, if it makes checkpoints.
    saves = bool(attempt.job.checkpoint) and fate != Fate.FAILS
    return cost_of(attempt, saved, at=at, saves=saves)
