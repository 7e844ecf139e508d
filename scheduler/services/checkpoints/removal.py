"""Checkpoints leave: newer ones take their place, the policy of results ends them, or somebody removes them."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

import structlog
from django.conf import settings
from django.db import transaction
from django.utils import timezone

from accounts import permissions
from accounts.models import User
from accounts.services import audit
from infra.errors import Conflict
from infra.storage import NotConfigured, StorageError
from scheduler.core.lifecycle import TERMINAL
from scheduler.models import Checkpoint, CheckpointState, Job
from scheduler.services.checkpoints.stored_bytes import remove_bytes
from scheduler.services.results.kept import policy_of
from scheduler.state.lifecycle.transitions import record_event

log = structlog.get_logger(__name__)

#: A checkpoint that was announced, and of which nothing has come for so long, does not come any more.
FORSAKEN_HOURS: Final = 24
#: Rows that one run looks at of each kind.
_MOST: Final = 500


@transaction.atomic
def remove_checkpoint(*, job: Job, checkpoint: Checkpoint, by: User, reason: str = "") -> None:
    """Remove a checkpoint for good; a second time changes nothing. Raises NotAllowed, Conflict."""
    permissions.require(by, "remove_results", job)
    row = Checkpoint.objects.select_for_update(of=("self",)).get(pk=checkpoint.pk, job=job)
    if row.state in (CheckpointState.LEAVING, CheckpointState.REMOVED, CheckpointState.FAILED):
        return
    if row.state == CheckpointState.STORING:
        raise Conflict(
            message=f"Checkpoint {row.name} is still on its way to the storage.",
            way_out="Remove it once it is complete.",
        )
    Checkpoint.objects.filter(pk=row.pk).update(
        state=CheckpointState.LEAVING, removed_by=by, text=f"Removed by {by.username}."
    )
    record_event(
        job, "job.checkpoint_removed", because=f"checkpoint {row.name} is removed by {by.username}", by=by
    )
    audit.record(
        by=by, action="job.remove_checkpoint", thing=job, project=job.project, reason=reason,
        before={"checkpoint": str(row.pk), "name": row.name, "bytes": row.size_bytes},
    )  # fmt: skip
    transaction.on_commit(lambda: remove_leaving(job=job.number))


def remove_leaving(*, job: int | None = None) -> int:
    """Remove the bytes of checkpoints that are to leave, of one job or of all; answers how many.

    Where the storage does not answer, they stay for the next time.
    """
    rows = Checkpoint.objects.filter(state=CheckpointState.LEAVING).order_by("taken_at")
    if job is not None:
        rows = rows.filter(job_id=job)
    removed = 0
    for row in rows[:_MOST]:
        try:
            remove_bytes(row)
        except NotConfigured:
            pass  # the site has given its storage up
        except StorageError as error:
            log.warning("checkpoint_not_removed", checkpoint=str(row.pk), error=error.message)
            return removed
        left = CheckpointState.REMOVED if row.stored_at else CheckpointState.FAILED
        removed += Checkpoint.objects.filter(pk=row.pk, state=CheckpointState.LEAVING).update(state=left)
    return removed


def tidy() -> int:
    """What no message triggers: let go what is forsaken, and what jobs that have ended left; answers how many."""
    now = timezone.now()
    Checkpoint.objects.filter(
        state=CheckpointState.STORING, seen_at__lt=now - timedelta(hours=FORSAKEN_HOURS)
    ).update(state=CheckpointState.LEAVING, text="The node did not send the whole checkpoint.")
    _let_go_of_ended_jobs(now)
    return remove_leaving()


def _let_go_of_ended_jobs(now: datetime) -> None:
    """Checkpoints stay after the end of their job for as long as its results do."""
    ended = (
        Job.objects.select_related("queue")
        .filter(state__in=TERMINAL, checkpoints__state=CheckpointState.COMPLETE)
        .order_by("completed_at")
        .distinct()
    )
    for job in ended[:_MOST]:
        days = [days for days in (policy_of(job.queue).days, settings.MUSTER_KEEP_JOBS_DAYS) if days]
        if days and job.completed_at and job.completed_at < now - timedelta(days=min(days)):
            Checkpoint.objects.filter(job=job, state=CheckpointState.COMPLETE).update(
                state=CheckpointState.LEAVING, text="The job ended, and the retention period is over."
            )
