"""A person's uploaded folders: listed with the jobs that name them, and deleted."""

from __future__ import annotations

from typing import Any, Final
from uuid import UUID

from django.conf import settings
from django.contrib import messages
from django.db.models import Count, Sum
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_POST, require_safe

from accounts.models import User
from accounts.web.pages import page, reader
from scheduler.models import FolderUpload, FolderUploadState, Job
from scheduler.services.uploads import verbs

#: The newest that the page lists, and that the submit form offers.
MOST_LISTED: Final = verbs.MOST_UPLOADS
MOST_OFFERED: Final = 50


@require_safe
@page
def index(request: HttpRequest) -> HttpResponse:
    user = reader(request)
    rows = list(verbs.uploads_of(user)[:MOST_LISTED])
    counts = dict(
        Job.objects.filter(upload__in=[row.pk for row in rows])
        .order_by()
        .values_list("upload")
        .annotate(count=Count("number"))
    )
    there = verbs.uploads_of(user).filter(state__in=verbs.THERE)
    context = {
        "uploads": [(row, counts.get(row.pk, 0), row.state in verbs.THERE) for row in rows],
        "held": there.aggregate(size=Sum("size_bytes"))["size"] or 0,
        **limits(),
    }
    return render(request, "scheduler/uploads.html", context)


@require_POST
@page
def delete(request: HttpRequest, upload: UUID) -> HttpResponse:
    user = reader(request)
    row = verbs.upload_of(str(upload), by=user)
    verbs.delete(row=row, by=user)
    messages.success(request, f"Upload {row.name} was deleted.")
    return redirect("uploads")


def limits() -> dict[str, Any]:
    """What is said before somebody sends a folder."""
    return {
        "most_upload_mib": settings.MUSTER_UPLOAD_MIB,
        "most_upload_files": settings.MUSTER_UPLOAD_FILES,
        "most_uploads_mib": settings.MUSTER_UPLOADS_PERSON_MIB,
        "keep_uploads_days": settings.MUSTER_KEEP_UPLOADS_DAYS,
        "takes_uploads": bool(settings.MUSTER_STORAGE),
    }


def offered(user: User, chosen: str) -> dict[str, Any]:
    """For the submit form: the uploads that a job may begin with, and the limits of a new one."""
    ready = list(verbs.uploads_of(user).filter(state=FolderUploadState.READY)[:MOST_OFFERED])
    return {
        "uploads": ready,
        "upload_unknown": bool(chosen) and chosen not in {str(one.pk) for one in ready},
        **limits(),
    }


def upload_of_job(job: Job) -> FolderUpload | None:
    """What the job began with, for its page: the row stays when the bytes have gone."""
    return FolderUpload.objects.filter(pk=job.upload).first() if job.upload is not None else None


def left_out(job: Job, user: User) -> str:
    """Why a copy of the job cannot begin with its upload; "" where it can, and where the job has none."""
    if job.upload is None:
        return ""
    if job.user_id != user.pk:
        return f"The folder of this job belongs to {job.user.username} and is not copied."
    row = FolderUpload.objects.filter(pk=job.upload).first()
    if row is None or row.state != FolderUploadState.READY:
        return "The folder of this job was removed and is not copied."
    return ""
