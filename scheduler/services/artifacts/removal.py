"""Removes artefacts: those that have had their time, those that somebody removes, and objects that no row names."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Final

import structlog
from django.conf import settings
from django.db import transaction
from django.utils import timezone

from accounts import permissions
from accounts.models import User
from accounts.services import audit
from infra.storage import Storage, StorageError, configured_storage
from scheduler import outbox
from scheduler.models import Artifact, Job

log = structlog.get_logger(__name__)

#: Objects that one call removes; the next one goes on.
BATCH: Final = 200
#: Keys that are compared with the rows at a time.
PAGE: Final = 1000


@transaction.atomic
def remove_artifacts(*, job: Job, by: User, reason: str = "") -> int:
    """Let all artefacts of a job go; answers how many. They are gone at once, and their bytes within minutes.

    A second time changes nothing. Raises NotFound and NotAllowed.
    """
    permissions.require(by, "remove_results", job)
    now = timezone.now()
    here = Artifact.objects.present(now).filter(job=job)
    found = list(here.select_for_update(of=("self",)).values_list("pk", "size_bytes"))
    if not found:
        return 0
    Artifact.objects.filter(pk__in=[key for key, _ in found]).update(leaves_at=now)
    outbox.announce(outbox.job_topic(job.number))
    audit.record(
        by=by, action="job.remove_artifacts", thing=job, project=job.project, reason=reason,
        before={"files": len(found), "bytes": sum(size for _, size in found)},
    )  # fmt: skip
    return len(found)


def remove_due() -> int:
    """Remove the objects of artefacts whose time is over, then their rows; answers how many."""
    due = list(Artifact.objects.filter(leaves_at__lte=timezone.now()).order_by("leaves_at")[:BATCH])
    if not due or not settings.MUSTER_STORAGE:
        return 0
    gone: list[Artifact] = []
    try:
        storage = configured_storage()
        for artifact in due:
            storage.delete(artifact.key)
            gone.append(artifact)
    except StorageError as error:
        log.warning("artifacts_not_removed", left=len(due) - len(gone), error=str(error))
    Artifact.objects.filter(pk__in=[one.pk for one in gone]).delete()
    outbox.announce_many({outbox.job_topic(one.job_id) for one in gone})
    return len(gone)


def sweep() -> int:
    """Remove objects below `artifacts/` that no row names, of jobs that were deleted; answers how many."""
    if not settings.MUSTER_STORAGE:
        return 0
    try:
        storage = configured_storage()
        return _sweep(storage, (key for key, _ in storage.list("artifacts/")))
    except StorageError as error:
        log.warning("storage_not_swept", error=str(error))
        return 0


def _sweep(storage: Storage, keys: Iterable[str]) -> int:
    removed = 0
    keys = iter(keys)
    while page := list(islice(keys, PAGE)):
        known = set(Artifact.objects.filter(key__in=page).values_list("key", flat=True))
        for key in page:
            if key not in known:
                storage.delete(key)
                removed += 1
    return removed
