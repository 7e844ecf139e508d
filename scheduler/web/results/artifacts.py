"""The files of a job that are stored beyond its node: shown on its page, downloaded, removed."""

from __future__ import annotations

from typing import Any, Final

from django.conf import settings
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from accounts import permissions
from accounts.models import User
from accounts.web.pages import page, reader
from infra.plain_text import reason_of
from scheduler.models import Job
from scheduler.selectors import job_by_ref
from scheduler.services.artifacts.reading import (
    artifact_of,
    artifacts_of,
    download_artifact,
    download_artifacts,
)
from scheduler.services.artifacts.removal import remove_artifacts
from scheduler.web.results.working_folder import wanted_kind

#: Files on the page; the list goes on in the API.
MOST_SHOWN: Final = 200


def artifacts_shown(job: Job, user: User) -> dict[str, Any]:
    """What the tab shows of artefacts; nothing of a job that asks for none."""
    if not job.artifacts or not permissions.may(user, "read_results", job):
        return {}
    found = artifacts_of(job, by=user, most=MOST_SHOWN)
    return {
        "artifacts": found,
        "artifact_days": settings.MUSTER_KEEP_ARTIFACTS_DAYS,
        "may_remove_artifacts": bool(found.files) and permissions.may(user, "remove_results", job),
    }


@require_safe
@page
def file(request: HttpRequest, number: int) -> HttpResponseBase:
    """One file."""
    user = reader(request)
    wanted = request.GET.get("id", "")
    found = int(wanted) if wanted.isascii() and wanted.isdecimal() and len(wanted) < 19 else 0
    return download_artifact(request, artifact_of(job_by_ref(user, number), found, by=user))


@require_safe
@page
def archive(request: HttpRequest, number: int) -> HttpResponseBase:
    """All of them."""
    user = reader(request)
    return download_artifacts(job_by_ref(user, number), by=user, kind=wanted_kind(request))


@require_POST
@page
def remove(request: HttpRequest, number: int) -> HttpResponse:
    """Remove all artefacts of the job."""
    user = reader(request)
    reason = reason_of(request.POST.get("reason", ""), most=200)
    job = job_by_ref(user, number)
    removed = remove_artifacts(job=job, by=user, reason=reason)
    said = (
        f"The artefacts of job {job.said_number} are removed." if removed else "Nothing was left to remove."
    )
    messages.success(request, said)
    return redirect(f"{reverse('job', args=[number])}?tab=results")
