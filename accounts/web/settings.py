"""A person's own settings: colours, time zone, default project, password."""

from __future__ import annotations

import zoneinfo

from django.contrib import messages
from django.contrib.auth import update_session_auth_hash
from django.contrib.auth.forms import PasswordChangeForm
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods, require_POST

from accounts.models.user import Theme
from accounts.selectors import submit_projects
from accounts.services.preferences import change_password as set_password
from accounts.services.preferences import change_preferences
from accounts.services.secrets import of_owner
from accounts.services.signin import SignInRefused, password_again
from accounts.web.pages import back, page, reader
from infra.errors import InvalidInput

#: Offered while typing; every zone of the database is taken.
COMMON_AREAS = ("Africa/", "America/", "Asia/", "Australia/", "Europe/", "Pacific/")


@require_http_methods(["GET", "HEAD", "POST"])
@page
def show(request: HttpRequest) -> HttpResponse:
    user = reader(request)
    problems: dict[str, str] = {}
    if request.method == "POST":
        project = request.POST.get("default_project", "")
        try:
            change_preferences(
                user=user,
                by=user,
                changes={
                    "theme": request.POST.get("theme", ""),
                    "time_zone": request.POST.get("time_zone", "").strip(),
                    "default_project_id": _number(project),
                },
            )
        except InvalidInput as error:
            problems = {problem.field: problem.message for problem in error.problems}
        else:
            messages.success(request, "Saved.")
            return redirect("settings")
    return _render(request, PasswordChangeForm(user), problems)


def _number(project: str) -> int | None:
    """None only where none was chosen; 0, which no project has, for what is no number."""
    if not project:
        return None
    return int(project) if project.isdecimal() and len(project) < 19 else 0


@require_POST
@page
def change_theme(request: HttpRequest) -> HttpResponse:
    """The switch in the header; scripts get an empty answer, a plain form its page again."""
    user = reader(request)
    change_preferences(user=user, by=user, changes={"theme": request.POST.get("theme", "")})
    return HttpResponse(status=204) if request.headers.get("X-Requested-With") else back(request)


@require_POST
@page
def change_password(request: HttpRequest) -> HttpResponse:
    user = reader(request)
    form = PasswordChangeForm(user, request.POST)
    if user.is_demo:
        form.add_error(None, "The password of a demo account is public and cannot be changed.")
    try:
        right = password_again(user=user, password=request.POST.get("old_password", "").replace("\0", ""))
    except SignInRefused as error:
        form.add_error("old_password", str(error))
        return _render(request, form, {})
    if not (form.is_valid() and right):
        return _render(request, form, {})
    update_session_auth_hash(
        request, set_password(user=user, by=user, password=form.cleaned_data["new_password1"])
    )
    messages.success(request, "Your password was changed. Other browsers are signed out.")
    return redirect("settings")


def _render(request: HttpRequest, form: PasswordChangeForm, problems: dict[str, str]) -> HttpResponse:
    user = reader(request)
    zones = sorted(zone for zone in zoneinfo.available_timezones() if zone.startswith(COMMON_AREAS))
    return render(
        request,
        "accounts/settings.html",
        {
            "themes": Theme.choices,
            "zones": ["UTC", *zones],
            "projects": submit_projects(user).order_by("name"),
            "password_form": form,
            "secrets": of_owner(user).defer("sealed"),
            "may_manage_secrets": True,
            "problems": problems,
            "time_zone": request.POST.get("time_zone", user.time_zone) if problems else user.time_zone,
            "theme": request.POST.get("theme", "") if problems else user.theme,
            "default_project": request.POST.get("default_project", "")
            if problems
            else str(user.default_project_id or ""),
        },
        status=422 if problems or form.errors else 200,
    )
