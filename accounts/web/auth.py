"""Signing in and out."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.contrib.auth import REDIRECT_FIELD_NAME, login, logout
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_protect
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods, require_POST

from accounts.backends import demo_logins_allowed
from accounts.models import SiteRole, User
from accounts.services.signin import SignInRefused, sign_in
from accounts.services.signin import sign_out as note_sign_out
from accounts.services.signin_attempts import DEVICE_SECONDS, device_of
from infra.redirects import local_target

MOST_DEMO_PEOPLE = 12
DEVICE_COOKIE = "muster_device"


@sensitive_post_parameters("password")
@csrf_protect
@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def signin(request: HttpRequest) -> HttpResponse:
    """Name and password; a refusal says what to do, and how long to wait after too many wrong ones."""
    target = request.POST.get(REDIRECT_FIELD_NAME) or request.GET.get(REDIRECT_FIELD_NAME, "")
    target = local_target(request, target, "")
    if request.user.is_authenticated:
        return HttpResponseRedirect(target or reverse("home"))
    context: dict[str, Any] = {"next": target, "username": ""}
    status = 200
    if request.method == "POST":
        context["username"] = request.POST.get("username", "").replace("\x00", "")[:150]
        try:
            person = sign_in(
                username=request.POST.get("username", ""),
                password=request.POST.get("password", ""),
                user_agent=request.headers.get("User-Agent", ""),
                device=request.COOKIES.get(DEVICE_COOKIE, ""),
            )
        except SignInRefused as error:
            context["error"], status = error, error.status
        else:
            login(request, person, backend="accounts.backends.PasswordBackend")
            return _remember(HttpResponseRedirect(target or reverse("home")), person)
    response = render(
        request, "accounts/signin.html", context | {"demo_people": _demo_people(request)}, status=status
    )
    if status == 429:
        response.headers["Retry-After"] = str(context["error"].extra["retry_after_seconds"])
    return response


def _remember(response: HttpResponse, person: User) -> HttpResponse:
    """Let the browser be known as one that this person has signed in with: others' guesses do not slow it."""
    response.set_cookie(
        DEVICE_COOKIE, device_of(person), max_age=DEVICE_SECONDS, httponly=True, samesite="Lax",
        secure=settings.SESSION_COOKIE_SECURE, path=reverse("signin"),
    )  # fmt: skip
    return response


def _demo_people(request: HttpRequest) -> list[dict[str, str]]:
    """The demo accounts, where their passwords work: on this machine, outside production."""
    if not demo_logins_allowed(request):
        return []
    people = User.objects.filter(is_demo=True, is_active=True).order_by("id")[:MOST_DEMO_PEOPLE]
    return [
        {
            "username": person.username,
            "password": f"{person.username}-demo",
            "role": person.get_site_role_display() if person.site_role != SiteRole.NONE else "researcher",
        }
        for person in people
    ]


@require_POST
def signout(request: HttpRequest) -> HttpResponse:
    if isinstance(request.user, User):
        note_sign_out(user=request.user)
    logout(request)
    return redirect("signin")
