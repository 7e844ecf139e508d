"""The Django admin is entered and left through the portal's doors: one sign-in, one lock-out, one trail."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.contrib.auth import REDIRECT_FIELD_NAME, logout
from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST

from accounts.models import User
from accounts.services.signin import sign_out


@never_cache
def enter(request: HttpRequest, extra_context: Any = None) -> HttpResponse:
    """To the portal's sign-in page; somebody who has signed in and has no business here is told so."""
    target = request.GET.get(REDIRECT_FIELD_NAME, "")
    if not url_has_allowed_host_and_scheme(target, allowed_hosts={request.get_host()}):
        target = "/admin/"
    if not request.user.is_authenticated:
        return redirect_to_login(target)
    if admin.site.has_permission(request):
        return redirect(target)
    raise PermissionDenied("The admin pages are for operators and admins of this site.")


@never_cache
@require_POST
def leave(request: HttpRequest, extra_context: Any = None) -> HttpResponse:
    if isinstance(request.user, User):
        sign_out(user=request.user)
    logout(request)
    return redirect("signin")


admin.site.login = enter  # type: ignore[method-assign,assignment]
admin.site.logout = leave  # type: ignore[method-assign,assignment]
