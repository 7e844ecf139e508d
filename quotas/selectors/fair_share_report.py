"""How everybody stands in the tree of shares, as one person may see it, and in sentences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

import numpy as np
from django.utils import timezone

from accounts import permissions
from accounts.models import Membership, Organization, Project, User
from accounts.selectors import visible_projects
from quotas.core.decay import Decay
from quotas.core.fairshare import HARD, METERED, SOFT, STEPS, flat_share
from quotas.core.share_tree import ORGANIZATION, PERSON, PROJECT, Shares
from quotas.selectors.fair_share_source import share_rules, share_source, shares_at

#: Of one group of siblings, beside those that are the reader's own; and of all rows.
MOST_SIBLINGS: Final = 40
MOST_ROWS: Final = 400

_HIDDEN: Final = {ORGANIZATION: "another organization", PROJECT: "another project"}


@dataclass(frozen=True, slots=True)
class ShareLine:
    """One organization, project or person. `id` is None for what the reader may not know the name of."""

    kind: str
    id: int | None
    name: str
    depth: int
    weight: int
    #: Of its siblings together, 0 to 1: what it is entitled to and what it used; and of the whole site.
    share: float
    ratio: float
    entitled: float
    used_gpu_hours: float
    #: How many times its share it used; None when nobody among its siblings used anything or it has no share.
    times: float | None
    #: None where it has no place of its own.
    factor: float | None
    place: int | None
    of: int
    site_percent: float
    soft_percent: int | None
    hard_percent: int | None
    over: str
    mine: bool
    #: What the reader may edit it by: "organization/3", "project/5", "member/9" (a membership).
    edit: str
    sentence: str


@dataclass(frozen=True, slots=True)
class Standing:
    """The lines that a person may see, in the order in which the tree is walked."""

    at: datetime
    decay: Decay
    preview: bool
    #: Whether jobs follow the tree; else projects stand side by side and the flat formula orders them.
    is_tree: bool
    lines: tuple[ShareLine, ...]
    left_out: int
    dominant: bool

    @property
    def words(self) -> str:
        """How use counts, for the top of the page."""
        if self.decay.mode == "none":
            return "All past usage counts equally."
        window = span(self.decay.window_seconds)
        if self.decay.mode == "window":
            return f"Usage of the last {window} counts equally."
        half = span(self.decay.half_life_seconds)
        return f"Usage of the last {window} counts, with a half-life of {half}."


def standing(user: User, *, decay: Decay | None = None) -> Standing:
    """How those that a person may see stand now; with another decay, how they would stand under that one.

    Members see their projects and the people in them, and the shares of siblings without their names.
    """
    rules, metering = share_rules()
    now = timezone.now()
    at = now.timestamp()
    preview = decay is not None and decay != rules
    decay = decay or rules
    # The kept use is decayed by the site's own half-life; another one is answered from what was held.
    used = share_source().used(decay=decay, at=at, running_only=False) if preview else None
    shares = shares_at(at, decay=decay, metering=metering, used=used)
    walk = _Walk(user, shares, decay)
    return Standing(now, decay, preview, walk.is_tree, tuple(walk.lines), walk.left_out, metering.dominant)


class _Walk:
    """From the first of the highest siblings down: the order in which jobs are looked at."""

    def __init__(self, user: User, shares: Shares, decay: Decay) -> None:
        self.tree, self.standings, self.shares = shares.tree, shares.standings, shares
        self.user, self.decay = user, decay
        self.all = permissions.sees_everything(user)
        self.operator = permissions.may(user, "operate")
        self.roles = permissions.roles_of(user)
        self.visible = set(self.roles) if not self.all else set(self.tree.row_of_project)
        if not self.all:
            self.visible &= set(visible_projects(user).values_list("pk", flat=True))
        self.members = self._members()
        self.mine = self._mine()
        self.is_tree = not self._is_flat()
        self.flat = self._flat_places()
        self.children: dict[int, list[int]] = {}
        level = self.standings.level
        order = np.lexsort((np.arange(len(self.tree)), self.standings.used, -level)) if len(self.tree) else ()
        for row in map(int, order):
            self.children.setdefault(int(self.tree.parent[row]), []).append(row)
        self.lines: list[ShareLine] = []
        self.left_out = 0
        self._down(-1, 0)

    def _members(self) -> Mapping[tuple[int, int], int]:
        """Membership ids, for those who may edit weights of people."""
        projects = [
            number for number in self.visible
            if self.operator or self.roles.get(number) == "lead" or self.user.is_site_admin
        ]  # fmt: skip
        rows = Membership.objects.filter(project__in=projects).values_list("project_id", "user_id", "pk")
        return {(project, person): pk for project, person, pk in rows}

    def _mine(self) -> set[int]:
        """Rows on the way from the top to the reader's own projects, and the reader in them."""
        found: set[int] = set()
        for number in self.roles:
            row = self.tree.row_of_project.get(number, -1)
            person = self.tree.row_of_pair.get((number, self.user.pk), row)
            while person >= 0:
                found.add(person)
                person = int(self.tree.parent[person])
        return found

    def _is_flat(self) -> bool:
        homes = {int(self.tree.parent[row]) for row in self.tree.row_of_project.values()}
        people = np.array([kind == PERSON for kind in self.tree.kind], dtype=np.bool_)
        return len(homes) <= 1 and bool((self.tree.weight[people] <= 1).all())

    def _flat_places(self) -> dict[int, tuple[int, float]]:
        """Where shares are flat: the place and factor of each project, by the formula itself."""
        rows = list(self.tree.row_of_project.values())
        if self.is_tree or not rows:
            return {}
        share = flat_share(self.tree.weight[rows], self.standings.used[rows] / 3600)
        best = float(share.max()) or 1.0
        return {
            row: (int((share > own).sum()), float(own) / best)
            for row, own in zip(rows, share.tolist(), strict=True)
        }

    def _down(self, parent: int, depth: int) -> None:
        rows = self.children.get(parent, [])
        own = [row for row in rows if row in self.mine or self._named(row)]
        others = [row for row in rows if row not in own] if self._siblings_shown(parent, own) else []
        shown = {
            *own[: max(MOST_SIBLINGS, 1)],
            *(row for row in own if row in self.mine),
            *others[:MOST_SIBLINGS],
        }
        self.left_out += len(own) + len(others) - len(shown)
        for row in rows:
            if row not in shown:
                continue
            if len(self.lines) >= MOST_ROWS and row not in self.mine:
                self.left_out += 1
                continue
            self.lines.append(self._line(row, depth))
            if row in own:
                self._down(row, depth + 1)

    def _siblings_shown(self, parent: int, own: list[int]) -> bool:
        """Nobody sees people of a project that is not theirs; other siblings are shown without names."""
        return self.all or (bool(own) and (parent < 0 or self.tree.kind[parent] == ORGANIZATION))

    def _named(self, row: int) -> bool:
        if self.all:
            return True
        kind = self.tree.kind[row]
        if kind == PROJECT:
            return int(self.tree.id[row]) in self.visible
        if kind == PERSON:
            return int(self.tree.id[self.tree.parent[row]]) in self.visible
        return row in self.mine

    def _line(self, row: int, depth: int) -> ShareLine:
        tree, standings = self.tree, self.standings
        kind, named = tree.kind[row], self._named(row)
        share, ratio = float(standings.share[row]), float(standings.ratio[row])
        place: int | None
        if self.is_tree:
            place, of = int(standings.ahead[row]), standings.leaves
            factor: float | None = int(standings.factor[row]) / STEPS
        else:
            place, factor = self.flat.get(row, (None, None))
            of = len(self.flat)
        over = {SOFT: "soft", HARD: "hard"}.get(int(self.shares.over[row]), "")
        line = ShareLine(
            kind=kind,
            id=int(tree.id[row]) if named else None,
            name=(tree.name[row] or "former member") if named else _HIDDEN.get(kind, ""),
            depth=depth,
            weight=int(tree.weight[row]),
            share=share,
            ratio=ratio,
            entitled=float(standings.entitled[row]),
            used_gpu_hours=float(standings.used[row]) / 3600,
            times=ratio / share if share > 0 and self._siblings_used(row) else None,
            factor=factor,
            place=None if place is None else place + 1,
            of=of,
            site_percent=float(self.shares.percent[row]),
            soft_percent=int(tree.soft_percent[row]) or None if named else None,
            hard_percent=int(tree.hard_percent[row]) or None if named else None,
            over=over if named else "",
            mine=row in self.mine,
            edit=self._edit(row) if named else "",
            sentence="",
        )
        return _with_sentence(line, self.decay, is_tree=self.is_tree)

    def _siblings_used(self, row: int) -> bool:
        parent = int(self.tree.parent[row])
        return any(self.standings.used[one] > 0 for one in self.children.get(parent, []))

    def _edit(self, row: int) -> str:
        kind, number = self.tree.kind[row], int(self.tree.id[row])
        if kind != PERSON:
            return f"{kind}/{number}" if self.operator else ""
        member = self.members.get((int(self.tree.id[self.tree.parent[row]]), number))
        return f"member/{member}" if member is not None else ""


def _with_sentence(line: ShareLine, decay: Decay, *, is_tree: bool) -> ShareLine:
    return replace(line, sentence=sentence(line, decay, is_tree=is_tree))


def sentence(line: ShareLine, decay: Decay, *, is_tree: bool) -> str:
    """`Used 3.1 times its share over the last 7 days, factor 0.22: about 41st of 60.`"""
    over = "" if decay.mode == "none" else f" over the last {span(decay.window_seconds)}"
    if line.share == 0:
        return "No share here any more; past usage still counts for the project."
    if line.times is None or line.used_gpu_hours == 0:
        used = f"No usage{over}"
    else:
        used = f"Used {_times(line.times)} the share{over}"
    if line.place is None or line.factor is None:
        where = "." if line.kind == ORGANIZATION else "; in a project, jobs start first in, first out."
    elif line.kind == PERSON or not is_tree:
        where = f", factor {line.factor:.2f}: about {ordinal(line.place)} of {line.of:,}."
    else:
        where = f", factor {line.factor:.2f}: its best-placed member is about {ordinal(line.place)} of {line.of:,}."
    after = {"soft": "get the lowest priority", "hard": "wait until the usage has decayed"}.get(line.over)
    limit = f" Usage {line.site_percent:.0f} % of the site, above the {line.over} limit: jobs {after}."
    return f"{used}{where}{limit if after else ''}"


def _times(times: float) -> str:
    if 0.95 <= times < 1.05:
        return "exactly"
    return f"{times:.1f} times" if times < 100 else f"{times:,.0f} times"


def limit_words(subject: Organization | Project) -> str:
    """How much use one percent of a share's limits is now, and what the subject has used of the site."""
    decay, metering = share_rules()
    at = timezone.now().timestamp()
    capacity = share_source().capacity()
    site = {name: np.array([capacity.get(name, 0.0)]) for name in METERED}
    hours = float(metering.usage(site, capacity)[0]) * decay.full(at) / 3600
    if hours <= 0:
        return (
            "No limit can bind now: nothing that counts is on this site. Operators set what counts"
            " (GPUs, cores, memory) under Rules of fair share."
        )
    shares = shares_at(at, decay=decay, metering=metering)
    kind = ORGANIZATION if isinstance(subject, Organization) else PROJECT
    row = next(
        (
            row
            for row, one in enumerate(shares.tree.kind)
            if one == kind and shares.tree.id[row] == subject.pk
        ),
        None,
    )
    used = 0.0 if row is None else float(shares.standings.used[row]) / 3600
    return (
        f"The whole site, busy all the time that counts, is {hours:,.1f} hours (weighted): 1 % is {hours / 100:,.2f}."
        f" {subject.name} has used {used:,.2f}, {100 * used / hours:.1f} %. A limit of 10 % binds from"
        f" {hours / 10:,.2f} hours on, not sooner however busy the site is now."
    )


def ordinal(number: int) -> str:
    """`1` -> `1st`, `12` -> `12th`."""
    end = "th" if 10 < number % 100 < 14 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number:,}{end}"


def span(seconds: int) -> str:
    """`604800` -> `7 days`, `43200` -> `12 hours`."""
    for size, word in ((86_400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= size and (seconds % size == 0 or seconds >= 3 * size):
            count = f"{seconds / size:.1f}".removesuffix(".0")
            return f"{count} {word}" if count == "1" else f"{count} {word}s"
    return f"{seconds} seconds"
