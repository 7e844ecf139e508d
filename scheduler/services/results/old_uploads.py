"""Uploads leave some days after a job last named them, and not before the results of that job do."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from django.conf import settings
from django.db import transaction
from django.db.models import Exists, OuterRef
from django.db.models.functions import Coalesce
from django.utils import timezone

from scheduler.models import FolderUpload, FolderUploadState, Job, JobRequest
from scheduler.services.results.kept import policy_of
from scheduler.services.uploads.removal import remove_leaving

#: An upload of which nothing has come for so long does not come any more.
FORSAKEN_HOURS: Final = 24
#: Rows that one run looks at.
_MOST: Final = 500


def tidy() -> int:
    """Let go what is forsaken and what has had its time; answers how many were removed, with their bytes."""
    now = timezone.now()
    FolderUpload.objects.filter(
        state=FolderUploadState.RECEIVING, seen_at__lt=now - timedelta(hours=FORSAKEN_HOURS)
    ).update(state=FolderUploadState.LEAVING, text="Its sender did not send all of it.")
    if days := settings.MUSTER_KEEP_UPLOADS_DAYS:
        since = now - timedelta(days=days)
        ready = FolderUpload.objects.filter(state=FolderUploadState.READY)
        old = ready.annotate(last=Coalesce("used_at", "ready_at")).filter(last__lt=since).order_by("last")
        for row in old[:_MOST]:
            _let_go(row, now=now, since=since)
    removed = remove_leaving()
    named = JobRequest.objects.filter(upload=OuterRef("pk"))
    FolderUpload.objects.filter(~Exists(named), state=FolderUploadState.REMOVED).delete()
    return removed


@transaction.atomic
def _let_go(row: FolderUpload, *, now: datetime, since: datetime) -> None:
    """Mark an old upload, unless a job needs it or keeps its results."""
    locked = (
        FolderUpload.objects.select_for_update(of=("self",))
        .filter(pk=row.pk, state=FolderUploadState.READY)
        .first()
    )
    if locked is None or (locked.used_at or locked.ready_at or now) >= since:
        return
    jobs = Job.objects.filter(upload=row.pk)
    if jobs.not_over().exists():
        return
    last = jobs.select_related("queue").order_by("-completed_at").first()
    if last is not None and last.completed_at is not None:
        days = policy_of(last.queue).days
        if not days or last.completed_at > now - timedelta(days=days):
            return
    text = (
        "Retention period over; all jobs that named the upload have ended."
        if last is not None
        else "Retention period over; no job named the upload."
    )
    FolderUpload.objects.filter(pk=row.pk).update(state=FolderUploadState.LEAVING, text=text)
