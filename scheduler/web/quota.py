"""What my projects may have in use at once, what they use, and what waits for it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

from django.db.models import Count
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_GET

from accounts import permissions
from accounts.models import Project
from accounts.selectors import visible_projects
from accounts.web.pages import page, reader
from quotas.models import Provider, Quota
from quotas.provider_view import provider_views
from quotas.templatetags.amounts import RESOURCE_WORDS, amount
from scheduler.models import Job

#: Operators see every project; this many are shown, the others through the project's own page.
MOST_PROJECTS: Final = 100


@dataclass(frozen=True, slots=True)
class Line:
    """One quota line as a bullet bar."""

    quota: Quota
    word: str
    pending: int

    @property
    def bound(self) -> int | None:
        """What ends the bar: the hard limit, else the soft one, else the nominal share."""
        for value in (self.quota.hard, self.quota.soft, self.quota.nominal):
            if value is not None:
                return value
        return None

    @property
    def scale(self) -> int:
        """The bar's whole length: enough for the bound, what is used, and a little more."""
        return max(self.bound or 0, self.quota.used + self.pending, 1)

    @property
    def tone(self) -> str:
        quota = self.quota
        if quota.hard is not None and quota.used >= quota.hard > 0:
            return "failed" if quota.enforce else "pending"
        if quota.soft is not None and quota.used >= quota.soft:
            return "pending"
        return "running"

    @property
    def sentence(self) -> str:
        """What it means for the next job."""
        quota, resource = self.quota, self.quota.resource
        if self.bound is None:
            return "No bound is set."
        if quota.hard is None:
            return "Passing this only warns; nothing is held back."
        if not quota.enforce:
            return "Counted, not enforced: passing it holds nothing back."
        left = quota.hard - quota.used
        if left <= 0:
            return "All of it is in use: new jobs wait until some end."
        if self.pending > left:
            return f"{amount(left, resource)} left; waiting jobs ask for {amount(self.pending, resource)}."
        return f"{amount(left, resource)} left."


@require_GET
@page
def index(request: HttpRequest) -> HttpResponse:
    user = reader(request)
    projects = list(visible_projects(user).order_by("name", "id")[:MOST_PROJECTS])
    roles = permissions.roles_of(user)
    projects.sort(key=lambda project: project.pk not in roles)
    found = _lines(projects)
    kept_outside = [
        p.pk for p, lines in found if any(line.quota.provider != Provider.LOCAL for line in lines)
    ]
    outside = provider_views(kept_outside) if kept_outside else {}
    context = {
        "sections": [(p, lines, roles.get(p.pk, ""), outside.get(p.pk)) for p, lines in found],
        "may_edit": user.is_staff and user.is_operator,
        "live_url": f"{reverse('quota')}?partial=1",
    }
    template = "scheduler/quota_body.html" if "partial" in request.GET else "scheduler/quota.html"
    return render(request, template, context)


def _lines(projects: list[Project]) -> list[tuple[Project, list[Line]]]:
    """Every project's lines with what its pending jobs ask for, in two queries for all projects."""
    ids = [project.pk for project in projects]
    asked: dict[int, Counter[str]] = {pk: Counter() for pk in ids}
    rows = Job.objects.pending().filter(project__in=ids).order_by()
    for project_id, cpu, memory, storage, gpus, share, tasks, count in rows.values_list(
        "project_id", "cpu_millis", "memory_mib", "storage_mib", "gpus", "gpu_millis", "tasks"
    ).annotate(jobs=Count("number")):
        sums, times = asked[project_id], tasks * count
        sums["cpu_millis"] += cpu * times
        sums["memory_mib"] += memory * times
        sums["storage_mib"] += storage * times
        sums["gpu_millis"] += (share or gpus * 1000) * times
        sums["running_jobs"] += count
    lines: dict[int, list[Line]] = {pk: [] for pk in ids}
    for quota in Quota.objects.plain().filter(project__in=ids):
        word = RESOURCE_WORDS[quota.resource]
        lines[quota.project_id].append(Line(quota, word, asked[quota.project_id][quota.resource]))
    order = list(RESOURCE_WORDS)
    for each in lines.values():
        each.sort(key=lambda line: order.index(line.quota.resource))
    return [(project, lines[project.pk]) for project in projects]
