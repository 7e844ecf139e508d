"""Reads notifications, preferences and webhooks as one person may see them."""

from __future__ import annotations

from typing import Final, NamedTuple

from django.db.models import Q, QuerySet

from accounts import permissions
from accounts.models import Project, ProjectRole, User
from accounts.selectors import visible_projects
from infra.errors import NotFound
from notifications.core.kinds import KINDS, About, Channel, Kind, is_on
from notifications.models import Endpoint, Message, Notification, Preference

#: A count above this is shown as such.
MOST_COUNTED: Final = 99


def own_notifications(user: User) -> QuerySet[Notification]:
    """What the portal shows a person: their own alone, and of projects that they still may see.

    By a token that is held to one project, what is about that project.
    """
    found = Notification.objects.filter(user=user, in_portal=True).select_related("project")
    held_to = permissions.token_project_id(user)
    if held_to is not None:
        return found.filter(project=held_to)
    if permissions.sees_everything(user):
        return found
    return found.filter(Q(project=None) | Q(project__in=visible_projects(user).values("pk")))


def unread_count(user: User) -> int:
    """How many of these are unread, or one more than `MOST_COUNTED`."""
    return (
        own_notifications(user)
        .select_related(None)
        .order_by()
        .filter(read_at=None)[: MOST_COUNTED + 1]
        .count()
    )


class Choice(NamedTuple):
    """One kind with what the person gets of it."""

    kind: Kind
    about: About
    portal: bool
    mail: bool


def choices_of(user: User) -> list[Choice]:
    """Every kind that can concern the person, chosen or as usual."""
    rows = {(row.kind, row.channel): row.on for row in Preference.objects.filter(user=user)}

    def now(kind: Kind, channel: Channel) -> bool:
        return rows.get((kind.value, channel.value), is_on(kind, channel))

    return [
        Choice(kind, about, now(kind, Channel.PORTAL), now(kind, Channel.MAIL))
        for kind, about in KINDS.items()
        if user.is_operator or not about.operators
    ]


# ---------------------------------------------------------------- webhooks


def led_projects(user: User) -> QuerySet[Project]:
    """Open projects whose webhooks the person manages."""
    projects = visible_projects(user).filter(active=True)
    if user.is_site_admin:
        return projects
    led = permissions.current_memberships().filter(user=user, role=ProjectRole.LEAD)
    return projects.filter(pk__in=led.values("project"))


def own_endpoints(user: User) -> QuerySet[Endpoint]:
    """The webhooks a person manages: their own, and those of projects they lead."""
    projects = led_projects(user).values("pk")
    found = Endpoint.objects.select_related("user", "project", "created_by")
    if permissions.token_project_id(user) is not None:
        return found.filter(project__in=projects)
    return found.filter(Q(user=user) | Q(project__in=projects))


def endpoint_of(user: User, number: int) -> Endpoint:
    """One of these; raises NotFound for any other, whether it exists or not."""
    found = own_endpoints(user).filter(pk=number).first()
    if found is None:
        raise NotFound(
            "There is no such webhook, or you do not manage it.", way_out="The page Webhooks lists yours."
        )
    return found


def messages_of(endpoint: Endpoint) -> QuerySet[Message]:
    return Message.objects.filter(endpoint=endpoint).order_by("-id")
