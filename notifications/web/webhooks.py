"""Webhooks: made (the secret is shown once), changed, rotated, tried; and the log of what was delivered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST

from accounts.models import Project, User
from accounts.web.pages import page, reader
from infra.errors import FieldProblem, InvalidInput, NotFound
from notifications.core.kinds import Kind
from notifications.models import Endpoint, MessageState
from notifications.selectors import endpoint_of, led_projects, messages_of, own_endpoints
from notifications.services import endpoints

PAGE_SIZE: Final = 50
#: Checked in the form of a new webhook.
USUAL: Final = (Kind.FAILED.value, Kind.ENDED.value)


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
@page
def index(request: HttpRequest) -> HttpResponse:
    """The list and the form; the answer to the form carries the secret, this once."""
    user = reader(request)
    context: dict[str, Any] = {
        "problems": {},
        "given": {"kinds": USUAL, "project": request.GET.get("project", "")},
    }
    if request.method == "POST":
        given = _given(request) | {"project": request.POST.get("project", "")}
        try:
            project = _project(user, given["project"])
            made, secret = endpoints.create_endpoint(
                by=user, name=given["name"], url=given["url"], kinds=given["kinds"], project=project
            )
        except InvalidInput as error:
            context |= {"given": given, "problems": _by_field(error)}
        else:
            context |= {"made": made, "secret": secret}
    context |= {
        "webhooks": own_endpoints(user),
        "kinds": endpoints.kinds_offered(None, user),
        "projects": led_projects(user).order_by("name"),
    }
    return render(request, "notifications/webhooks.html", context, status=422 if context["problems"] else 200)


def _given(request: HttpRequest) -> dict[str, Any]:
    return {
        "name": request.POST.get("name", ""),
        "url": request.POST.get("url", ""),
        "kinds": request.POST.getlist("kinds"),
    }


def _by_field(error: InvalidInput) -> dict[str, str]:
    return {problem.field: problem.message for problem in error.problems}


def _project(user: User, slug: str) -> Project | None:
    if not slug:
        return None
    found = led_projects(user).filter(slug=slug.replace("\x00", "")).first()
    if found is None:
        message = "There is no such project, or you do not lead it."
        raise InvalidInput(message, problems=[FieldProblem("project", message, "unknown")])
    return found


@require_http_methods(["GET", "HEAD", "POST"])
@page
def show(request: HttpRequest, webhook_id: int) -> HttpResponse:
    """One webhook: its settings, and its messages with every try."""
    user = reader(request)
    webhook = endpoint_of(user, webhook_id)
    problems: dict[str, str] = {}
    given: dict[str, Any] = {"name": webhook.name, "url": webhook.url, "kinds": webhook.kinds}
    if request.method == "POST":
        given = _given(request)
        try:
            endpoints.change_endpoint(endpoint=webhook, by=user, changes=given)
        except InvalidInput as error:
            problems = _by_field(error)
        else:
            messages.success(request, "Saved.")
            return redirect("webhook", webhook.pk)
    return _page(request, webhook, {"problems": problems, "given": given}, status=422 if problems else 200)


def _page(
    request: HttpRequest, webhook: Endpoint, context: dict[str, Any], *, status: int = 200
) -> HttpResponse:
    state, before = request.GET.get("state", ""), request.GET.get("before", "")
    rows = messages_of(webhook).select_related("project")
    if state in MessageState.values:
        rows = rows.filter(state=state)
    if before.isdecimal() and len(before) < 19:
        rows = rows.filter(pk__lt=int(before))
    found = list(rows[: PAGE_SIZE + 1])
    shown = found[:PAGE_SIZE]
    context |= {
        "webhook": webhook,
        "rows": shown,
        "older": shown[-1].pk if len(found) > PAGE_SIZE else None,
        "state": state,
        "states": MessageState.choices,
        "kinds": endpoints.kinds_offered(webhook.project, reader(request)),
        "now": timezone.now(),
    }
    return render(request, "notifications/webhook.html", context, status=status)


@require_POST
@never_cache
@page
def do(request: HttpRequest, webhook_id: int, verb: str) -> HttpResponse:
    """The buttons of a webhook; rotation shows the new secret, this once."""
    user = reader(request)
    webhook = endpoint_of(user, webhook_id)
    if verb == "rotate":
        webhook, secret = endpoints.rotate_secret(endpoint=webhook, by=user)
        given = {"name": webhook.name, "url": webhook.url, "kinds": webhook.kinds}
        return _page(request, webhook, {"problems": {}, "given": given, "secret": secret})
    if verb == "delete":
        endpoints.delete_endpoint(endpoint=webhook, by=user)
        messages.success(request, f"The webhook {webhook.name} was deleted.")
        return redirect("webhooks")
    verbs: dict[str, tuple[Callable[[], object], str]] = {
        "test": (lambda: endpoints.send_test(endpoint=webhook, by=user), "A test message is on its way."),
        "enable": (lambda: endpoints.set_enabled(endpoint=webhook, by=user, enabled=True), "Enabled."),
        "disable": (lambda: endpoints.set_enabled(endpoint=webhook, by=user, enabled=False), "Disabled."),
    }
    if verb not in verbs:
        raise NotFound("There is no such button.", way_out="Open the page of the webhook.")
    call, word = verbs[verb]
    call()
    messages.success(request, word)
    return redirect("webhook", webhook.pk)


@require_POST
@page
def send_again(request: HttpRequest, webhook_id: int, message_id: int) -> HttpResponse:
    user = reader(request)
    webhook = endpoint_of(user, webhook_id)
    message = messages_of(webhook).filter(pk=message_id).first()
    if message is None:
        raise NotFound("This webhook has no such message.", way_out="Open the page of the webhook.")
    endpoints.redeliver(endpoint=webhook, message=message, by=user)
    messages.success(request, "The message is sent again.")
    return redirect("webhook", webhook.pk)
