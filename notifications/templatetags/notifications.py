"""The bell of every page, and what a notification says."""

from __future__ import annotations

from typing import Any, Final

from django import template
from django.db import DatabaseError

from accounts.models import User
from notifications.core.kinds import KINDS, Kind
from notifications.models import Bundle
from notifications.selectors import MOST_COUNTED, unread_count
from notifications.services import links

register = template.Library()

#: Kind -> tone and icon, those of the states that the kind is about.
_LOOKS: Final = {
    Kind.FAILED: ("failed", "cross"), Kind.NEVER_STARTS: ("blocked", "slash"),
    Kind.DEADLINE_LATE: ("pending", "clock"), Kind.DEADLINE_MISSED: ("failed", "clock"),
    Kind.ENDED: ("completed", "check"),
    Kind.BEGAN: ("running", "play"), Kind.REQUEUED: ("pending", "refresh"), Kind.PREEMPTED: ("preempted", "swap"),
    Kind.CANCELLED: ("cancelled", "slash"), Kind.HELD: ("pending", "pause"), Kind.TIME_LIMIT: ("pending", "clock"),
    Kind.IDLE_GPU: ("pending", "gpu"), Kind.NODE_DRAINS: ("pending", "node"), Kind.NODE_DOWN: ("failed", "node"),
    Kind.RESERVATION: ("starting", "flag"), Kind.QUOTA: ("pending", "bars"),
    Kind.POLICY_FAULT: ("failed", "warn"), Kind.OUTSIDE_AWAY: ("failed", "link"),
    Kind.WEBHOOK_DISABLED: ("failed", "link"), Kind.TEST: ("starting", "link"),
}  # fmt: skip


@register.simple_tag(takes_context=True)
def bell(context: template.Context) -> str:
    """The unread count as the bell shows it: "", "7" or "99+"."""
    user: Any = getattr(context.get("request"), "user", None)
    if not isinstance(user, User):
        return ""
    try:
        count = unread_count(user)
    except DatabaseError:  # a page that says so must not fail over its bell
        return ""
    return "" if not count else f"{MOST_COUNTED}+" if count > MOST_COUNTED else str(count)


@register.filter
def title(row: Bundle) -> str:
    return links.title_of(row)


@register.filter
def link(row: Bundle) -> str:
    return links.link_of(row)


@register.filter
def job_numbers(row: Bundle) -> list[int]:
    return links.jobs_of(row)


@register.filter
def tone(kind: str) -> str:
    return _LOOKS[Kind(kind)][0]


@register.filter
def kind_icon(kind: str) -> str:
    return _LOOKS[Kind(kind)][1]


@register.filter
def kind_label(kind: str) -> str:
    return KINDS[Kind(kind)].label if kind in KINDS else "Test"
