"""People without their passwords, organizations, projects and their members, as the document has them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from django.db.models import Q
from django.utils import timezone

from accounts.models import Membership, Organization, Project, User
from accounts.services.projects import (
    add_member,
    change_member,
    close_project,
    create_organization,
    create_project,
    edit_organization,
    edit_project,
    remove_member,
    reopen_project,
)
from accounts.services.users import create_user, disable_user, edit_user, enable_user, set_site_role
from quotas.services.shares import set_share
from scheduler.configuration.operations import Blocked
from scheduler.configuration.rows import Refused, Wrong
from scheduler.configuration.sections import (
    Reader,
    Section,
    Within,
    flag,
    moment_or_none,
    text,
    text_or_none,
    whole,
    whole_or_none,
)

SHARES = ("share_weight", "share_soft_percent", "share_hard_percent")
DETAILS = ("first_name", "last_name", "email", "priority_ceiling", "is_demo")


def person_called(username: str, field: str) -> User:
    """The account of this name; raises Refused that names the field."""
    found = User.objects.filter(username=username).first()
    if found is None:
        raise Refused([Wrong(field, f"{field} names the account {username!r}, which does not exist.")])
    return found


def organization_called(slug: str | None, field: str) -> Organization | None:
    if slug is None:
        return None
    found = Organization.objects.filter(slug=slug).first()
    if found is None:
        raise Refused([Wrong(field, f"{field} names the organization {slug!r}, which does not exist.")])
    return found


def owner_of(scope: Within) -> Organization | Project | User:
    """The row of the entry that a section is inside of; raises Blocked while it is not there."""
    model, key = {
        "organizations": (Organization, "slug"), "projects": (Project, "slug"), "people": (User, "username"),
    }[scope.section]  # fmt: skip
    found = model._default_manager.filter(**{key: scope.name}).first()
    if found is None:
        raise Blocked
    return found  # type: ignore[return-value]


def _share(row: Any, given: dict[str, Any], by: User, reason: str) -> None:
    changes = {name: given[name] for name in SHARES if name in given}
    if changes:
        set_share(subject=row, changes=changes, by=by, reason=reason)


class People(Section):
    """Accounts that exist already keep their passwords; new ones have none until an admin or a directory sets it."""

    name = "people"
    key = ("username",)
    stage = 0
    readers: ClassVar[Mapping[str, Reader]] = {
        "username": text, "first_name": text, "last_name": text, "email": text, "site_role": text,
        "priority_ceiling": whole, "share_weight": whole, "is_demo": flag, "is_active": flag,
    }  # fmt: skip

    def found(self, section: str, name: str | None) -> Iterable[tuple[str, Any]]:
        return [("", row) for row in User.objects.order_by("username")]

    def values(self, row: User) -> dict[str, Any]:
        return {name: getattr(row, name) for name in self.readers}

    def make(self, given: dict[str, Any], scope: Within, *, by: User, reason: str) -> User:
        details = {name: given[name] for name in DETAILS if name in given}
        _check_ceiling(details)
        row = create_user(username=given["username"], by=by, **details)
        self._rest(row, given, by, reason)
        row.refresh_from_db()
        return row

    def change(self, row: User, changes: dict[str, Any], *, by: User, reason: str) -> None:
        details = {name: changes[name] for name in DETAILS if name in changes}
        _check_ceiling(details)
        if details:
            edit_user(user=row, changes=details, by=by, reason=reason)
        self._rest(row, changes, by, reason)

    def _rest(self, row: User, given: dict[str, Any], by: User, reason: str) -> None:
        _share(row, given, by, reason)
        if "site_role" in given:
            set_site_role(user=row, role=given["site_role"], by=by, reason=reason)
        if "is_active" in given and given["is_active"] != row.is_active:
            (enable_user if given["is_active"] else disable_user)(user=row, by=by, reason=reason)


def _check_ceiling(details: Mapping[str, Any]) -> None:
    if not 0 <= details.get("priority_ceiling", 0) <= 100:
        raise Refused([Wrong("priority_ceiling", "priority_ceiling: a priority is 0 to 100.")])


class Members(Section):
    """Memberships in force, of accounts that are not disabled."""

    name = "members"
    key = ("user",)
    stage = 4
    can_remove = True
    readers: ClassVar[Mapping[str, Reader]] = {
        "user": text, "role": text, "expires_at": moment_or_none, "share_weight": whole,
    }  # fmt: skip

    def found(self, section: str, name: str | None) -> Iterable[tuple[str, Any]]:
        in_force = Q(expires_at=None) | Q(expires_at__gt=timezone.now())
        rows = Membership.objects.filter(in_force, user__is_active=True)
        if name is not None:
            rows = rows.filter(project__slug=name)
        rows = rows.select_related("project", "user").order_by("user__username")
        return [(row.project.slug, row) for row in rows]

    def values(self, row: Membership) -> dict[str, Any]:
        return {
            "user": row.user.username, "role": row.role, "expires_at": row.expires_at, "share_weight": row.share_weight,
        }  # fmt: skip

    def make(self, given: dict[str, Any], scope: Within, *, by: User, reason: str) -> Membership:
        project = owner_of(scope)
        assert isinstance(project, Project)
        row = add_member(
            project=project, user=person_called(given["user"], "user"), role=given.get("role", "member"), by=by,
            expires_at=given.get("expires_at"), reason=reason,
        )  # fmt: skip
        _share(row, given, by, reason)
        row.refresh_from_db()
        return row

    def change(self, row: Membership, changes: dict[str, Any], *, by: User, reason: str) -> None:
        if "role" in changes or "expires_at" in changes:
            change_member(
                membership=row, by=by, role=changes.get("role"), expires_at=changes.get("expires_at"),
                keep_expiry="expires_at" not in changes, reason=reason,
            )  # fmt: skip
        _share(row, changes, by, reason)

    def remove(self, row: Membership, *, by: User, reason: str) -> None:
        remove_member(membership=row, by=by, reason=reason)


class Organizations(Section):
    name = "organizations"
    key = ("slug",)
    stage = 2
    needed = ("name",)
    readers: ClassVar[Mapping[str, Reader]] = {
        "slug": text, "name": text, "parent": text_or_none, "share_weight": whole,
        "share_soft_percent": whole_or_none, "share_hard_percent": whole_or_none,
    }  # fmt: skip

    def found(self, section: str, name: str | None) -> Iterable[tuple[str, Any]]:
        return [("", row) for row in Organization.objects.select_related("parent").order_by("slug")]

    def values(self, row: Organization) -> dict[str, Any]:
        return {name: getattr(row, name) for name in self.readers} | {
            "parent": row.parent.slug if row.parent else None
        }

    def make(self, given: dict[str, Any], scope: Within, *, by: User, reason: str) -> Organization:
        above = organization_called(given.get("parent"), "parent")
        row = create_organization(name=given["name"], slug=given["slug"], parent=above, by=by)
        _share(row, given, by, reason)
        row.refresh_from_db()
        return row

    def change(self, row: Organization, changes: dict[str, Any], *, by: User, reason: str) -> None:
        edits: dict[str, Any] = {name: changes[name] for name in ("name", "parent") if name in changes}
        if "parent" in edits:
            edits["parent"] = organization_called(edits["parent"], "parent")
        if edits:
            edit_organization(organization=row, changes=edits, by=by, reason=reason)
        _share(row, changes, by, reason)


class Projects(Section):
    name = "projects"
    key = ("slug",)
    stage = 3
    needed = ("name", "organization")
    readers: ClassVar[Mapping[str, Reader]] = {
        "slug": text, "name": text, "organization": text, "description": text, "active": flag, "share_weight": whole,
        "share_soft_percent": whole_or_none, "share_hard_percent": whole_or_none,
    }  # fmt: skip

    def found(self, section: str, name: str | None) -> Iterable[tuple[str, Any]]:
        return [("", row) for row in Project.objects.select_related("organization").order_by("slug")]

    def values(self, row: Project) -> dict[str, Any]:
        return {name: getattr(row, name) for name in self.readers} | {"organization": row.organization.slug}

    def make(self, given: dict[str, Any], scope: Within, *, by: User, reason: str) -> Project:
        above = organization_called(given["organization"], "organization")
        assert above is not None
        row = create_project(
            organization=above,
            name=given["name"],
            slug=given["slug"],
            description=given.get("description", ""),
            by=by,
        )
        self._rest(row, given, by, reason)
        return Project.objects.select_related("organization").get(pk=row.pk)

    def change(self, row: Project, changes: dict[str, Any], *, by: User, reason: str) -> None:
        edits: dict[str, Any] = {
            name: changes[name] for name in ("name", "description", "organization") if name in changes
        }
        if "organization" in edits:
            edits["organization"] = organization_called(edits["organization"], "organization")
        if edits:
            edit_project(project=row, changes=edits, by=by, reason=reason)
        self._rest(row, changes, by, reason)

    def _rest(self, row: Project, given: dict[str, Any], by: User, reason: str) -> None:
        _share(row, given, by, reason)
        if "active" in given and given["active"] != row.active:
            (reopen_project if given["active"] else close_project)(project=row, by=by, reason=reason)
