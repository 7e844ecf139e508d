"""Sign-in, sign-out and password of the Django admin: the portal's own pages, with their delays and audit trail."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.contrib.auth import REDIRECT_FIELD_NAME, logout
from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import redirect
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST

from accounts.models import User
from accounts.services.signin import sign_out
from infra.redirects import local_target


@never_cache
def enter(request: HttpRequest, extra_context: Any = None) -> HttpResponse:
    """To the portal's sign-in page; an account without access here gets an explanation."""
    target = local_target(request, request.GET.get(REDIRECT_FIELD_NAME, ""), "/admin/")
    if not request.user.is_authenticated:
        return redirect_to_login(target)
    if admin.site.has_permission(request):
        return HttpResponseRedirect(target)
    raise PermissionDenied("The admin pages are for operators and admins of this site.")


@never_cache
@require_POST
def leave(request: HttpRequest, extra_context: Any = None) -> HttpResponse:
    if isinstance(request.user, User):
        sign_out(user=request.user)
    logout(request)
    return redirect("signin")


@never_cache
def change_password(request: HttpRequest, extra_context: Any = None) -> HttpResponse:
    """On the portal's page of settings, which writes it down and leaves the demo accounts as they are."""
    return redirect("settings")


def row_of_any_table(request: HttpRequest, path: str = "") -> HttpResponse:
    """Django's "view on site" redirect. Disabled: it checks no permissions, and nothing links to it."""
    raise Http404


admin.site.login = enter  # type: ignore[method-assign]
admin.site.logout = leave  # type: ignore[method-assign,assignment]
admin.site.password_change = change_password  # type: ignore[method-assign,assignment]
