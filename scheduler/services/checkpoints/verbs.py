"""What people do with checkpoints: list them, take one now, and read a manifest."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Final

from django.db import transaction
from django.db.models import Q
from django.http.response import HttpResponseBase
from django.utils import timezone

from accounts import permissions
from accounts.models import User
from accounts.services import audit
from infra.downloads import archive_download
from infra.errors import Conflict, NotFound
from scheduler import outbox
from scheduler.agent.protocol import Manifest
from scheduler.core.lifecycle import JobState, TaskState
from scheduler.models import Checkpoint, CheckpointState, Job, Task
from scheduler.services.checkpoints.stored_bytes import content_of, piece, stored_manifest
from scheduler.state.lifecycle.transitions import record_event

#: The checkpoints of a job that are listed, the newest.
MOST_LISTED: Final = 200
#: Requests without a checkpoint that are looked at for what became of them.
MOST_MISSED: Final = 20
#: A request that its node has not answered to after so long is lost: the next one is a new one.
_UNHEARD_SECONDS: Final = 60.0
_RUNS: Final = frozenset({JobState.RUNNING, JobState.CHECKPOINTING})


def checkpoints_of(job: Job, *, by: User) -> list[Checkpoint]:
    """The newest checkpoints of a job, also those that have gone; raises NotFound and NotAllowed."""
    permissions.require(by, "read_results", job)
    return list(Checkpoint.objects.filter(job=job).select_related("node", "removed_by")[:MOST_LISTED])


def checkpoint_of(job: Job, ref: str, *, by: User) -> Checkpoint:
    """One of them, by its id; raises NotFound and NotAllowed."""
    permissions.require(by, "read_results", job)
    try:
        found = Checkpoint.objects.filter(job=job, pk=uuid.UUID(ref)).first()
    except ValueError:
        found = None
    if found is None:
        raise NotFound(
            message=f"Job {job.said_number} has no checkpoint {ref}.",
            way_out="List the checkpoints of the job.",
        )
    return found


def missed(job: Job) -> list[str]:
    """What became of the last requests for a checkpoint that had none, each answer once, newest first."""
    events = job.events.filter(kind="job.checkpoint_missed").order_by("-id")
    return list(dict.fromkeys(events.values_list("because", flat=True)[:MOST_MISSED]))


def manifest_of(job: Job, ref: str, *, by: User) -> Manifest:
    """The manifest of a checkpoint that is stored; raises NotFound, NotAllowed, Conflict, StorageError."""
    row = checkpoint_of(job, ref, by=by)
    if row.state != CheckpointState.COMPLETE:
        raise Conflict(
            message=f"Checkpoint {row.name} is {row.state}; only a complete one has a manifest.",
            way_out="Choose one that is complete.",
        )
    return stored_manifest(row)


def download_checkpoint(job: Job, ref: str, *, by: User, kind: str) -> HttpResponseBase:
    """All bytes of a checkpoint as one `tar` or `zip` file, for those who see the inside of the job.

    Raises NotFound, NotAllowed, Conflict for one that is not stored or damaged, StorageError.
    """
    permissions.require(by, "see_inside", job)
    manifest = manifest_of(job, ref, by=by)
    row = checkpoint_of(job, ref, by=by)
    if row.size_bytes:
        piece(row, 0)  # what cannot be read is said before the answer begins
    name = f"job-{job.number}-attempt-{row.epoch}-rank-{row.rank}-checkpoint"
    return archive_download(content_of(row, manifest), kind=kind, name=name)


@transaction.atomic
def ask_checkpoint(*, job: Job, by: User, reason: str = "") -> Job:
    """Ask a running job for a checkpoint now; while it is being asked, a second time changes nothing.

    Raises NotAllowed, and Conflict for a job that makes none or does not run.
    """
    permissions.require(by, "edit", job)
    row = Job.objects.select_for_update(of=("self",), no_key=True).get(pk=job.pk)
    require_checkpoints(row)
    if row.state not in _RUNS:
        raise Conflict(
            message=f"Job {row.said_number} is {row.public_state} and cannot be asked for a checkpoint.",
            way_out="Only a running job can be asked.",
        )
    why = f": {reason}" if reason else ""
    if not ask_tasks(row, because=f"checkpoint requested by {by.username}{why}", by=by):
        return row
    audit.record(by=by, action="job.ask_checkpoint", thing=row, reason=reason, project=row.project)
    return row


def ask_tasks(job: Job, *, because: str, by: User | None) -> bool:
    """Ask the tasks of a locked, running job for a checkpoint; False where they are being asked already."""
    if job.state == JobState.CHECKPOINTING:
        return False
    tasks = Task.objects.filter(attempt__job=job, attempt__is_live=True, state=TaskState.RUNNING)
    nodes, now = set(tasks.values_list("node_id", flat=True)), timezone.now()
    unheard = Q(checkpoint_asked_at=None) | Q(
        checkpoint_asked_at__lt=now - timedelta(seconds=_UNHEARD_SECONDS)
    )
    if not tasks.filter(unheard).update(checkpoint_asked_at=now):
        return False
    record_event(job, "job.checkpoint_asked", because=because, by=by)
    outbox.announce(*map(outbox.node_topic, nodes))
    return True


def require_checkpoints(job: Job) -> None:
    """Raise Conflict for a job that makes none."""
    if not job.checkpoint:
        raise Conflict(
            message=f"Job {job.said_number} makes no checkpoints.",
            code="no-checkpoints",
            way_out="Submit it with the field checkpoint.",
        )
