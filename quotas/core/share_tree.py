"""The tree of shares: organizations, their projects, the people in them; and how each of them stands."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from quotas.core.fairshare import (
    METERED,
    NOTHING,
    Floats,
    Ints,
    Metering,
    Standings,
    fair_tree,
    over_share,
)

ORGANIZATION, PROJECT, PERSON = "organization", "project", "person"

Pair = tuple[int, int]  # project id, user id
Use = tuple[float, float, float]  # seconds of GPUs, cores, GiB


@dataclass(frozen=True)
class ShareTree:
    """Rows with every parent before its children: organizations from the top, projects, people."""

    kind: tuple[str, ...]
    id: Ints
    name: tuple[str, ...]
    parent: Ints
    weight: Ints
    soft_percent: Ints  # 0 = no limit
    hard_percent: Ints

    __hash__ = None  # type: ignore[assignment]

    def __len__(self) -> int:
        return len(self.kind)

    @cached_property
    def row_of_project(self) -> dict[int, int]:
        return {
            number: row
            for row, (kind, number) in enumerate(zip(self.kind, self.id.tolist(), strict=True))
            if kind == PROJECT
        }

    @cached_property
    def row_of_pair(self) -> dict[Pair, int]:
        ids, parents = self.id.tolist(), self.parent.tolist()
        return {(ids[parents[row]], ids[row]): row for row, kind in enumerate(self.kind) if kind == PERSON}


#: id, name, parent id or None, weight, soft, hard
OrganizationRow = tuple[int, str, int | None, int, int | None, int | None]
#: id, name, organization id, weight, soft, hard
ProjectRow = tuple[int, str, int, int, int | None, int | None]
#: project id, user id, name, weight
MemberRow = tuple[int, int, str, int]

#: Of somebody who used a project and is no member any more: the use counts, the share is gone.
NO_MEMBER: Final = 0


#: Kind, id, name, index of the parent's row, weight, soft and hard percent.
_Row = tuple[str, int, str, int, int, "int | None", "int | None"]


def build_tree(
    organizations: Iterable[OrganizationRow],
    projects: Iterable[ProjectRow],
    members: Iterable[MemberRow],
    pairs: Iterable[Pair] = (),
) -> ShareTree:
    """The tree of these rows; organizations below which there is no project stand for nobody and are left out.

    `pairs` are people who used or use a project, whether members or not; those of other projects are ignored.
    """
    every = _without_circles({row[0]: row for row in organizations})
    listed = list(projects)
    rows: list[_Row] = []
    place: dict[int, int] = {}
    for number in _from_the_root(every, listed):
        _, name, above, weight, soft, hard = every[number]
        place[number] = len(rows)
        rows.append((ORGANIZATION, number, name, -1 if above is None else place[above], weight, soft, hard))
    home: dict[int, int] = {}
    for number, name, organization, weight, soft, hard in sorted(listed):
        home[number] = len(rows)
        rows.append((PROJECT, number, name, place[organization], weight, soft, hard))
    people = {(project, user): (name, weight) for project, user, name, weight in members if project in home}
    for pair in pairs:
        if pair[0] in home:
            people.setdefault(pair, ("", NO_MEMBER))
    for (number, user), (name, weight) in sorted(people.items()):
        rows.append((PERSON, user, name, home[number], weight, None, None))
    return _as_columns(rows)


def _from_the_root(every: Mapping[int, OrganizationRow], projects: Iterable[ProjectRow]) -> list[int]:
    """The organizations with a project somewhere below them, each after the one it is in."""
    depth: dict[int, int] = {}
    for project in projects:
        path: list[int] = []
        above: int | None = project[2]
        while above is not None and above not in depth:
            path.append(above)
            above = every[above][2]
        for number in reversed(path):
            depth[number] = 0 if above is None else depth[above] + 1
            above = number
    return sorted(depth, key=lambda number: (depth[number], number))


def _as_columns(rows: Sequence[_Row]) -> ShareTree:
    columns = list(zip(*rows, strict=True)) if rows else [()] * 7
    return ShareTree(
        kind=tuple(columns[0]),
        id=np.array(columns[1], dtype=np.int64),
        name=tuple(columns[2]),
        parent=np.array(columns[3], dtype=np.int64),
        weight=np.array(columns[4], dtype=np.int64),
        soft_percent=np.array([one or 0 for one in columns[5]], dtype=np.int64),
        hard_percent=np.array([one or 0 for one in columns[6]], dtype=np.int64),
    )


def _without_circles(every: dict[int, OrganizationRow]) -> dict[int, OrganizationRow]:
    """Organizations that somebody has put below each other: the lowest of them then stands at the top."""
    for number in sorted(every):
        one, met = number, set[int]()
        while (above := every[one][2]) is not None and above not in met:
            met.add(one)
            one = above
        if above is not None:
            row = every[number]
            every[number] = (row[0], row[1], None, *row[3:])
    return every


@dataclass(frozen=True)
class Shares:
    """A tree and how each of its rows stands at one moment."""

    tree: ShareTree
    standings: Standings
    #: Of all that the site could have given in the time that counts, in percent.
    percent: Floats
    #: Which limit of a share it or one above it has passed, and the row whose limit that is (-1 = none).
    over: Ints
    over_row: Ints

    __hash__ = None  # type: ignore[assignment]


def shares_of(
    tree: ShareTree,
    used: Mapping[Pair, Use],
    *,
    metering: Metering,
    capacity: Mapping[str, float],
    full_seconds: float,
) -> Shares:
    """How everybody stands who used this; `full_seconds` is what holding one thing all the time counts."""
    amounts = {name: np.zeros(len(tree)) for name in METERED}
    for pair, use in used.items():
        row = tree.row_of_pair.get(pair)
        if row is not None:
            for name, amount in zip(METERED, use, strict=True):
                amounts[name][row] += amount
    own = metering.usage(amounts, capacity)
    standings = fair_tree(tree.parent, tree.weight, own)
    site = {name: np.array([capacity.get(name, 0.0)]) for name in METERED}
    full = float(metering.usage(site, capacity)[0]) * full_seconds
    percent = standings.used * 100.0 / full if full > 0 else np.zeros(len(tree))
    own_over = over_share(standings.used, full, tree.soft_percent, tree.hard_percent)
    over, over_row = own_over.copy(), np.where(own_over > NOTHING, np.arange(len(tree)), -1)
    if over.any():
        for row, parent in enumerate(tree.parent.tolist()):
            if parent >= 0 and over[parent] > over[row]:
                over[row], over_row[row] = over[parent], over_row[parent]
    return Shares(tree, standings, percent, over, over_row)
