"""Which jobs that have ended may run again: where nothing would be lost, and a start could come of it."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final
from uuid import UUID

from accounts import permissions
from infra.errors import Conflict
from quotas.core.limits import PENDING_JOBS
from scheduler.core.lifecycle import HOW_ENDED, DeadlineAction, JobState, RestartPolicy
from scheduler.models import ArtifactUpload, FolderUpload, FolderUploadState, Job, JobElements, KeptResult
from scheduler.models.results.artifact import UploadState
from scheduler.services.jobs.write_jobs import require_room
from scheduler.services.submission.submitter import catalogue_of_change
from scheduler.state.lifecycle.dependencies import conditions_of

#: The columns of a job that has not ended; its attempts and events say what was.
BEFORE_ITS_END: Final[dict[str, Any]] = {
    "completed_at": None, "scheduled_at": None, "started_at": None, "exit_code": None, "exit_signal": None,
    "end_text": "", "failure_class": "",
}  # fmt: skip


def refuse_to_requeue(job: Job, *, at: datetime) -> None:
    """Raise Conflict where this job, which has ended, cannot run again under its number, or would lose results."""
    if job.restart_policy == RestartPolicy.NEVER and job.epoch:
        raise runs_at_most_once(job, way_out="Submit the job again if repeating its work is harmless.")
    for refused, why, way_out in (
        _could_not_start(job, at),
        _would_lose(job),
    ):
        if refused:
            raise Conflict(
                message=f"Job {job.said_number} {HOW_ENDED[job.state]}, and {why}.", way_out=way_out
            )
    bounds = catalogue_of_change(job.user, owner=job.user).bounds(job.project)
    waits_on = [b for b in bounds if b.resource == PENDING_JOBS and b.job_type in ("", job.job_type)]
    require_room(job.queue, waits_on=waits_on)


def runs_at_most_once(job: Job, *, way_out: str) -> Conflict:
    """The refusal of a job that may have begun and whose work is not to be repeated."""
    return Conflict(
        message=f"Job {job.said_number} runs at most once (restart_policy never) and may have begun.",
        way_out=way_out,
    )


_AGAIN: Final = "Submit the job again: GET the job, and POST its request fields."


def _could_not_start(job: Job, at: datetime) -> tuple[bool, str, str]:
    if not permissions.may(job.user, "submit", job.project):
        return True, f"{job.user.username} can no longer submit jobs to project {job.project.slug}", _AGAIN
    if job.deadline_action == DeadlineAction.END and job.deadline_at is not None and job.deadline_at <= at:
        return True, "its deadline, at which it is ended, has passed", _AGAIN
    if JobElements.objects.filter(job=job.pk).exists():
        return True, "runs several elements of its array, each of which has its own end", _AGAIN
    if job.upload is not None and not _has_upload(job.upload):
        return (
            True,
            "the uploaded folder that it begins with was removed",
            "Upload it, and submit the job again.",
        )
    if any(condition.never for condition in conditions_of(job)):
        return (
            True,
            "a job that it waits for ended with the wrong result",
            _AGAIN,
        )
    return False, "", ""


def _has_upload(upload: UUID) -> bool:
    """Whether the bytes of an uploaded folder are there; they stay so until this transaction ends."""
    row = FolderUpload.objects.select_for_update().filter(pk=upload).first()
    return row is not None and row.state == FolderUploadState.READY


def _would_lose(job: Job) -> tuple[bool, str, str]:
    if ArtifactUpload.objects.filter(job=job, state=UploadState.WAITING).exists():
        return (
            True,
            "its artefacts are being stored",
            "Try again when the page of the job shows the artefacts.",
        )
    if job.state != JobState.COMPLETED:
        return False, "", ""  # the next attempt goes on in its folder, as after a failed attempt
    if KeptResult.objects.filter(job=job, left_at=None).exists():
        why = "the next attempt would go on in its working folder, over its results"
        return True, why, "Fetch the results and remove them, then requeue the job; or submit the job again."
    if (job.output_path or job.error_path) and job.open_mode != "append":
        why = "the next attempt would empty its output file"
        return True, why, "Submit the job again with another file, or with open_mode append."
    return False, "", ""
