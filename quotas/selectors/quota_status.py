"""Quota lines as they stand: what bounds each, what is free on its way up, what is borrowed, lent, or over."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from django.db import connection
from django.db.models import Q

from accounts.models import Project
from quotas.core.limits import NONE, UNBOUNDED, LimitTree
from quotas.core.line_paths import LinePaths, limits_what
from quotas.models import Quota, QuotaResource
from quotas.usage_source import usage_source

#: Organizations, those of projects, and all above them.
_UP: Final = """
WITH RECURSIVE up(id, parent_id) AS (
    SELECT organization.id, organization.parent_id FROM accounts_organization organization
    WHERE organization.id = ANY(%(organizations)s) OR organization.id IN (
        SELECT organization_id FROM accounts_project WHERE id = ANY(%(projects)s))
        OR organization.id IN (
            SELECT coalesce(quota.organization_id, project.organization_id)
            FROM quotas_quota quota LEFT JOIN accounts_project project ON project.id = quota.project_id
            WHERE quota.lending_limit IS NOT NULL AND quota.enforce)
    UNION SELECT organization.id, organization.parent_id
    FROM up JOIN accounts_organization organization ON organization.id = up.parent_id
) SELECT id, parent_id FROM up
"""
#: What the lines right below these organizations and projects have together: shares, used of them, and idle
#: parts that may be lent.
_BELOW: Final = """
SELECT coalesce(project.organization_id, child.parent_id), NULL::bigint,
    quota.resource, quota.gpu_model, quota.job_type, {sums}
FROM quotas_quota quota LEFT JOIN accounts_project project ON project.id = quota.project_id
    LEFT JOIN accounts_organization child ON child.id = quota.organization_id
WHERE quota.user_id IS NULL AND quota.nominal IS NOT NULL
    AND (project.organization_id = ANY(%(organizations)s) OR child.parent_id = ANY(%(organizations)s))
GROUP BY 1, 3, 4, 5
UNION ALL
SELECT NULL::bigint, quota.project_id, quota.resource, quota.gpu_model, quota.job_type, {sums}
FROM quotas_quota quota
WHERE quota.user_id IS NOT NULL AND quota.nominal IS NOT NULL AND quota.project_id = ANY(%(projects)s)
GROUP BY 2, 3, 4, 5
""".format(
    sums="sum(quota.nominal)::bigint, sum(least(quota.used, quota.nominal))::bigint,"
    " sum(least(greatest(quota.nominal - quota.used, 0), quota.lending_limit))::bigint"
)


@dataclass(frozen=True, slots=True)
class LineState:
    """One line now; amounts in the unit of its resource, None = nothing bounds it."""

    line: Quota
    #: The line above that limits the same thing; 0 = none.
    parent_id: int
    used: int
    #: The most that may be in use on it by itself.
    bound: int | None
    #: What could start now on it and on all above it.
    free: int | None
    #: In use above its nominal; and, of its idle nominal, what others above theirs use now.
    borrowed: int
    lent: int

    @property
    def over(self) -> bool:
        """More is in use than it allows, from before it was cut: grandfathered, and nothing new starts."""
        return self.bound is not None and self.used > self.bound

    @property
    def stops_at(self) -> datetime | None:
        """When jobs are stopped until an overrun limit is kept again; None: they run to their end."""
        line = self.line
        if line.over_since is None or line.converge_after_seconds is None or not self.over:
            return None
        return line.over_since + timedelta(seconds=line.converge_after_seconds)


def line_states(lines: Iterable[Quota]) -> dict[int, LineState]:
    """How these lines stand among those above and beside them; as many queries for many as for one."""
    return Standings(lines).states()


class Standings:
    """Some lines, those above them, and those of others that keep something back of the same."""

    def __init__(
        self,
        lines: Iterable[Quota],
        *,
        above: Mapping[int, int | None] | None = None,
        lock: bool = False,
    ) -> None:
        """`above` is the organization above each of those that the lines are of, where that is known."""
        wanted = {line.pk: line for line in lines}
        self.wanted = list(wanted)
        projects = {line.project_id for line in wanted.values() if line.project_id is not None}
        organizations = {line.organization_id for line in wanted.values() if line.organization_id is not None}
        if above is None:
            places = {"organizations": list(organizations), "projects": list(projects)}
            above = dict(_rows(_UP, places))
        around = Q(organization__in=list(above)) | Q(lending_limit__isnull=False, enforce=True)
        around |= Q(project__in=projects, user__isnull=True)
        rows = Quota.objects.filter(around).exclude(pk__in=self.wanted).select_related("project")
        if lock:
            rows = rows.select_for_update(of=("self",))
        found = [*wanted.values(), *rows.order_by("id")]
        self.paths: LinePaths[Quota] = LinePaths(  # type: ignore[type-var]  # a protocol does not see fields of Django
            found,
            above=above,
            organization_of={line.project_id: line.project.organization_id for line in found if line.project},
        )
        self.used = _used(found)
        self.parent = self.paths.parents()
        self.number = {line: number for number, line in enumerate(self.paths.rows)}
        self.tree = _tree(list(self.paths.rows.values()), self.used, self.parent, self.number)

    def states(self) -> dict[int, LineState]:
        lent = self._lent()
        return {pk: self._state(self.paths.rows[pk], lent.get(pk, 0)) for pk in self.wanted}

    def bound_of(self, line: int) -> int:
        """The most that may be in use on it by itself; UNBOUNDED: any."""
        return self.tree.bound[self.number[line]]

    def short(self, charges: Sequence[tuple[int, int]]) -> dict[int, int]:
        """The lines (ids) that have no room for these amounts on top, with how much is missing on each.

        The amounts are of one job, each line before the one above it. What is kept back for others counts
        as in use; the line that this stops first is among those answered.
        """
        rows = self.paths.rows
        numbered = [(self.number[line], amount) for line, amount in charges]
        found = {
            line: missing
            for line, amount in charges
            if (missing := self.tree.used[self.number[line]] + amount - self.tree.bound[self.number[line]])
            > 0
        }
        if not found and (first := self.tree.short(numbered)) is not None:
            number, amount = first
            found[list(rows)[number]] = max(amount - self.tree.free(number), 1)
        return found

    def _state(self, line: Quota, lent: int) -> LineState:
        number = self.number[line.pk]
        bound, free = self.tree.bound[number], self.tree.free(number)
        return LineState(
            line=line,
            parent_id=self.parent[line.pk],
            used=self.used[line.pk],
            bound=None if bound >= UNBOUNDED else bound,
            free=None if free >= UNBOUNDED else free,
            borrowed=self.tree.borrowed(number),
            lent=lent,
        )

    def _lent(self) -> dict[int, int]:
        """Of what each line may lend, the part that others under the same line above use.

        A project above its own share uses first what nobody was given; the rest is borrowed of all those
        that have something idle, of each in proportion to it.
        """
        lenders = [
            line
            for pk in self.wanted
            if (line := self.paths.rows[pk]).nominal is not None
            and self.parent[pk]
            and line.nominal > self.used[pk]
        ]
        if not lenders:
            return {}
        parents = [self.paths.rows[self.parent[line.pk]] for line in lenders]
        places = {
            "organizations": [one.organization_id for one in parents if one.organization_id is not None],
            "projects": [one.project_id for one in parents if one.project_id is not None],
        }
        below = {tuple(row[:5]): row[5:] for row in _rows(_BELOW, places)}
        found = {}
        for line, up in zip(lenders, parents, strict=True):
            sums = below.get((up.organization_id, up.project_id, *limits_what(up)))  # type: ignore[arg-type]
            if sums is None:
                continue
            shares, of_shares, lendable = sums
            whole = up.nominal if up.nominal is not None else self.tree.bound[self.number[up.pk]]
            borrowed = self.used[up.pk] - of_shares - max(whole - shares, 0)
            own = min(_idle(line, self.used[line.pk]), lendable)
            if lendable:
                found[line.pk] = max(min(borrowed, lendable), 0) * own // lendable
        return found


@dataclass(frozen=True, slots=True)
class Found:
    """The lines that jobs of some projects count on, each before the one above it, and those of one person."""

    of_project: Mapping[int, Sequence[Quota]]
    of_person: Sequence[Quota]
    #: The organization above each, as far as the projects reach.
    above: Mapping[int, int | None]

    def standings(self) -> Standings:
        lines = [line for each in self.of_project.values() for line in each]
        return Standings((*lines, *self.of_person), above=self.above)


def find_lines(projects: Sequence[Project], *, user_id: int | None = None, everybody: bool = False) -> Found:
    """The lines of these projects and all above, with those of the person; `everybody`: of all its people."""
    ids = [project.pk for project in projects]
    above = dict(_rows(_UP, {"organizations": [], "projects": ids}))
    wanted = Q(project__in=ids) | Q(organization__in=list(above))
    if not everybody:
        wanted &= Q(user__isnull=True) | Q(user=user_id)
    wanted |= Q(project__isnull=True, organization__isnull=True, user=user_id)
    rows = Quota.objects.filter(wanted).select_related("project", "organization", "user").order_by("id")
    paths = LinePaths(rows, above=above, organization_of={p.pk: p.organization_id for p in projects})  # type: ignore[type-var]
    own = [] if user_id is None else paths.of_person(user_id)
    return Found({pk: paths.of_project(pk) for pk in ids}, own, above)


def lines_on_path(project: Project) -> list[Quota]:
    """Every line that some job of the project counts on, but for what limits a person everywhere."""
    return list(find_lines([project], everybody=True).of_project[project.pk])


def _idle(line: Quota, used: int) -> int:
    idle = max((line.nominal or 0) - used, 0)
    return idle if line.lending_limit is None else min(idle, line.lending_limit)


def _used(lines: Sequence[Quota]) -> dict[int, int]:
    """In use on each; waiting jobs are counted now, for no row counts them."""
    waiting = [line.pk for line in lines if line.resource == QuotaResource.PENDING_JOBS]
    counted = usage_source().pending_jobs(waiting) if waiting else {}
    return {line.pk: counted.get(line.pk, line.used) for line in lines}


def _tree(
    lines: Sequence[Quota], used: Mapping[int, int], parent: Mapping[int, int], number: Mapping[int, int]
) -> LimitTree:
    def amounts(name: str) -> list[int]:
        return [NONE if (amount := getattr(line, name)) is None else amount for line in lines]

    return LimitTree(
        parent=[number.get(parent[line.pk], NONE) for line in lines],
        used=[used[line.pk] for line in lines],
        hard=amounts("hard"),
        nominal=amounts("nominal"),
        borrowing_limit=amounts("borrowing_limit"),
        lending_limit=amounts("lending_limit"),
        enforce=[line.enforce for line in lines],
        is_pool=[line.organization_id is not None for line in lines],
    )


def _rows(sql: str, places: Mapping[str, Any]) -> list[Any]:
    with connection.cursor() as cursor:
        cursor.execute(sql, places)
        return list(cursor.fetchall())
