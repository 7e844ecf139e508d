"""The live topic `notifications`: how many a person has not read, so that the bell follows."""

from __future__ import annotations

from django.db.models import Max

from notifications.selectors import own_notifications, unread_count
from notifications.services.occurrences import topic_of
from scheduler.realtime.auth import Viewer
from scheduler.realtime.topics import Rows, Source


def source(viewer: Viewer) -> Source:
    """What this viewer follows: their own unread count and their latest notification, and nobody else's."""
    user = viewer.user
    return Source(
        ("notifications", user.pk, viewer.only_project_id, viewer.rights),
        frozenset({topic_of(user.pk)}),
        lambda: rows(viewer),
        pointed=True,
    )


def rows(viewer: Viewer) -> Rows:
    found = own_notifications(viewer.user)
    if viewer.only_project_id is not None:
        found = found.filter(project=viewer.only_project_id)
    latest = found.order_by().aggregate(latest=Max("id"), changed_at=Max("last_at"))
    return {"unread": {"count": unread_count(viewer.user), **latest}}
