"""Reads of limits and their use, for those who may see the project."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from django.db import connection
from django.db.models import Q, QuerySet
from django.utils import timezone

from accounts import permissions
from accounts.models import Project, User
from accounts.selectors import visible_projects
from infra.errors import NotFound
from quotas.models import Budget, Grant, Quota

#: The organizations of some projects, and all above them.
_ABOVE: Final = """
WITH RECURSIVE up(id, parent_id) AS (
    SELECT organization.id, organization.parent_id FROM accounts_organization organization
    WHERE organization.id IN (SELECT organization_id FROM accounts_project WHERE id = ANY(%s))
    UNION SELECT organization.id, organization.parent_id
    FROM up JOIN accounts_organization organization ON organization.id = up.parent_id
) SELECT id FROM up
"""


def organizations_above(project_ids: Iterable[int]) -> list[int]:
    with connection.cursor() as cursor:
        cursor.execute(_ABOVE, [list(project_ids)])
        return [row[0] for row in cursor.fetchall()]


def visible_lines(user: User) -> QuerySet[Quota]:
    """The lines of every project that the person may see, of what is above those, and the person's own."""
    rows = Quota.objects.select_related("project", "organization", "user")
    if permissions.sees_everything(user):
        return rows
    projects = list(visible_projects(user).order_by().values_list("pk", flat=True))
    return rows.filter(
        Q(project__in=projects)
        | Q(organization__in=organizations_above(projects))
        | Q(project__isnull=True, user=user)
    )


def line_by_id(user: User, line_id: int) -> Quota:
    found = visible_lines(user).filter(pk=line_id).first()
    if found is None:
        raise NotFound(
            f"There is no limit {line_id}, or it applies to none of your projects.",
            way_out="GET /api/v1/quotas/lines lists those that you can see.",
        )
    return found


def visible_grants(user: User) -> QuerySet[Grant]:
    """The requests of every project that the person may see."""
    rows = Grant.objects.select_related("project", "budget", "asked_by", "decided_by", "seconded_by")
    return rows.filter(project__in=visible_projects(user).order_by().values("pk"))


def budgets_to_raise(project: Project) -> QuerySet[Budget]:
    """The project's own budgets that are not over: a grant may raise them for a time."""
    return Budget.objects.filter(project=project).exclude(ends_at__lte=timezone.now()).order_by("id")


def budget_of_project(project: Project, budget_id: int) -> Budget:
    found = Budget.objects.filter(project=project, pk=budget_id).first()
    if found is None:
        raise NotFound(
            f"{project.name} has no budget {budget_id} of its own.",
            way_out="GET /api/v1/quotas/budgets lists those that you can see.",
        )
    return found


def grant_by_id(user: User, grant_id: int) -> Grant:
    found = visible_grants(user).filter(pk=grant_id).first()
    if found is None:
        raise NotFound(
            f"There is no request {grant_id}, or you may not see it.",
            way_out="The page Requests and GET /api/v1/quotas/requests list the requests that you can see.",
        )
    return found
