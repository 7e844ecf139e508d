"""Affinity: job affinity and anti-affinity terms, and where the jobs they select run during a cycle."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from scheduler.core.cluster.allocation_index import AllocationIndex
from scheduler.core.cluster.node_index import NodeIndex
from scheduler.core.columns import Bools, Ints
from scheduler.core.snapshot.constraints import OWN_ARRAY, JobSelector
from scheduler.core.snapshot.snapshot import PendingColumns, RunningColumns, Snapshot

Floats = npt.NDArray[np.float64]


class Term(NamedTuple):
    """An affinity term of one job; `selector` is a number in `AffinityIndex.selectors`."""

    selector: int
    topology: str
    apart: bool
    weight: int


@dataclass(frozen=True, slots=True)
class Profile:
    """Jobs with identical affinity terms that the same selectors match."""

    #: Selectors that match these jobs.
    selected_by: tuple[int, ...] = ()
    terms: tuple[Term, ...] = ()

    @property
    def anti_affinity(self) -> tuple[tuple[int, str], ...]:
        """(selector, topology) of each required anti-affinity term: it holds in both directions."""
        return tuple((term.selector, term.topology) for term in self.terms if term.apart and not term.weight)


class AffinityIndex:
    """The affinity profile of every job: 0 for a job without terms that no term of another job selects.

    A term selects jobs of its own project only.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self.profiles: list[Profile] = [Profile()]
        self.selectors: list[JobSelector] = []
        #: Every (selector, topology) that a required anti-affinity term of some job names.
        self.kept: tuple[tuple[int, str], ...] = ()
        self.pending: Ints = np.zeros(len(snapshot.pending), dtype=np.int64)
        self.running: Ints = np.zeros(len(snapshot.running), dtype=np.int64)
        self._places: dict[tuple[int, JobSelector], int] = {}
        self._of_project: dict[int, list[int]] = {}
        self._numbers: dict[Profile, int] = {self.profiles[0]: 0}
        has_terms = np.array([bool(request.job_terms) for request in snapshot.classes], dtype=np.bool_)
        if not has_terms.any():
            return
        tables = (snapshot.pending, self.pending), (snapshot.running, self.running)
        for jobs, _ in tables:
            for row in np.flatnonzero(has_terms[jobs.class_index]).tolist():
                for term in snapshot.classes[int(jobs.class_index[row])].job_terms:
                    self._number(int(jobs.project_id[row]), _own(term.jobs, int(jobs.array_id[row])))
        concerned = np.array(sorted(self._of_project), dtype=np.int64)
        for jobs, profiles in tables:
            for row in np.flatnonzero(np.isin(jobs.project_id, concerned)).tolist():
                profiles[row] = self._profile(snapshot, jobs, row)
        self.kept = tuple(sorted({one for profile in self.profiles for one in profile.anti_affinity}))

    @property
    def is_there(self) -> bool:
        return len(self.profiles) > 1

    def is_bound(self, who: int) -> bool:
        """Whether other jobs decide where jobs of this profile may go."""
        profile = self.profiles[who]
        return any(not term.weight for term in profile.terms) or any(
            selector in profile.selected_by for selector, _ in self.kept if who
        )

    def wishes(self, who: int) -> bool:
        """Whether a job of this profile prefers to be near other jobs, or apart."""
        return any(term.weight for term in self.profiles[who].terms)

    def may_open(self, who: int) -> bool:
        """Whether the start of another job may open nodes to a job of this profile."""
        return any(not term.apart and not term.weight for term in self.profiles[who].terms)

    def _number(self, project_id: int, selector: JobSelector) -> int:
        key = project_id, selector
        if key not in self._places:
            self._places[key] = len(self.selectors)
            self._of_project.setdefault(project_id, []).append(len(self.selectors))
            self.selectors.append(selector)
        return self._places[key]

    def _profile(self, snapshot: Snapshot, jobs: PendingColumns | RunningColumns, row: int) -> int:
        project, array = int(jobs.project_id[row]), int(jobs.array_id[row])
        profile = Profile(
            selected_by=tuple(
                number
                for number in self._of_project[project]
                if self.selectors[number].matches(jobs.labels[row], jobs.name[row], array)
            ),
            terms=tuple(
                Term(self._number(project, _own(term.jobs, array)), term.topology, term.apart, term.weight)
                for term in snapshot.classes[int(jobs.class_index[row])].job_terms
            ),
        )
        if profile not in self._numbers:
            self._numbers[profile] = len(self.profiles)
            self.profiles.append(profile)
        return self._numbers[profile]


#: The array of a job that is in none: no selector matches it.
_NO_ARRAY: Final = -2


def _own(selector: JobSelector, array_id: int) -> JobSelector:
    return replace(selector, array_id=array_id or _NO_ARRAY) if selector.array_id == OWN_ARRAY else selector


class AffinityState:
    """Tasks that each selector matches on every node, and from these the nodes that are open to a profile.

    The columns are live: the same arrays, changed in place; `count` says on which nodes.
    """

    def __init__(
        self, affinity: AffinityIndex, nodes: NodeIndex, snapshot: Snapshot, allocations: AllocationIndex
    ) -> None:
        self.affinity = affinity
        self._nodes = nodes
        self._there: list[Ints] = [np.zeros(nodes.count, dtype=np.int64) for _ in affinity.selectors]
        self._kept: dict[tuple[int, str], Ints] = {
            one: np.zeros(nodes.count, dtype=np.int64) for one in affinity.kept
        }
        self._open: dict[int, Ints] = {}
        self._met: dict[int, Floats] = {}
        self._points: list[tuple[int, int, int, Floats, Floats]] = []
        jobs = np.searchsorted(snapshot.running.id, snapshot.allocations.job_id)
        for row, who in zip(allocations.node.tolist(), affinity.running[jobs].tolist(), strict=True):
            if who:
                self._add(row, who, 1)

    def open(self, who: int) -> Ints:
        """1 where a job of this profile may go, 0 elsewhere."""
        if who not in self._open:
            self._open[who] = self._may_go(who).astype(np.int64)
        return self._open[who]

    def met(self, who: int) -> tuple[int, Floats]:
        """The weight of all preferred terms of a profile, and how much of that weight each node meets."""
        wished = sum(term.weight for term in self.affinity.profiles[who].terms)
        if who not in self._met:
            self._met[who] = self._wishes(who)
        return wished, self._met[who]

    def points(self, who: int, wished: int, met: Floats, weight: int) -> Floats:
        """A live column of 0..100 times a weight: how much a node meets of these preferences and of the terms."""
        more, near = self.met(who)
        column: Floats = (met + near) * 100.0 / (wished + more) * weight
        self._points.append((who, wished + more, weight, met, column))
        return column

    def tasks_of(self, selector: int) -> int:
        """How many tasks run of jobs that a selector matches."""
        return int(self._there[selector].sum())

    def refusals(self, who: int) -> Iterator[tuple[str, int, str, Bools]]:
        """Each required term of a profile: ("near" | "apart" | "kept_away", selector, topology, where it is met)."""
        profile = self.affinity.profiles[who]
        for term in profile.terms:
            if term.weight:
                continue
            here = self._here(self._there[term.selector], term.topology)
            if term.apart:
                yield "apart", term.selector, term.topology, ~here
            elif self._there[term.selector].any() or term.selector not in profile.selected_by:
                yield "near", term.selector, term.topology, here
            else:
                yield "near", term.selector, term.topology, self._nodes.domains(term.topology) >= 0
        for (selector, topology), held in self._kept.items():
            if selector in profile.selected_by:
                yield "kept_away", selector, topology, ~self._here(held, topology)

    def count(self, row: int, who: int, sign: int) -> list[int]:
        """Count a task of this profile on a node, or (`sign` -1) no more; the nodes whose columns changed."""
        return self._renew() if self._add(row, who, sign) else []

    def copy(self) -> tuple[list[Ints], dict[tuple[int, str], Ints]]:
        return [one.copy() for one in self._there], {key: one.copy() for key, one in self._kept.items()}

    def become(self, saved: tuple[list[Ints], dict[tuple[int, str], Ints]]) -> list[int]:
        """Count what was counted then; the nodes whose columns changed."""
        there, kept = saved
        for mine, other in zip(self._there, there, strict=True):
            mine[:] = other
        for key, other in kept.items():
            self._kept[key][:] = other
        return self._renew()

    def _add(self, row: int, who: int, sign: int) -> bool:
        """Whether some count of the node became 0, or ceased to be 0."""
        profile, turned = self.affinity.profiles[who], False
        for counts in (
            *(self._there[selector] for selector in profile.selected_by),
            *(self._kept[one] for one in profile.anti_affinity),
        ):
            before = counts.item(row)
            counts[row] = before + sign
            turned |= (before > 0) != (before + sign > 0)
        return turned

    def _renew(self) -> list[int]:
        changed = np.zeros(self._nodes.count, dtype=np.bool_)
        for who, column in self._open.items():
            now = self._may_go(who).astype(np.int64)
            changed |= column != now
            column[:] = now
        for who, met in self._met.items():
            wishes = self._wishes(who)
            changed |= met != wishes
            met[:] = wishes
        for who, total, weight, own, points in self._points:
            points[:] = (own + self._met[who]) * 100.0 / total * weight
        rows: list[int] = np.flatnonzero(changed).tolist()
        return rows

    def _may_go(self, who: int) -> Bools:
        may = np.ones(self._nodes.count, dtype=np.bool_)
        for _, _, _, met in self.refusals(who):
            may &= met
        return may

    def _wishes(self, who: int) -> Floats:
        points = np.zeros(self._nodes.count)
        for term in self.affinity.profiles[who].terms:
            if term.weight:
                here = self._here(self._there[term.selector], term.topology)
                points += np.where(here != term.apart, float(term.weight), 0.0)
        return points

    def _here(self, counts: Ints, topology: str) -> Bools:
        """Nodes in a domain where there is some; a node of no known domain is in none."""
        domains = self._nodes.domains(topology)
        known = domains >= 0
        some = np.zeros(int(domains.max(initial=-1)) + 1, dtype=np.bool_)
        some[domains[known & (counts > 0)]] = True
        here: Bools = known & (some[domains] if len(some) else False)
        return here
