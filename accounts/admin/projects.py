"""Admin pages of organizations, projects and memberships."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib import admin
from django.db import transaction
from django.db.models import Count, QuerySet
from django.http import HttpRequest
from django.utils.html import format_html
from unfold.decorators import display

from accounts.admin.base import FactsInline, ReasonedForm, ServiceAdmin
from accounts.models import Membership, Organization, Project
from accounts.services import projects as services


def share_link(kind: str) -> Callable[[Any], str]:
    """The weight, as a link to the form that changes it: with a reason, and where the tree can be seen."""

    @display(description="Share weight", ordering="share_weight")
    def share(thing: Any) -> str:
        return format_html('<a href="/shares/{}/{}/">{}</a>', kind, thing.pk, thing.share_weight)

    return share


@admin.register(Organization)
class OrganizationAdmin(ServiceAdmin):
    edit_verb = "administer"
    form = ReasonedForm
    list_display = ("name", "slug", "parent", "project_count", share_link("organization"))
    ordering = ("name", "id")  # said here: a model's own order is lost where rows are counted along
    list_select_related = ("parent",)
    search_fields = ("name", "slug")
    prepopulated_fields = {"slug": ("name",)}
    autocomplete_fields = ("parent",)
    fields = ("name", "slug", "parent", "reason")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Organization]:
        return super().get_queryset(request).annotate(projects_there=Count("projects"))

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        return ("slug",) if obj else ()

    def get_prepopulated_fields(self, request: HttpRequest, obj: Any = None) -> dict[str, Any]:
        return {} if obj or not self.has_add_permission(request) else {"slug": ("name",)}

    @display(description="Projects", ordering="projects_there")
    def project_count(self, organization: Any) -> int:
        return int(organization.projects_there)

    def save_model(self, request: HttpRequest, obj: Organization, form: Any, change: bool) -> None:
        data, by = form.cleaned_data, request.user
        if change:
            services.edit_organization(
                organization=Organization.objects.get(pk=obj.pk),
                changes={name: data[name] for name in form.changed_data if name in ("name", "parent")},
                by=by,  # type: ignore[arg-type]
                reason=data["reason"],
            )
            return
        made = services.create_organization(
            name=data["name"],
            slug=data["slug"],
            parent=data["parent"],
            by=by,  # type: ignore[arg-type]
        )
        obj.pk = made.pk


class MembersOfProject(FactsInline):
    model = Membership
    fields = ("user", "role", "expires_at", "created_at")
    readonly_fields = fields
    verbose_name_plural = "members"


@admin.register(Project)
class ProjectAdmin(ServiceAdmin):
    """Opened, described, moved and closed by admins; leads manage their members in the portal."""

    edit_verb = "administer"
    form = ReasonedForm
    list_display = (
        "name",
        "slug",
        "organization",
        "state",
        "member_count",
        share_link("project"),
        "created_at",
    )
    list_select_related = ("organization",)
    ordering = ("name", "id")
    list_filter = ("active", "organization")
    search_fields = ("name", "slug", "organization__name")
    autocomplete_fields = ("organization",)
    fields = ("organization", "name", "slug", "description", "active", "reason")
    inlines = (MembersOfProject,)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Project]:
        return super().get_queryset(request).annotate(members_there=Count("memberships"))

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        return ("slug",) if obj else ("active",)

    def get_prepopulated_fields(self, request: HttpRequest, obj: Any = None) -> dict[str, Any]:
        return {} if obj or not self.has_add_permission(request) else {"slug": ("name",)}

    @display(description="State", label={"open": "success", "closed": "danger"})
    def state(self, project: Project) -> str:
        return "open" if project.active else "closed"

    @display(description="Members", ordering="members_there")
    def member_count(self, project: Any) -> int:
        return int(project.members_there)

    def save_model(self, request: HttpRequest, obj: Project, form: Any, change: bool) -> None:
        data, reason = form.cleaned_data, form.cleaned_data["reason"]
        by: Any = request.user
        if not change:
            made = services.create_project(
                organization=data["organization"],
                name=data["name"],
                slug=data["slug"],
                description=data["description"],
                by=by,
            )
            obj.pk = made.pk
            return
        project = Project.objects.get(pk=obj.pk)
        details = {
            name: data[name] for name in form.changed_data if name in ("organization", "name", "description")
        }
        if details:
            services.edit_project(project=project, changes=details, by=by, reason=reason)
        if "active" in form.changed_data:
            verb = services.reopen_project if data["active"] else services.close_project
            verb(project=project, by=by, reason=reason)

    def save_related(self, request: HttpRequest, form: Any, formsets: Any, change: bool) -> None:
        """The members are to look at, and there is nothing else."""


@admin.register(Membership)
class MembershipAdmin(ServiceAdmin):
    edit_verb = "administer"
    form = ReasonedForm
    list_display = ("user", "project", "role", share_link("member"), "expires_at", "created_at")
    list_select_related = ("user", "project")
    list_filter = ("role", "project")
    search_fields = ("user__username", "project__name", "project__slug")
    autocomplete_fields = ("user", "project")
    fields = ("project", "user", "role", "expires_at", "reason")

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return self._may_edit(request)

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        return ("project", "user") if obj else ()

    def save_model(self, request: HttpRequest, obj: Membership, form: Any, change: bool) -> None:
        data = form.cleaned_data
        by: Any = request.user
        if change:
            services.change_member(
                membership=Membership.objects.select_related("user", "project").get(pk=obj.pk),
                role=data["role"],
                expires_at=data["expires_at"],
                keep_expiry="expires_at" not in form.changed_data,
                by=by,
                reason=data["reason"],
            )
            return
        made = services.add_member(
            project=data["project"],
            user=data["user"],
            role=data["role"],
            expires_at=data["expires_at"],
            by=by,
            reason=data["reason"],
        )
        obj.pk = made.pk

    def delete_model(self, request: HttpRequest, obj: Membership) -> None:
        services.remove_member(membership=obj, by=request.user)  # type: ignore[arg-type]

    @transaction.atomic
    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Membership]) -> None:
        for membership in queryset.select_related("user", "project"):
            services.remove_member(membership=membership, by=request.user)  # type: ignore[arg-type]
