"""The page System: checks, systems outside, versions, and the support bundle."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe

from accounts import permissions
from accounts.web.pages import page, reader
from config import health
from config.system import facts
from config.system.bundle import make_bundle
from config.system.outside import outside_systems, try_now


@never_cache
@require_safe
@page
def show(request: HttpRequest) -> HttpResponse:
    """For operators; the button of the bundle is for site admins."""
    user = reader(request)
    permissions.require(user, "operate")
    checks = list(health.run_checks())
    systems = outside_systems()
    context = {
        "checks": checks,
        "failed": [check for check in checks if not check.ok],
        "systems": systems,
        "versions": facts.versions(),
        "may_bundle": permissions.may(user, "administer"),
    }
    return render(request, "system/system.html", context)


@require_POST
@page
def try_system(request: HttpRequest) -> HttpResponse:
    """Close the circuit that the form names."""
    name = request.POST.get("name", "")
    try_now(name=name, by=reader(request))
    messages.success(request, f"{name} is called again as soon as it is needed.")
    return redirect("system")


@never_cache
@require_POST
@page
def support_bundle(request: HttpRequest) -> HttpResponse:
    """The archive as a download."""
    name, body = make_bundle(by=reader(request))
    return HttpResponse(
        body,
        content_type="application/gzip",
        headers={
            "Content-Disposition": f'attachment; filename="{name}"',
            "X-Content-Type-Options": "nosniff",
        },
    )
