"""Pages about error codes, where the `type` of every problem leads; for everybody, signed in or not."""

from __future__ import annotations

import logging
import sys

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import path
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.views import defaults
from django.views.decorators.http import require_safe

from accounts.web.pages import unavailable
from infra.api.error_codes import GROUPS, MEANINGS, Meaning
from infra.api.problems import API_PREFIX, known_problem
from infra.db.error_messages import to_error

log = logging.getLogger(__name__)


@require_safe
def index(request: HttpRequest) -> HttpResponse:
    """All codes, by what they are about."""
    groups = [(heading, [(code, found.title) for code, found in group.items()]) for heading, group in GROUPS]
    return render(request, "errors/index.html", {"groups": groups})


@require_safe
def show(request: HttpRequest, code: str) -> HttpResponse:
    """What one code means, and what to do about it."""
    meaning = MEANINGS.get(code)
    if meaning is None:
        raise Http404
    return render(request, "errors/code.html", {"code": code, "meaning": _marked_up(meaning)})


def _marked_up(meaning: Meaning) -> dict[str, str]:
    return {
        "title": meaning.title,
        "means": _with_code(meaning.means),
        "way_out": _with_code(meaning.way_out),
    }


def _with_code(text: str) -> SafeString:
    """What stands between backticks is to be typed as it is."""
    parts = text.split("`")
    marked = [
        format_html("<code>{}</code>" if number % 2 else "{}", part) for number, part in enumerate(parts)
    ]
    return format_html_join("", "{}", [(part,) for part in marked])


def server_error(request: HttpRequest) -> HttpResponse:
    """Django's `handler500`: an answer for what nobody caught; a database that is away is named as that."""
    known = to_error(sys.exc_info()[1])
    if known is None:
        return defaults.server_error(request)
    log.warning("database_unavailable", extra={"code": known.code, "path": request.path})
    if request.path.startswith(API_PREFIX):
        return known_problem(request, known)
    return unavailable(request, known)


urlpatterns = [
    path("docs/errors/", index, name="errors"),
    path("docs/errors/<slug:code>", show, name="error-code"),
]
