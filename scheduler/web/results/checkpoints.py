"""The checkpoints of a job on its page: which there are, take one now, remove one, download a manifest."""

from __future__ import annotations

import json
from typing import Any, Final
from uuid import UUID

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
from scheduler.core.lifecycle import JobState
from scheduler.models import CheckpointState, Job
from scheduler.models.results.checkpoint_policy import policy_of
from scheduler.selectors import job_by_ref
from scheduler.services.checkpoints.removal import remove_checkpoint
from scheduler.services.checkpoints.verbs import (
    ask_checkpoint,
    checkpoint_of,
    checkpoints_of,
    download_checkpoint,
    manifest_of,
    missed,
)
from scheduler.web.results.working_folder import wanted_kind

_GONE: Final = (CheckpointState.LEAVING, CheckpointState.REMOVED)


def checkpoints_shown(job: Job, user: User) -> dict[str, Any]:
    """What the tab of results shows of a job's checkpoints; nothing for a job that makes none."""
    if not job.checkpoint or not permissions.may(user, "read_results", job):
        return {}
    rows = checkpoints_of(job, by=user)
    return {
        "checkpoint_policy": policy_of(job.checkpoint),
        "checkpoints": [row for row in rows if row.state not in _GONE],
        "checkpoints_gone": [row for row in rows if row.state in _GONE],
        "checkpoint_missed": [] if rows else missed(job),
        "may_ask_checkpoint": job.state == JobState.RUNNING and permissions.may(user, "edit", job),
        "may_fetch_checkpoints": permissions.may(user, "see_inside", job),
        "may_remove_checkpoints": permissions.may(user, "remove_results", job),
    }


def _back(number: int) -> HttpResponse:
    return redirect(f"{reverse('job', args=[number])}?tab=results")


@require_POST
@page
def take(request: HttpRequest, number: int) -> HttpResponse:
    """Ask for one now."""
    user = reader(request)
    reason = reason_of(request.POST.get("reason", ""), most=200)
    job = job_by_ref(user, number)
    ask_checkpoint(job=job, by=user, reason=reason)
    messages.success(
        request, f"A checkpoint of job {job.said_number} was requested; it is listed once written."
    )
    return _back(number)


@require_POST
@page
def remove(request: HttpRequest, number: int, checkpoint: UUID) -> HttpResponse:
    """Remove one."""
    user = reader(request)
    job = job_by_ref(user, number)
    row = checkpoint_of(job, str(checkpoint), by=user)
    remove_checkpoint(
        job=job, checkpoint=row, by=user, reason=reason_of(request.POST.get("reason", ""), most=200)
    )
    messages.success(request, f"Checkpoint {row.name} of job {job.said_number} is removed.")
    return _back(number)


@require_safe
@page
def archive(request: HttpRequest, number: int, checkpoint: UUID) -> HttpResponseBase:
    """All bytes of one."""
    user = reader(request)
    job = job_by_ref(user, number)
    return download_checkpoint(job, str(checkpoint), by=user, kind=wanted_kind(request))


@require_safe
@page
def manifest(request: HttpRequest, number: int, checkpoint: UUID) -> HttpResponse:
    """Its files with sizes and checksums."""
    user = reader(request)
    found = manifest_of(job_by_ref(user, number), str(checkpoint), by=user)
    answer = HttpResponse(json.dumps(found, indent=1), content_type="application/json")
    answer["Content-Disposition"] = f'attachment; filename="manifest-{number}-{str(checkpoint)[:8]}.json"'
    answer["X-Content-Type-Options"] = "nosniff"
    return answer
