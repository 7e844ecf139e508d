"""The notification centre: the bell, the list with its filters, and what a person wants to be notified of."""

from __future__ import annotations

from typing import Any, Final

from django.contrib import messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from accounts.web.pages import back, page, reader
from notifications.core.kinds import Channel, Kind
from notifications.models import Notification
from notifications.selectors import choices_of, own_notifications, unread_count
from notifications.services.occurrences import mail_is_on
from notifications.services.preferences import change_preferences, mark_all_read, mark_read

PAGE_SIZE: Final = 50


@require_safe
@page
def show(request: HttpRequest) -> HttpResponse:
    user = reader(request)
    given = {
        "kind": request.GET.get("kind", ""),
        "state": "unread" if request.GET.get("state") == "unread" else "",
        "project": request.GET.get("project", "").replace("\x00", ""),
    }
    rows = list(_filtered(own_notifications(user), given, request.GET.get("before", ""))[: PAGE_SIZE + 1])
    shown = rows[:PAGE_SIZE]
    kinds = [(choice.kind.value, choice.about.label) for choice in choices_of(user)]
    context: dict[str, Any] = {
        "rows": shown,
        "older": shown[-1].pk if len(rows) > PAGE_SIZE else None,
        "given": given,
        "filtered": any(given.values()),
        "kinds": kinds,
        "projects": sorted({(row.project.slug, row.project.name) for row in shown if row.project}),
        "unread": unread_count(user),
        "mail_is_on": mail_is_on(),
        "live_url": _live_url(request),
    }
    template = "notifications/list_body.html" if "partial" in request.GET else "notifications/list.html"
    return render(request, template, context)


def _live_url(request: HttpRequest) -> str:
    query = request.GET.copy()
    query["partial"] = "1"
    return f"{request.path}?{query.urlencode()}"


def _filtered(rows: QuerySet[Notification], given: dict[str, str], before: str) -> QuerySet[Notification]:
    if given["kind"] in set(Kind):
        rows = rows.filter(kind=given["kind"])
    if given["state"]:
        rows = rows.filter(read_at=None)
    if given["project"]:
        rows = rows.filter(project__slug=given["project"])
    if before.isdecimal() and len(before) < 19:
        rows = rows.filter(pk__lt=int(before))
    return rows.order_by("-id")


@require_safe
@page
def bell(request: HttpRequest) -> HttpResponse:
    """The bell alone, which its live topic asks for again."""
    return render(request, "notifications/bell.html")


@require_POST
@page
def read(request: HttpRequest, notification_id: int) -> HttpResponse:
    mark_read(number=notification_id, by=reader(request), read=request.POST.get("read", "1") != "0")
    return back(request, "notifications")


@require_POST
@page
def read_all(request: HttpRequest) -> HttpResponse:
    kind = request.POST.get("kind", "")
    count = mark_all_read(by=reader(request), kind=Kind(kind) if kind in set(Kind) else None)
    messages.success(request, f"{count:,} marked as read." if count != 1 else "1 marked as read.")
    return back(request, "notifications")


@require_http_methods(["GET", "HEAD", "POST"])
@page
def preferences(request: HttpRequest) -> HttpResponse:
    """A table of kinds and channels; what is not checked is off."""
    user = reader(request)
    choices = choices_of(user)
    if request.method == "POST":
        channels = [channel for channel in Channel if channel != Channel.MAIL or _can_be_mailed(request)]
        change_preferences(
            user=user,
            by=user,
            changes={
                choice.kind.value: {
                    channel.value: f"{choice.kind}:{channel}" in request.POST for channel in channels
                }
                for choice in choices
            },
        )
        messages.success(request, "Saved.")
        return redirect("notification-preferences")
    return render(
        request,
        "notifications/preferences.html",
        {"choices": choices, "mail_is_on": mail_is_on(), "can_be_mailed": _can_be_mailed(request)},
    )


def _can_be_mailed(request: HttpRequest) -> bool:
    return mail_is_on() and bool(reader(request).email)
