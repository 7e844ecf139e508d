"""Changes of organizations, projects and who belongs to them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import F
from django.utils import timezone
from django.utils.text import slugify

from accounts import permissions
from accounts.models import Membership, Organization, Project, ProjectRole, User
from accounts.services import audit
from accounts.services.users import raise_access_version
from infra.errors import Conflict, FieldProblem, InvalidInput, NotFound
from infra.plain_text import check_line


@transaction.atomic
def create_organization(
    *, name: str, by: User, slug: str = "", parent: Organization | None = None
) -> Organization:
    permissions.require(by, "administer")
    name, slug = _name_and_slug(name, slug)
    try:
        with transaction.atomic():
            organization = Organization.objects.create(name=name, slug=slug, parent=parent)
    except IntegrityError:
        raise _taken("organization", slug) from None
    audit.record(
        by=by,
        action="organization.create",
        thing=organization,
        after={"name": name, "slug": slug, "parent": parent},
    )
    return organization


@transaction.atomic
def edit_organization(
    *, organization: Organization, changes: dict[str, Any], by: User, reason: str = ""
) -> Organization:
    """Rename it or hang it elsewhere in the tree; never below itself."""
    permissions.require(by, "administer")
    # All of them, by rising id: two who hang one below the other at the same moment would make a circle.
    rows = Organization.objects.select_for_update(no_key=True, of=("self",)).order_by("pk")
    tree = {one.pk: one for one in (rows if "parent" in changes else rows.filter(pk=organization.pk))}
    row = tree[organization.pk]
    before, after = audit.changed({name: getattr(row, name) for name in ("name", "parent")}, changes)
    after = {name: value for name, value in after.items() if name in changes}
    before = {name: before[name] for name in after}
    above = after.get("parent")
    met: set[int] = set()
    while above is not None and above.pk not in met:
        met.add(above.pk)
        if above.pk == organization.pk:
            message = f"{organization} cannot be its own parent."
            raise InvalidInput(message, problems=[FieldProblem("parent", message)])
        above = tree.get(tree.get(above.pk, above).parent_id)
    if "name" in after:
        after["name"] = _name_and_slug(after["name"], row.slug)[0]
    if after:
        for name, value in after.items():
            setattr(organization, name, value)
        organization.save(update_fields=list(after))
        audit.record(
            by=by, action="organization.edit", thing=organization, before=before, after=after, reason=reason
        )
    return organization


@transaction.atomic
def create_project(
    *,
    organization: Organization,
    name: str,
    by: User,
    slug: str = "",
    description: str = "",
    lead: User | None = None,
) -> Project:
    """Open a project, with its first lead if one is named."""
    permissions.require(by, "administer")
    name, slug = _name_and_slug(name, slug)
    try:
        with transaction.atomic():
            project = Project.objects.create(
                organization=organization, name=name, slug=slug, description=_clean(description)
            )
    except IntegrityError:
        raise _taken("project", slug) from None
    if lead is not None:
        Membership.objects.create(project=project, user=lead, role=ProjectRole.LEAD)
        raise_access_version(lead)
    audit.record(
        by=by,
        action="project.create",
        thing=project,
        after={"name": name, "slug": slug, "organization": organization, "lead": lead},
    )
    return project


@transaction.atomic
def edit_project(
    *,
    project: Project,
    changes: dict[str, Any],
    by: User,
    reason: str = "",
    expected_generation: int | None = None,
) -> Project:
    """Change name or description; an admin may also move it to another organization.

    With `expected_generation` raises Conflict (412) when somebody has changed it since.
    """
    permissions.require(by, "manage", project)
    if "organization" in changes:
        permissions.require(by, "administer", project)
    row = _locked(project)
    if expected_generation is not None and expected_generation != row.generation:
        raise Conflict(
            "This project was changed since you read it.",
            code="stale",
            status=412,
            way_out="Read the current values, then repeat your change.",
            extra={
                "generation": row.generation,
                "current": {"name": row.name, "description": row.description},
            },
        )
    if "name" in changes:
        changes = {**changes, "name": _name_and_slug(changes["name"], row.slug)[0]}
    if "description" in changes:
        changes = {**changes, "description": _clean(changes["description"])}
    unknown = sorted(changes.keys() - {"name", "description", "organization"})
    if unknown:
        raise InvalidInput(
            f"{', '.join(unknown)} of a project cannot be changed.",
            problems=[FieldProblem(name, "This field cannot be changed.") for name in unknown],
        )
    before, after = audit.changed({name: getattr(row, name) for name in changes}, changes)
    if after:
        _write(project, **after)
        audit.record(by=by, action="project.edit", thing=project, before=before, after=after, reason=reason)
    return project


@transaction.atomic
def close_project(*, project: Project, by: User, reason: str = "") -> Project:
    """Take no new jobs from it; what waits goes on waiting until it is opened again, what runs goes on."""
    permissions.require(by, "administer", project)
    return _set_active(project, False, by=by, reason=reason)


@transaction.atomic
def reopen_project(*, project: Project, by: User, reason: str = "") -> Project:
    permissions.require(by, "administer", project)
    return _set_active(project, True, by=by, reason=reason)


@transaction.atomic
def add_member(
    *,
    project: Project,
    user: User,
    role: str,
    by: User,
    expires_at: datetime | None = None,
    reason: str = "",
) -> Membership:
    """Add a memberto a project; somebody whose membership has ended may be brought in again."""
    permissions.require(by, "manage", project)
    _check_role(role)
    _check_expiry(expires_at)
    if not user.is_active:
        message = f"The account {user.username} is disabled."
        raise InvalidInput(message, problems=[FieldProblem("user", message)])
    _locked(project)
    membership = Membership.objects.filter(project=project, user=user).first()
    if membership is not None and (membership.expires_at is None or membership.expires_at > timezone.now()):
        raise Conflict(
            f"{user.username} is already {membership.role} of {project}.",
            way_out="Change the role of the membership instead.",
        )
    membership, _ = Membership.objects.update_or_create(
        project=project, user=user, defaults={"role": role, "expires_at": expires_at}
    )
    _changed_members(project, user)
    audit.record(
        by=by,
        action="member.add",
        thing=membership,
        after={"user": user.username, "role": role, "expires_at": expires_at},
        reason=reason,
        project=project,
    )
    return membership


@transaction.atomic
def change_member(
    *,
    membership: Membership,
    by: User,
    role: str | None = None,
    expires_at: datetime | None = None,
    keep_expiry: bool = True,
    reason: str = "",
) -> Membership:
    """Change the role of a member, and with `keep_expiry=False` also when it ends; the last lead stays lead."""
    project, user = membership.project, membership.user
    permissions.require(by, "manage", project)
    _locked(project)
    row = Membership.objects.filter(pk=membership.pk).first()
    if row is None:
        raise NotFound(
            f"{user.username} is no longer a member of {project}.",
            way_out="Read the list of members again.",
        )
    new_role = row.role if role is None else role
    new_expiry = row.expires_at if keep_expiry else expires_at
    _check_role(new_role)
    _check_expiry(new_expiry if not keep_expiry else None)
    if row.role == ProjectRole.LEAD and (new_role != ProjectRole.LEAD or new_expiry is not None):
        _refuse_last_lead(row)
    before, after = audit.changed(
        {"role": row.role, "expires_at": row.expires_at}, {"role": new_role, "expires_at": new_expiry}
    )
    if after:
        membership.role, membership.expires_at = new_role, new_expiry
        membership.save(update_fields=["role", "expires_at"])
        _changed_members(project, user)
        audit.record(
            by=by,
            action="member.change",
            thing=membership,
            before=before | {"user": user.username},
            after=after | {"user": user.username},
            reason=reason,
            project=project,
        )
    return membership


@transaction.atomic
def remove_member(*, membership: Membership, by: User, reason: str = "") -> None:
    """Remove a member of a project, or oneself; their jobs there stay and go on."""
    project, user = membership.project, membership.user
    if user.pk != by.pk:
        permissions.require(by, "manage", project)
    else:
        permissions.require(by, "view", project)
    _locked(project)
    row = Membership.objects.filter(pk=membership.pk).first()
    if row is None:
        return
    if row.role == ProjectRole.LEAD:
        _refuse_last_lead(row)
    described = audit.describe(row)
    row.delete()
    User.objects.filter(pk=user.pk, default_project=project).update(default_project=None)
    _changed_members(project, user)
    audit.record(
        by=by,
        action="member.remove",
        thing=described,
        before={"user": user.username, "role": row.role},
        reason=reason,
        project=project,
    )


def _set_active(project: Project, active: bool, *, by: User, reason: str) -> Project:
    if _locked(project).active != active:
        _write(project, active=active)
        audit.record(
            by=by,
            action="project.reopen" if active else "project.close",
            thing=project,
            before={"active": not active},
            after={"active": active},
            reason=reason,
        )
    return project


def _locked(project: Project) -> Project:
    """Changes of one project and its members go one after the other; submissions are not held up."""
    return Project.objects.select_for_update(no_key=True, of=("self",)).get(pk=project.pk)


def _write(project: Project, **changes: Any) -> None:
    Project.objects.filter(pk=project.pk).update(generation=F("generation") + 1, **changes)
    project.refresh_from_db(fields=["generation", *changes])


def _changed_members(project: Project, user: User) -> None:
    _write(project)
    raise_access_version(user)


def _refuse_last_lead(membership: Membership) -> None:
    others = (
        permissions.current_memberships()
        .filter(project=membership.project_id, role=ProjectRole.LEAD, user__is_active=True)
        .exclude(pk=membership.pk)
    )
    if not others.exists():
        raise Conflict(
            f"{membership.user.username} is the only lead of {membership.project}.",
            way_out="Make another member lead first.",
        )


def _check_role(role: str) -> None:
    if role not in ProjectRole.values:
        message = f"{str(role)[:40]!r} is not a role; they are {', '.join(ProjectRole.values)}."
        raise InvalidInput(message, problems=[FieldProblem("role", message)])


def _check_expiry(expires_at: datetime | None) -> None:
    if expires_at is not None and expires_at <= timezone.now():
        message = "A membership must end in the future."
        raise InvalidInput(message, problems=[FieldProblem("expires_at", message)])


def _name_and_slug(name: str, slug: str) -> tuple[str, str]:
    check_line(name, "name")
    name = str(name).strip()
    slug = slug or slugify(name)[:80]
    if not name or len(name) > 120:
        message = "Give the project a name of 1 to 120 characters."
        raise InvalidInput(message, problems=[FieldProblem("name", message)])
    if not slug or slug != slugify(slug) or len(slug) > 80 or slug.isdecimal():
        message = (
            "Give it a short name of letters, digits and hyphens, with a letter in it, as in vision-lab."
        )
        raise InvalidInput(message, problems=[FieldProblem("slug", message)])
    return name, slug


def _clean(text: str) -> str:
    return str(text).replace("\x00", "")


def _taken(kind: str, slug: str) -> InvalidInput:
    message = f"There is already {'an' if kind[0] in 'aeiou' else 'a'} {kind} {slug}."
    return InvalidInput(
        message, way_out="Choose another short name.", problems=[FieldProblem("slug", message)]
    )
