"""The audit trail for auditors: filters, what changed in each row, and whether the chain holds."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

from django.db import connection
from django.db.models import Q
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.dateparse import parse_date
from django.views.decorators.http import require_safe

from accounts import permissions
from accounts.models import AuditCheck, AuditOutcome
from accounts.selectors import visible_audit_events
from accounts.web.pages import page, reader

PAGE_SIZE = 50
#: Offered as choices of the filter; the names of actions are few.
MOST_ACTIONS = 200


@require_safe
@page
def show(request: HttpRequest) -> HttpResponse:
    user = reader(request)
    permissions.require(user, "audit")
    given = {
        name: request.GET.get(name, "").strip()
        for name in ("actor", "action", "object", "outcome", "since", "until")
    }
    events = _filtered(visible_audit_events(user), given)
    before = request.GET.get("before", "")
    if before.isdecimal() and len(before) < 19:
        events = events.filter(pk__lt=int(before))
    rows = list(events.order_by("-id")[: PAGE_SIZE + 1])
    shown = rows[:PAGE_SIZE]
    for event in shown:
        event.differences = differences(event.before, event.after)
    return render(
        request,
        "accounts/audit.html",
        {
            "events": shown,
            "older": shown[-1].pk if len(rows) > PAGE_SIZE else None,
            "given": given,
            "filtered": any(given.values()) or bool(before),
            "actions": _actions(),
            "outcomes": AuditOutcome.choices,
            "check": AuditCheck.objects.first(),
        },
    )


#: From one name to the next by the index: DISTINCT would read an entry for each row of the trail.
_ACTIONS = """
WITH RECURSIVE seen(action) AS (
    (SELECT action FROM accounts_auditevent ORDER BY action LIMIT 1)
    UNION ALL
    SELECT (SELECT action FROM accounts_auditevent WHERE action > seen.action ORDER BY action LIMIT 1)
    FROM seen WHERE seen.action IS NOT NULL
)
SELECT action FROM seen WHERE action IS NOT NULL LIMIT %s
"""


def _actions() -> list[str]:
    with connection.cursor() as cursor:
        cursor.execute(_ACTIONS, [MOST_ACTIONS])
        return [action for (action,) in cursor.fetchall()]


def _filtered(events: Any, given: dict[str, str]) -> Any:
    given = {name: value.replace("\x00", "") for name, value in given.items()}
    if given["actor"]:
        events = events.filter(Q(actor_name=given["actor"]) | Q(on_behalf_of=given["actor"]))
    if given["action"]:
        events = events.filter(action=given["action"])
    if given["object"]:
        events = events.filter(
            Q(object_label__icontains=given["object"])
            | Q(object_id=given["object"])
            | Q(object_type=given["object"])
        )
    if given["outcome"] in AuditOutcome.values:
        events = events.filter(outcome=given["outcome"])
    if since := _day(given["since"]):
        events = events.filter(at__gte=datetime.combine(since, time.min, tzinfo=UTC))
    if until := _day(given["until"]):
        events = events.filter(at__lt=datetime.combine(until, time.min, tzinfo=UTC) + timedelta(days=1))
    return events


def _day(text: str) -> date | None:
    try:
        day = parse_date(text)
    except ValueError:
        return None
    return day if day is not None and day.year < 9999 else None


def differences(before: Any, after: Any) -> list[tuple[str, str | None, str | None]]:
    """(name, before, after) of each value that differs; None where a side does not have it."""
    before = before if isinstance(before, dict) else {}
    after = after if isinstance(after, dict) else {}
    names = [*before, *(name for name in after if name not in before)]
    return [
        (name, _shown(before, name), _shown(after, name))
        for name in names
        if name not in before or name not in after or before[name] != after[name]
    ]


def _shown(values: dict[str, Any], name: str) -> str | None:
    if name not in values:
        return None
    value = values[name]
    if value is None or value == "":
        return "nothing"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(str(item) for item in value)
    if isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False, sort_keys=True)
    return str(value)
