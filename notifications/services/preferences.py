"""People choose what they are notified of, and mark notifications as read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from accounts import permissions
from accounts.models import User
from accounts.services import audit
from infra.errors import FieldProblem, InvalidInput, NotAllowed, NotFound
from infra.notifications import announce
from notifications.core.kinds import KINDS, Channel, Kind
from notifications.models import Notification, Preference
from notifications.selectors import choices_of, own_notifications
from notifications.services.occurrences import topic_of


def change_preferences(*, user: User, by: User, changes: Mapping[str, Mapping[str, Any]]) -> None:
    """Turn kinds on or off: `{"job.ended": {"portal": true, "mail": false}}`; what is not named stays.

    Raises InvalidInput that names every wrong entry, and writes nothing then.
    """
    permissions.require(by, "edit", user)
    require_whole_person(by)
    wanted = _read(user, changes)
    before = {(one.kind.value, name): on for one in choices_of(user) for name, on in _channels(one).items()}
    new = {key: on for key, on in wanted.items() if before[key] != on}
    if not new:
        return
    with transaction.atomic():
        Preference.objects.bulk_create(
            [Preference(user=user, kind=kind, channel=channel, on=on) for (kind, channel), on in new.items()],
            update_conflicts=True, unique_fields=["user", "kind", "channel"], update_fields=["on"],
        )  # fmt: skip
        audit.record(
            by=by, action="notifications.preferences", thing=user,
            before={" by ".join(key): before[key] for key in new},
            after={" by ".join(key): on for key, on in new.items()},
        )  # fmt: skip


def _channels(one: Any) -> dict[str, bool]:
    return {Channel.PORTAL.value: one.portal, Channel.MAIL.value: one.mail}


def _read(user: User, changes: Mapping[str, Any]) -> dict[tuple[str, str], bool]:
    known = {kind.value for kind, about in KINDS.items() if user.is_operator or not about.operators}
    problems: list[FieldProblem] = []
    wanted: dict[tuple[str, str], bool] = {}
    for kind, channels in list(changes.items())[:100]:
        if kind not in known:
            message = f"There is no kind {str(kind)[:40]!r}; there are {', '.join(sorted(known))}."
            problems.append(FieldProblem(str(kind)[:40], message, "unknown"))
        elif not isinstance(channels, Mapping):
            problems.append(FieldProblem(kind, "Has to be an object of channels.", "invalid"))
        else:
            for channel, on in channels.items():
                if channel not in set(Channel):
                    message = f"There is no channel {str(channel)[:40]!r}; there are portal and mail."
                    problems.append(FieldProblem(f"{kind}/{str(channel)[:40]}", message, "unknown"))
                elif not isinstance(on, bool):
                    problems.append(FieldProblem(f"{kind}/{channel}", "Has to be true or false.", "invalid"))
                else:
                    wanted[kind, str(channel)] = on
    if problems:
        raise InvalidInput(problems[0].message, problems=problems)
    return wanted


def require_whole_person(by: User) -> None:
    """Raise NotAllowed for a token that is held to one project: what is personal is about all of them."""
    if permissions.token_project_id(by) is not None:
        raise NotAllowed(
            "This token is limited to one project, and preferences and webhooks of a person cover all projects.",
            way_out="Use a token without that limit, or the portal.",
            refused=("edit", by),
        )


# ---------------------------------------------------------------- read and unread


def mark_read(*, number: int, by: User, read: bool = True) -> Notification:
    """Put one away, or take it up again; doing it twice changes nothing."""
    found = own_notifications(by).filter(pk=number).first()
    if found is None:
        raise NotFound("You have no such notification.", way_out="The page Notifications lists yours.")
    _mark(Notification.objects.filter(pk=found.pk), by, read=read)
    found.refresh_from_db()
    return found


def mark_all_read(*, by: User, kind: Kind | None = None) -> int:
    """Put all away, or all of one kind; answers how many."""
    keys = own_notifications(by).filter(read_at=None)
    if kind is not None:
        keys = keys.filter(kind=kind)
    return _mark(Notification.objects.filter(pk__in=keys.order_by().values("pk")), by, read=True)


@transaction.atomic
def _mark(rows: QuerySet[Notification], by: User, *, read: bool) -> int:
    count = rows.filter(read_at__isnull=read).update(read_at=timezone.now() if read else None)
    if count:
        announce(topic_of(by.pk))
    return count
