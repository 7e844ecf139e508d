"""Secrets on a person's settings and on a project's page: set and deleted there, and never shown."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_POST

from accounts.selectors import project_by_ref
from accounts.services.secrets import delete_secret, set_secret
from accounts.web.pages import page, reader


def _value(request: HttpRequest) -> str:
    """As it was typed; browsers send line breaks of forms as CR and LF, which no key file has."""
    return request.POST.get("value", "").replace("\r\n", "\n")


@sensitive_post_parameters("value")
@require_POST
@page
def set_own(request: HttpRequest) -> HttpResponse:
    user = reader(request)
    secret = set_secret(owner=user, name=request.POST.get("name", "").strip(), value=_value(request), by=user)
    messages.success(request, f"Secret {secret.name} is stored; no page shows the value.")
    return redirect("settings")


@require_POST
@page
def delete_own(request: HttpRequest, name: str) -> HttpResponse:
    user = reader(request)
    delete_secret(owner=user, name=name, by=user)
    messages.success(request, f"Secret {name} was deleted.")
    return redirect("settings")


@sensitive_post_parameters("value")
@require_POST
@page
def set_of_project(request: HttpRequest, slug: str) -> HttpResponse:
    user = reader(request)
    project = project_by_ref(user, slug)
    secret = set_secret(
        owner=project, name=request.POST.get("name", "").strip(), value=_value(request), by=user
    )
    messages.success(request, f"Secret {secret.name} of {project.name} is stored; no page shows the value.")
    return redirect("project", slug=project.slug)


@require_POST
@page
def delete_of_project(request: HttpRequest, slug: str, name: str) -> HttpResponse:
    user = reader(request)
    project = project_by_ref(user, slug)
    delete_secret(owner=project, name=name, by=user)
    messages.success(request, f"Secret {name} of {project.name} was deleted.")
    return redirect("project", slug=project.slug)
