"""What my projects may have in use at once, what they use, and what waits for it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_safe

from accounts import permissions
from accounts.models import Project, User
from accounts.selectors import visible_projects
from accounts.web.pages import page, reader
from infra.times_in_text import written
from quotas.core.amounts import RESOURCE_WORDS
from quotas.models import Provider, Quota
from quotas.providers.view import ProviderView, provider_views
from quotas.selectors.quota_status import LineState, find_lines
from quotas.templatetags.amounts import amount
from scheduler.selectors import asked_of

#: Operators see every project; this many are shown, the others through the project's own page.
MOST_PROJECTS: Final = 100
#: Of a project's other people, those whose limits are fullest.
MOST_PEOPLE: Final = 12


@dataclass(frozen=True, slots=True)
class Line:
    """One quota line as a bullet bar."""

    state: LineState
    word: str
    pending: int
    #: Where the rows behind what is in use are listed.
    usage_url: str

    @property
    def quota(self) -> Quota:
        return self.state.line

    @property
    def bound(self) -> int | None:
        """What ends the bar: what may be in use, else the soft limit, else the nominal share."""
        for value in (self.state.bound, self.quota.hard, self.quota.soft, self.quota.nominal):
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
        if self.state.bound is not None and quota.used >= self.state.bound > 0:
            return "failed"
        if quota.hard is not None and quota.used >= quota.hard > 0:
            return "pending"
        if quota.soft is not None and quota.used >= quota.soft:
            return "pending"
        return "running"

    @property
    def sentence(self) -> str:
        """What it means for the next job."""
        quota, resource = self.quota, self.quota.resource
        state = self.state
        if state.over:
            stops = (
                " Running jobs continue to their end."
                if state.stops_at is None
                else f" From {written(state.stops_at)}, the most recently started jobs are stopped."
            )
            return f"Over the limit: usage from before the limit was lowered. No new job starts.{stops}"
        if self.bound is None and state.free is None:
            return "No limit set."
        if not quota.enforce:
            return "Counted, not enforced: exceeding this limit blocks no job."
        if state.free is None:
            return "Soft limit: exceeding it only warns."
        left = state.free
        if left <= 0:
            if state.bound is not None and state.used >= state.bound:
                return "Fully used: new jobs wait until others end."
            return "Nothing free above: a parent limit is full or reserves the rest for others."
        where = (
            "" if state.bound is not None and left == state.bound - state.used else " in the parent limits"
        )
        if self.pending > left:
            return f"{amount(left, resource)} left{where}; pending jobs request {amount(self.pending, resource)}."
        return f"{amount(left, resource)} left{where}."

    @property
    def facts(self) -> list[str]:
        """`nominal 8`, `lent 6`, `soft limit 6`: those that there are."""
        said = (
            ("nominal", self.quota.nominal), ("borrowed", self.state.borrowed or None),
            ("lent", self.state.lent or None),
            ("soft limit", self.quota.soft),
        )  # fmt: skip
        return [f"{word} {amount(value, self.quota.resource)}" for word, value in said if value is not None]

    @property
    def what(self) -> str:
        """`H100 GPUs`, `Running jobs of interactive jobs`."""
        kind = f"{self.quota.job_type} jobs only" if self.quota.job_type else ""
        return ", ".join(part for part in (f"{self.quota.gpu_model} {self.word}".strip(), kind) if part)


@dataclass(frozen=True, slots=True)
class Section:
    """A project: its own limits, and all others that bind its jobs."""

    project: Project
    lines: list[Line]
    others: list[Line]
    left_out: int
    role: str
    outside: ProviderView | None


@require_safe
@page
def index(request: HttpRequest) -> HttpResponse:
    user = reader(request)
    projects = list(visible_projects(user).order_by("name", "id")[:MOST_PROJECTS])
    roles = permissions.roles_of(user)
    projects.sort(key=lambda project: project.pk not in roles)
    sections, personal = _sections(projects, user, roles)
    context = {
        "sections": sections,
        "personal": personal,
        "may_edit": user.is_staff and user.is_operator,
        "live_url": f"{reverse('quota')}?partial=1",
    }
    template = "scheduler/quota_body.html" if "partial" in request.GET else "scheduler/quota.html"
    return render(request, template, context)


def _kinds_of_lines(lines: Iterable[Quota], user: User) -> tuple[list[Quota], list[Quota], list[Quota]]:
    """The project's own limits by resource; limits around them and the reader's; limits of other people."""
    order = list(RESOURCE_WORDS)
    plain, others, people = [], [], []
    for one in lines:
        if one.project_id is not None and one.is_plain:
            plain.append(one)
        elif one.user_id in (None, user.pk):
            others.append(one)
        else:
            people.append(one)
    return sorted(plain, key=lambda one: order.index(one.resource)), others, people


def _sections(projects: list[Project], user: User, roles: dict[int, str]) -> tuple[list[Section], list[Line]]:
    """Every project's limits and those around them; and what limits the reader wherever a job runs."""
    asked = asked_of(project.pk for project in projects)
    found = find_lines(projects, user_id=user.pk, everybody=True)
    states = found.standings().states()

    def line(quota: Quota, project: Project | None) -> Line:
        plain = project is not None and quota.project_id is not None and quota.is_plain
        waits = asked[project.pk][quota.resource] if plain and project is not None else 0
        return Line(states[quota.pk], RESOURCE_WORDS[quota.resource], waits, _usage_url(quota))

    kept_outside = [
        pk for pk, lines in found.of_project.items() if any(one.provider != Provider.LOCAL for one in lines)
    ]
    outside = provider_views(kept_outside) if kept_outside else {}
    sections = []
    for project in projects:
        plain, others, people = _kinds_of_lines(found.of_project[project.pk], user)
        people.sort(key=lambda one: (-_fullness(states[one.pk]), one.pk))
        sections.append(
            Section(
                project=project,
                lines=[line(one, project) for one in plain],
                others=[line(one, project) for one in (*others, *people[:MOST_PEOPLE])],
                left_out=len(people) - len(people[:MOST_PEOPLE]),
                role=roles.get(project.pk, ""),
                outside=outside.get(project.pk),
            )
        )
    return sections, [line(one, None) for one in found.of_person]


def _fullness(state: LineState) -> float:
    if state.bound is None:
        return 0.0
    return state.used / state.bound if state.bound else float(state.used)


def _usage_url(quota: Quota) -> str:
    """What counts on a limit used lately, with what runs now."""
    words = {
        "organization": quota.organization.slug if quota.organization is not None else "",
        "project": quota.project.slug if quota.project is not None else "",
        "user": quota.user.username if quota.user is not None else "",
        "of_model": quota.gpu_model,
    }
    return f"{reverse('usage')}?{urlencode({name: word for name, word in words.items() if word})}"
