"""API tokens: make one (shown once), see their use, revoke."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST

from accounts.models import ApiToken, Project, User
from accounts.scopes import SCOPES
from accounts.selectors import visible_projects
from accounts.services.tokens import DEFAULT_DAYS, MAX_DAYS, issue_token, revoke_token
from accounts.web.pages import page, reader
from infra.errors import FieldProblem, InvalidInput, NotFound

#: What most programs need: submit, and look after what was submitted.
USUAL_SCOPES = ("jobs:read", "jobs:write")
LIFETIMES = (7, 30, DEFAULT_DAYS, 180, MAX_DAYS)


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
@page
def show(request: HttpRequest) -> HttpResponse:
    """The list and the form; the answer to the form carries the plain token, this once."""
    user = reader(request)
    context: dict[str, Any] = {"problems": {}, "given": {"scopes": USUAL_SCOPES, "days": DEFAULT_DAYS}}
    if request.method == "POST":
        given: dict[str, Any] = {
            "name": request.POST.get("name", ""),
            "scopes": request.POST.getlist("scopes"),
            "days": request.POST.get("days", ""),
            "project": request.POST.get("project", ""),
        }
        try:
            token, plain = issue_token(
                user=user,
                by=user,
                name=given["name"],
                scopes=given["scopes"],
                days=int(given["days"]) if given["days"].isdecimal() and len(given["days"]) < 6 else 0,
                project=_project(user, given["project"]),
            )
        except InvalidInput as error:
            context |= {
                "given": given,
                "problems": {problem.field.split("/")[0]: problem.message for problem in error.problems},
                "error": error,
            }
        else:
            context |= {"made": token, "plain": plain, "base_url": request.build_absolute_uri("/")[:-1]}
    context |= {
        "tokens": ApiToken.objects.filter(user=user).select_related("project"),
        "scopes": SCOPES.items(),
        "lifetimes": LIFETIMES,
        "projects": visible_projects(user).order_by("name"),
        "now": timezone.now(),
    }
    return render(request, "accounts/tokens.html", context, status=422 if context["problems"] else 200)


def _project(user: User, slug: str) -> Project | None:
    """The project it is held to; one that cannot be found is not the same as none."""
    if not slug:
        return None
    found = visible_projects(user).filter(slug=slug.replace("\x00", "\N{SYMBOL FOR NULL}")).first()
    if found is None:
        message = "There is no such project, or you are no longer a member."
        raise InvalidInput(
            "The token was not created.", problems=[FieldProblem("project", message, "unknown")]
        )
    return found


@require_POST
@page
def revoke(request: HttpRequest, token_id: int) -> HttpResponse:
    user = reader(request)
    token = ApiToken.objects.filter(user=user, pk=token_id).first()
    if token is None:
        raise NotFound("You have no such token.", way_out="See the list of your tokens.")
    revoke_token(token=token, by=user)
    messages.success(request, f"{token.name} was revoked: programs that use it are refused.")
    return redirect("tokens")
