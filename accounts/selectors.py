"""Which projects and people somebody may know of: the only doors to other people's rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db.models import Q, QuerySet
from django.utils import timezone

from accounts import permissions
from accounts.models import ApiToken, AuditEvent, Membership, Project, ProjectRole, User
from infra.errors import NotFound


def visible_projects(user: User) -> QuerySet[Project]:
    """Projects the person belongs to in any role; all of them for operators, auditors and admins."""
    projects = Project.objects.select_related("organization")
    if not (user.is_operator or user.is_auditor):
        projects = projects.filter(pk__in=_memberships(user).values("project"))
    return _within_token(projects, user)


def submit_projects(user: User) -> QuerySet[Project]:
    """Open projects in which the person may submit: members and leads, whatever their site role."""
    able = _memberships(user).filter(role__in=[ProjectRole.MEMBER, ProjectRole.LEAD])
    return _within_token(
        Project.objects.select_related("organization").filter(active=True, pk__in=able.values("project")),
        user,
    )


def submit_projects_statement(people: Sequence[User], columns: str) -> tuple[str, list[Any]]:
    """The same projects as `submit_projects`, of several people, for what asks with every request.

    A row is the place of the person among `people`, from 1, and `columns` of the table `p`. The ORM spends more on
    building this statement than the database on running it.
    """
    sql = f"""
        SELECT asked.place, {columns}
          FROM unnest(%s::bigint[], %s::bigint[]) WITH ORDINALITY AS asked(user_id, held_to, place)
          JOIN accounts_membership m ON m.user_id = asked.user_id
          JOIN accounts_project p ON p.id = m.project_id
         WHERE m.role IN ('member', 'lead') AND (m.expires_at IS NULL OR m.expires_at > %s)
           AND p.active AND (asked.held_to IS NULL OR p.id = asked.held_to)
         ORDER BY asked.place, p.name, p.id
        """  # noqa: S608  nothing but names of columns
    able = [person.pk if person.is_active else None for person in people]
    return sql, [able, [permissions.token_project_id(person) for person in people], timezone.now()]


def project_by_ref(user: User, ref: str | int) -> Project:
    """A visible project by slug, id or exact name; raises NotFound for any other."""
    text = str(ref).strip().replace("\x00", "\N{SYMBOL FOR NULL}")
    projects = visible_projects(user)
    found = projects.filter(slug=text).first()
    if found is None and text.isdecimal() and len(text) < 19:
        found = projects.filter(pk=int(text)).first()
    if found is None:
        named = list(projects.filter(name=text)[:2])
        found = named[0] if len(named) == 1 else None
    if found is None:
        raise NotFound(
            f"There is no project {text[:80]!r}, or you may not see it.",
            way_out="The page Projects and GET /api/v1/projects list the projects that you can see.",
        )
    return found


def default_project(user: User) -> Project | None:
    """Where a job goes that names no project: the person's own choice, else the only one they have."""
    projects = list(submit_projects(user).order_by("id")[:50])
    for project in projects:
        if project.pk == user.default_project_id:
            return project
    return projects[0] if len(projects) == 1 else None


def roles_by_slug(user: User) -> dict[str, str]:
    """The person's present roles, by the slug of the project."""
    memberships = _memberships(user).order_by("project__slug")
    if (held_to := permissions.token_project_id(user)) is not None:
        memberships = memberships.filter(project=held_to)
    return dict(memberships.values_list("project__slug", "role"))


def visible_users(user: User) -> QuerySet[User]:
    """Oneself and the people of one's own projects; everybody for operators, auditors and admins."""
    if permissions.sees_everything(user):
        return User.objects.all()
    mine = _memberships(user).values("project")
    if (held_to := permissions.token_project_id(user)) is not None:
        mine = mine.filter(project=held_to)
    people = permissions.current_memberships().filter(project__in=mine).values("user")
    return User.objects.filter(Q(pk=user.pk) | Q(pk__in=people))


def visible_tokens(user: User) -> QuerySet[ApiToken]:
    """One's own tokens; all of them for admins, but not by a token that is held to one project."""
    tokens = ApiToken.objects.select_related("user", "project")
    everybody = user.is_site_admin and permissions.token_project_id(user) is None
    return tokens if everybody else tokens.filter(user=user)


def visible_audit_events(user: User) -> QuerySet[AuditEvent]:
    """The whole trail for auditors and admins, nothing for others."""
    events = AuditEvent.objects.select_related("project")
    return events if permissions.may(user, "audit") else events.none()


def _memberships(user: User) -> QuerySet[Membership]:
    if not user.is_active:
        return permissions.current_memberships().none()
    return permissions.current_memberships().filter(user=user)


def _within_token(projects: QuerySet[Project], user: User) -> QuerySet[Project]:
    held_to = permissions.token_project_id(user)
    return projects if held_to is None else projects.filter(pk=held_to)
