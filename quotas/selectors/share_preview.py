"""What other rules of fair share would change: the factors of projects, and the order of the jobs that wait."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from django.utils import timezone

from quotas.core.decay import Decay
from quotas.core.fairshare import STEPS, Metering, flat_share
from quotas.core.share_tree import PERSON, Shares
from quotas.selectors.fair_share_source import Waiting, share_rules, share_source, shares_at

#: Jobs and projects of one preview that are listed; of more waiting jobs than MOST_WAITING the first are compared.
MOST_LISTED: Final = 50
MOST_WAITING: Final = 20_000


@dataclass(frozen=True, slots=True)
class ProjectChange:
    """A project now and under the other rules: what it used that counts, and its factor (1 goes first)."""

    id: int
    name: str
    used_hours_now: float
    used_hours_then: float
    factor_now: float
    factor_then: float


@dataclass(frozen=True, slots=True)
class JobChange:
    """A waiting job and its place among all that wait, by fair share alone: 1 is first."""

    number: int
    project_id: int
    project: str
    person: str
    place_now: int
    place_then: int


@dataclass(frozen=True, slots=True)
class RulesPreview:
    """The projects by their factor under the other rules, and the first jobs in the order that these would give."""

    projects: tuple[ProjectChange, ...]
    jobs: tuple[JobChange, ...]
    waiting: int
    moved: int


def preview_rules(decay: Decay, metering: Metering) -> RulesPreview:
    """Compare the rules in force with these; nothing is changed. For those who see everything."""
    at = timezone.now().timestamp()
    now_decay, now_metering = share_rules()
    source = share_source()
    waiting = tuple(source.waiting(MOST_WAITING))
    pairs = {(job.project_id, job.user_id) for job in waiting}
    now = shares_at(at, decay=now_decay, metering=now_metering, pairs=pairs)
    used = source.used(decay=decay, at=at, running_only=False)
    then = shares_at(at, decay=decay, metering=metering, pairs=pairs, used=used)
    names = {number: now.tree.name[row] for number, row in now.tree.row_of_project.items()}
    factors_now, factors_then = _factors(now), _factors(then)
    row_then = then.tree.row_of_project
    projects = [
        ProjectChange(
            number, names[number], _hours(now, row), _hours(then, row_then[number]),
            factors_now[number, 0], factors_then[number, 0],
        )
        for number, row in now.tree.row_of_project.items()
        if number in row_then
    ]  # fmt: skip
    projects.sort(key=lambda one: (-one.factor_then, one.name, one.id))
    places_now, places_then = _places(waiting, factors_now), _places(waiting, factors_then)
    order = sorted(waiting, key=lambda job: places_then[job.number])
    jobs = [
        JobChange(job.number, job.project_id, names.get(job.project_id, ""), job.person,
                  places_now[job.number], places_then[job.number])
        for job in order[:MOST_LISTED]
    ]  # fmt: skip
    moved = sum(places_now[job.number] != places_then[job.number] for job in waiting)
    return RulesPreview(tuple(projects[:MOST_LISTED]), tuple(jobs), len(waiting), moved)


def _hours(shares: Shares, row: int) -> float:
    return float(shares.standings.used[row]) / 3600


def _factors(shares: Shares) -> Mapping[tuple[int, int], float]:
    """Of (project, 0) and (project, person): in a tree those of the tree, else the formula over the best."""
    tree, standings = shares.tree, shares.standings
    rows = tree.row_of_project
    if not rows:
        return {}
    people = np.array([kind == PERSON for kind in tree.kind], dtype=np.bool_)
    homes = {int(tree.parent[row]) for row in rows.values()}
    if len(homes) > 1 or (tree.weight[people] > 1).any():
        found = {(number, 0): int(standings.factor[row]) / STEPS for number, row in rows.items()}
        return found | {pair: int(standings.factor[row]) / STEPS for pair, row in tree.row_of_pair.items()}
    every = list(rows.values())
    share = flat_share(tree.weight[every], standings.used[every] / 3600)
    best = float(share.max()) or 1.0
    of_project = {number: float(own) / best for number, own in zip(rows, share.tolist(), strict=True)}
    found = {(number, 0): factor for number, factor in of_project.items()}
    return found | {pair: of_project[pair[0]] for pair in tree.row_of_pair}


def _places(waiting: tuple[Waiting, ...], factors: Mapping[tuple[int, int], float]) -> dict[int, int]:
    order = sorted(
        waiting,
        key=lambda job: (-factors.get((job.project_id, job.user_id), 0.0), job.submitted, job.number),
    )
    return {job.number: place + 1 for place, job in enumerate(order)}
