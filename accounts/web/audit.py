"""The audit trail for auditors: filters, what changed in each row, and whether the chain holds."""

from __future__ import annotations

from typing import Any

from django.db.models import Q
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.dateparse import parse_date
from django.views.decorators.http import require_GET

from accounts import permissions
from accounts.models import AuditCheck, AuditEvent, AuditOutcome
from accounts.selectors import visible_audit_events
from accounts.web.pages import page, reader

PAGE_SIZE = 50
#: Offered as choices of the filter; the names of actions are few.
MOST_ACTIONS = 200


@require_GET
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
        event.differences = differences(event.before, event.after)  # type: ignore[attr-defined]
    actions = AuditEvent.objects.order_by("action").values_list("action", flat=True).distinct()[:MOST_ACTIONS]
    return render(
        request,
        "accounts/audit.html",
        {
            "events": shown,
            "older": shown[-1].pk if len(rows) > PAGE_SIZE else None,
            "given": given,
            "filtered": any(given.values()) or bool(before),
            "actions": list(actions),
            "outcomes": AuditOutcome.choices,
            "check": AuditCheck.objects.first(),
        },
    )


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
    for name, lookup in (("since", "at__date__gte"), ("until", "at__date__lte")):
        try:
            day = parse_date(given[name])
        except ValueError:
            day = None
        if day:
            events = events.filter(**{lookup: day})
    return events


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
    return str(value)
