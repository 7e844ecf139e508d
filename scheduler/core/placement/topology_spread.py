"""Topology spread: the tasks of a job over racks, zones or regions, as its term asks."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from scheduler.core.columns import Ints
from scheduler.core.snapshot.constraints import TaskTerm


@dataclass(frozen=True, slots=True)
class Spread:
    """A rule, and the domain of every node by number (-1 = none is known: not for these tasks)."""

    term: TaskTerm
    domains: Ints = field(compare=False)

    def capacities(self, slots: Ints) -> Ints:
        """How many tasks each domain takes, of nodes with these slots."""
        known = self.domains >= 0
        room = np.zeros(int(self.domains.max(initial=-1)) + 1, dtype=np.int64)
        np.add.at(room, self.domains[known], slots[known])
        return np.minimum(room, self.term.per_domain) if self.term.per_domain else room

    def shares(self, slots: Ints, tasks: int) -> list[tuple[int, int]] | None:
        """(domain, tasks in it), or None when the rule cannot be kept.

        As few domains as can be: the fullest that holds everything if one does, else the roomiest, evenly.
        """
        room = self.capacities(slots)
        order = np.argsort(-room, kind="stable")
        order = order[room[order] > 0]
        most = min(self.term.most or tasks, tasks, len(order))
        if most < self.term.least:
            return None
        held = np.cumsum(room[order])
        enough = np.flatnonzero(held >= tasks)
        if not len(enough) or int(enough[0]) >= most:
            return None
        count = max(int(enough[0]) + 1, self.term.least)
        if count == 1:
            holding = order[room[order] >= tasks]
            return [(int(holding[-1]), tasks)]
        return _evenly(order[:count].tolist(), room, tasks)

    def is_kept(self, rows: list[int]) -> bool:
        """Whether tasks on these nodes, one each, keep the rule."""
        domains, counts = np.unique(self.domains[rows], return_counts=True)
        return (
            int(domains[0]) >= 0
            and self.term.least <= len(domains) <= (self.term.most or len(rows))
            and (not self.term.per_domain or int(counts.max()) <= self.term.per_domain)
        )


def _evenly(domains: list[int], room: Ints, tasks: int) -> list[tuple[int, int]]:
    """The smallest first: what it cannot take is divided among those after it."""
    shares: list[tuple[int, int]] = []
    for place, domain in enumerate(sorted(domains, key=lambda one: (int(room[one]), one))):
        share = min(int(room[domain]), tasks // (len(domains) - place))
        shares.append((domain, share))
        tasks -= share
    return sorted(shares)
