"""Events that are no job's: notices about quotas and budgets, and changes of reservations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from django.db import connection

from infra.times_in_text import written
from notifications.core.kinds import Kind
from notifications.services.findings import operators
from notifications.services.occurrences import Occurrence

BATCH: Final = 2000

_ALERTS: Final = """
SELECT tied.id, alert.at, notice.user_id, alert.project_id, alert.text
FROM quotas_notice_alerts tied JOIN quotas_alert alert ON alert.id = tied.alert_id
    JOIN quotas_notice notice ON notice.id = tied.notice_id
WHERE tied.id > %s AND tied.id <= %s ORDER BY tied.id LIMIT %s
"""
_RESERVATIONS: Final = """
SELECT event.pgh_id, event.pgh_created_at, event.pgh_label, event.name, event.starts_at, event.ends_at,
    event.cancelled_at, event.reason, event.created_by_id, person.username, event.status,
    coalesce(event.decided_at > event.pgh_created_at - interval '5 seconds', false), event.decision_reason
FROM scheduler_reservationevent event LEFT JOIN accounts_user person ON person.id = event.created_by_id
WHERE event.pgh_id > %s AND event.pgh_id <= %s ORDER BY event.pgh_id LIMIT %s
"""


def read_alerts(after: int, until: int) -> tuple[list[Occurrence], int]:
    """Alerts about limits, budgets and requests, for the people whose notice they are in."""
    rows = _ask(_ALERTS, after, until)
    found = [
        Occurrence(
            kind=Kind.QUOTA, source="quotas", event=number, at=at, user_id=user, text=text, thing="quota",
            project_id=project, group="quota", name=" ".join(text.split()),
        )
        for number, at, user, project, text in rows
    ]  # fmt: skip
    return found, rows[-1][0] if len(rows) == BATCH else until


def read_reservations(after: int, until: int) -> tuple[list[Occurrence], int]:
    """Reservations and holds that were requested, made, changed or cancelled, for the operators but the one who made
    it; and decisions about requests, for those who asked.
    """
    rows = _ask(_RESERVATIONS, after, until)
    people = [person.pk for person in operators()] if rows else []
    found: list[Occurrence] = []
    for row in rows:
        number, at, label, name, starts_at, ends_at, cancelled_at, reason, maker, username, *decision = row
        status, is_decision, why = decision
        what = _what(label, status, cancelled=bool(cancelled_at), decided=is_decision)
        text = f"{what.capitalize()}: from {written(starts_at)} to {written(ends_at)}"
        text += f", by {username}" if username and what in _NEW else ""
        text += f": {words}" if (words := why if is_decision else reason) else ""
        asked = {maker} if is_decision and maker is not None and not cancelled_at else set()
        found += [
            Occurrence(
                kind=Kind.RESERVATION, source="reservations", event=number, at=at, user_id=person, text=text,
                group="reservations", name=name, thing="reservations",
            )
            for person in dict.fromkeys([*people, *asked])
            if what not in _NEW or person != maker
        ]  # fmt: skip
    return found, rows[-1][0] if len(rows) == BATCH else until


#: What is no news to the one who did it.
_NEW: Final = ("made", "requested")


def _what(label: str, status: str, *, cancelled: bool, decided: bool) -> str:
    """What has become of a reservation, in a word."""
    if cancelled:
        return "cancelled"
    if label == "insert":
        return "requested" if status == "requested" else "made"
    return status if decided else "changed"


class Stream(NamedTuple):
    """A table of events, its key, and who reads it."""

    name: str
    table: str
    key: str
    read: Callable[[int, int], tuple[list[Occurrence], int]]


STREAMS: Final = (
    Stream("quotas", "quotas_notice_alerts", "id", read_alerts),
    Stream("reservations", "scheduler_reservationevent", "pgh_id", read_reservations),
)


def _ask(sql: str, after: int, until: int) -> list[tuple]:  # type: ignore[type-arg]
    with connection.cursor() as cursor:
        cursor.execute(sql, [after, until, BATCH])
        return list(cursor.fetchall())
