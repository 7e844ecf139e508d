"""A person's projects, and their members for those who lead them."""

from __future__ import annotations

from datetime import UTC, datetime, time

from django.contrib import messages
from django.db.models import Count
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.dateparse import parse_date
from django.views.decorators.http import require_POST, require_safe

from accounts import permissions
from accounts.models import Membership, Project, ProjectRole, User
from accounts.selectors import project_by_ref, visible_projects
from accounts.services.projects import add_member, change_member, remove_member
from accounts.services.secrets import of_owner
from accounts.web.pages import page, reader
from infra.errors import FieldProblem, InvalidInput, NotFound


@require_safe
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


@require_safe
@page
def show(request: HttpRequest, slug: str) -> HttpResponse:
    user = reader(request)
    project = project_by_ref(user, slug)
    members = list(project.memberships.select_related("user").order_by("user__username"))
    order = list(ProjectRole)
    allowed = permissions.allowed_verbs(user, project)
    members.sort(key=lambda member: -order.index(ProjectRole(member.role)))
    return render(
        request,
        "accounts/project.html",
        {
            "project": project,
            "members": members,
            "may_manage": "manage" in allowed,
            "sees_secrets": "see_secrets" in allowed,
            "may_manage_secrets": "manage" in allowed,
            "secrets": of_owner(project).defer("sealed") if "see_secrets" in allowed else [],
            "roles": ProjectRole.choices,
        },
    )


@require_POST
@page
def add(request: HttpRequest, slug: str) -> HttpResponse:
    user = reader(request)
    project = project_by_ref(user, slug)
    permissions.require(user, "manage", project)
    name = request.POST.get("username", "").strip().replace("\x00", "")
    person = User.objects.filter(username=name).first()
    if person is None:
        raise InvalidInput(f"There is no user {name[:60]!r}.", way_out="Enter the username.")
    member = add_member(
        project=project,
        user=person,
        role=request.POST.get("role", ""),
        by=user,
        expires_at=_end_of(request.POST.get("until", "")),
    )
    messages.success(request, f"{person.username} is now {member.role} of {project.name}.")
    return redirect("project", slug=slug)


@require_POST
@page
def change(request: HttpRequest, slug: str, member_id: int) -> HttpResponse:
    """A new role, or with `remove` out of the project."""
    user = reader(request)
    project = project_by_ref(user, slug)
    member = _member(project, member_id)
    if request.POST.get("remove"):
        remove_member(membership=member, by=user)
        messages.success(request, f"{member.user.username} is no longer a member of {project.name}.")
        if member.user_id == user.pk:
            return redirect("projects")
    else:
        change_member(membership=member, by=user, role=request.POST.get("role", ""))
        messages.success(request, f"{member.user.username} is now {member.role} of {project.name}.")
    return redirect("project", slug=slug)


def _member(project: Project, member_id: int) -> Membership:
    member = project.memberships.select_related("user", "project").filter(pk=member_id).first()
    if member is None:
        raise NotFound("This person is not a member.", way_out="Reload the page; it may be out of date.")
    return member


def _end_of(text: str) -> datetime | None:
    """The end of a day, for a membership that ends with it; None only where nothing was typed."""
    if not text.strip():
        return None
    try:
        day = parse_date(text.strip())
    except ValueError:
        day = None
    if day is None:
        message = "Enter a date such as 2026-12-31, or leave the field empty for no expiry."
        raise InvalidInput("No member was added.", problems=[FieldProblem("until", message)])
    return datetime.combine(day, time(23, 59, 59), tzinfo=UTC)
