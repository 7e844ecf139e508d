"""What every page has in common: a signed-in reader, and refusals shown as pages that say the way out."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, cast

import structlog
from django.contrib import messages
from django.contrib.auth.views import redirect_to_login
from django.db import DataError
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme

from accounts.models import User
from accounts.services import audit
from infra.errors import FieldProblem, InvalidInput, MusterError, NotAllowed, NotFound

log = structlog.get_logger(__name__)

View = Callable[..., HttpResponseBase]

TITLES = {403: "Permission denied", 404: "Page not found", 409: "Changed meanwhile"}


def page(view: View) -> View:
    """A view for people who are signed in; errors of services become a page, or a message after a post."""

    @functools.wraps(view)
    def wrapped(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        if not request.user.is_authenticated:
            return _ask_to_sign_in(request)
        try:
            return view(request, *args, **kwargs)
        except MusterError as error:
            audit.record_refusal(error, by=request.user)
            return refusal(request, error)
        except DataError as error:
            log.warning("data_error", exc_info=error)
            return refusal(request, no_such_value(request))

    return wrapped


def no_such_value(request: HttpRequest) -> InvalidInput:
    """The last line of defence: what the database cannot hold, nor look for, is no failure of ours."""
    problems = [
        FieldProblem(name.replace("\0", "?"), "Contains a NUL character, which is not allowed in text.")
        for given in (request.GET, request.POST)
        for name, values in given.lists()
        if any("\0" in text for text in (name, *map(str, values)))
    ]
    if request.method == "GET":
        message, way_out = "This address contains an invalid value.", "Check it for typing errors."
    else:
        message, way_out = "A value in the request cannot be stored.", "Enter a valid value."
    return InvalidInput(message, way_out=way_out, problems=problems)


def _ask_to_sign_in(request: HttpRequest) -> HttpResponse:
    """The sign-in page, and after it the page asked for; a partial refresh reloads the whole page instead."""
    if request.headers.get("HX-Request") or "partial" in request.GET:
        response = HttpResponse(status=401)
        response.headers["HX-Redirect"] = reverse("signin")
        return response
    return redirect_to_login(
        request.get_full_path() if request.method in ("GET", "HEAD") else reverse("home")
    )


def refusal(request: HttpRequest, error: MusterError) -> HttpResponse:
    """Show an error where the person is: a fragment to htmx, a message after a post, else a page."""
    if request.headers.get("HX-Request"):
        return render(request, "partials/problem.html", {"error": error}, status=error.status)
    if request.method == "POST" and not isinstance(error, NotFound | NotAllowed):
        messages.error(request, str(error))
        for problem in error.problems:
            messages.error(
                request, f"{problem.field}: {problem.message}" if problem.field else problem.message
            )
        return back(request)
    context = {"error": error, "heading": TITLES.get(error.status, "Request failed")}
    return render(request, "refusal.html", context, status=error.status)


def unavailable(request: HttpRequest, error: MusterError) -> HttpResponse:
    """The database is away, too slow or full: a page that needs nothing of it, and when to come again."""
    template = "partials/problem.html" if request.headers.get("HX-Request") else "503.html"
    response = render(request, template, {"error": error}, status=error.status)
    response.headers["Retry-After"] = str(error.extra.get("retry_after_seconds", 60))
    return response


def back(request: HttpRequest, otherwise: str = "home") -> HttpResponse:
    """To the page that posted, when it is one of ours."""
    for url in (request.POST.get("next", ""), request.headers.get("Referer", "")):
        if url and url_has_allowed_host_and_scheme(
            url, allowed_hosts={request.get_host()}, require_https=request.is_secure()
        ):
            return HttpResponseRedirect(url)
    return HttpResponseRedirect(reverse(otherwise))


def reader(request: HttpRequest) -> User:
    """The person who is signed in, on a view behind `page`."""
    return cast(User, request.user)
