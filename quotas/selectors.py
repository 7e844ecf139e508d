"""Reads of limits and their use, for those who may see the project."""

from __future__ import annotations

from collections import defaultdict

from accounts.models import Project, User
from accounts.selectors import visible_projects
from quotas.models import Quota, QuotaResource
from quotas.providers.base import QuotaSheet
from quotas.providers.local import sheet_of
from quotas.providers.registry import provider, usage_source


def quota_sheet(project: Project) -> QuotaSheet:
    """The whole quota of a project, from the provider that keeps it."""
    row = Quota.objects.plain().filter(project=project).only("provider").first()
    return provider(row.provider if row else "").get_quota(project.pk)


def quota_sheets(user: User) -> list[tuple[Project, QuotaSheet]]:
    """Every project the person may see, with its quota; as many queries for many projects as for one."""
    projects = list(visible_projects(user))
    rows: defaultdict[int, list[Quota]] = defaultdict(list)
    for row in Quota.objects.plain().filter(project__in=projects).order_by("id"):
        rows[row.project_id].append(row)
    held = usage_source().usage(
        [project.pk for project in projects if len(rows[project.pk]) < len(QuotaResource.counted())]
    )
    return [(p, sheet_of(p.pk, rows[p.pk], held.get(p.pk, {}))) for p in projects]
