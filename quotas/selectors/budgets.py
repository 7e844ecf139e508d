"""Sums of the ledger and paths of budgets, for pages, the API and the checks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from django.db import connection

from quotas.core.budgets import COUNTED, BudgetTerms
from quotas.core.ledger import Amount
from quotas.core.periods import Period
from quotas.models import Budget, BudgetPeriod

#: The projects that count on a budget: its own, or all below its organization.
_PROJECTS_OF: Final = """
WITH RECURSIVE below(id) AS (
    SELECT organization_id FROM quotas_budget WHERE id = %(budget)s AND organization_id IS NOT NULL
    UNION SELECT child.id FROM accounts_organization child JOIN below ON child.parent_id = below.id
), counted(id) AS (
    SELECT project_id FROM quotas_budget WHERE id = %(budget)s AND project_id IS NOT NULL
    UNION SELECT project.id FROM accounts_project project JOIN below ON project.organization_id = below.id
)"""
#: The projects on which a budget counts that has not ended, and since when one does: `counted(project_id, since)`.
COUNTED_PROJECTS: Final = """
WITH RECURSIVE below(id, since) AS (
    SELECT organization_id, created_at FROM quotas_budget
    WHERE organization_id IS NOT NULL AND (ends_at IS NULL OR ends_at > statement_timestamp())
    UNION SELECT child.id, below.since FROM accounts_organization child JOIN below ON child.parent_id = below.id
), counted(project_id, since) AS (
    SELECT project_id, min(since) FROM (
        SELECT project_id, created_at AS since FROM quotas_budget
        WHERE project_id IS NOT NULL AND (ends_at IS NULL OR ends_at > statement_timestamp())
        UNION ALL SELECT project.id, below.since FROM accounts_project project
            JOIN below ON project.organization_id = below.id
    ) each GROUP BY project_id
)"""
_COUNTED: Final = " SELECT id FROM counted ORDER BY 1"
_BELOW: Final = """
WITH RECURSIVE below(id) AS (
    SELECT id FROM accounts_organization WHERE slug = %s
    UNION SELECT child.id FROM accounts_organization child JOIN below ON child.parent_id = below.id
) SELECT project.id FROM accounts_project project JOIN below ON project.organization_id = below.id ORDER BY 1
"""
_PATHS: Final = """
SELECT project_id, budget_id FROM (WITH RECURSIVE path(project_id, organization_id) AS (
    SELECT id, organization_id FROM accounts_project WHERE id = ANY(%(projects)s)
    UNION
    SELECT path.project_id, organization.parent_id FROM path
        JOIN accounts_organization organization ON organization.id = path.organization_id
    WHERE organization.parent_id IS NOT NULL
)
SELECT DISTINCT path.project_id, budget.id AS budget_id FROM quotas_budget budget JOIN path
    ON budget.project_id = path.project_id OR budget.organization_id = path.organization_id
) AS found ORDER BY 1, 2
"""


def sums_sql(resource: str) -> str:
    """The two sums of a budget's resource over rows of the ledger called `entry`: held, then charged."""
    counted = COUNTED[resource]
    if counted == "money_micros":
        held, charged = "entry.held_micros", "entry.charged_micros"
    else:
        held, charged = f"entry.{counted} * entry.held_seconds", f"entry.{counted} * entry.charged_seconds"
    return f"coalesce(sum({held}), 0)::bigint, coalesce(sum({charged}), 0)::bigint"


def sum_of_period(period: BudgetPeriod) -> Amount:
    """What the ledger has for a period of a budget: what its counters must be."""
    with connection.cursor() as cursor:
        cursor.execute(
            f"""{_PROJECTS_OF}
            SELECT {sums_sql(period.budget.resource)} FROM quotas_ledgerentry entry
            WHERE entry.project_id IN (SELECT id FROM counted)
                AND entry.starts_at >= %(begin)s AND entry.starts_at < %(end)s
            """,  # noqa: S608  names of columns of ours
            {"budget": period.budget_id, "begin": period.starts_at, "end": period.ends_at},
        )
        held, charged = cursor.fetchone()
    return Amount(held, charged)


def projects_of(budget: Budget) -> list[int]:
    with connection.cursor() as cursor:
        cursor.execute(_PROJECTS_OF + _COUNTED, {"budget": budget.pk})
        return [row[0] for row in cursor.fetchall()]


def projects_below(slug: str) -> list[int]:
    """The projects of an organization and of all below it; none where there is no such organization."""
    with connection.cursor() as cursor:
        cursor.execute(_BELOW, [slug])
        return [row[0] for row in cursor.fetchall()]


def budgets_of_projects(project_ids: Iterable[int]) -> dict[int, list[int]]:
    """The ids of all budgets on the path of each project."""
    found: defaultdict[int, list[int]] = defaultdict(list)
    with connection.cursor() as cursor:
        cursor.execute(_PATHS, {"projects": list(project_ids)})
        for project_id, budget_id in cursor.fetchall():
            found[project_id].append(budget_id)
    return dict(found)


def terms_of(budget: Budget) -> BudgetTerms:
    return BudgetTerms(
        budget.pk,
        budget.resource,
        Period(budget.period),
        int(budget.starts_at.timestamp()),
        int(budget.ends_at.timestamp()) if budget.ends_at else None,
    )
