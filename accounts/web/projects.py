"""A person's projects, and their members for those who lead them."""

from __future__ import annotations

from django.db.models import Count
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from accounts import permissions
from accounts.selectors import project_by_ref, visible_projects
from accounts.web.pages import page, reader


@require_GET
@page
def index(request: HttpRequest) -> HttpResponse:
    user = reader(request)
    projects = visible_projects(user).annotate(people=Count("memberships")).order_by("name", "id")
    roles = permissions.roles_of(user)
    return render(
        request,
        "accounts/projects.html",
        {"projects": [(project, roles.get(project.pk, "")) for project in projects]},
    )


@require_GET
@page
def show(request: HttpRequest, slug: str) -> HttpResponse:
    user = reader(request)
    project = project_by_ref(user, slug)
    return render(
        request,
        "accounts/project.html",
        {
            "project": project,
            "members": project.memberships.select_related("user").order_by("-role", "user__username"),
            "verbs": permissions.allowed_verbs(user, project),
        },
    )
