"""Removes the results of a job before their time, because somebody says so."""

from __future__ import annotations

from django.db import transaction
from django.utils import timezone

from accounts import permissions
from accounts.models import User
from accounts.services import audit
from scheduler import outbox
from scheduler.models import Job, KeptResult, LeaveReason


@transaction.atomic
def remove_results(*, job: Job, by: User, reason: str = "") -> int:
    """Let all kept results of a job go; answers how many folders. Their nodes remove them within minutes.

    A second time changes nothing. Raises NotFound and NotAllowed.
    """
    permissions.require(by, "remove_results", job)
    now = timezone.now()
    kept = list(
        KeptResult.objects.select_for_update(of=("self",))
        .select_related("node")
        .filter(job=job, left_at=None)
        .exclude(leaves_because=LeaveReason.ASKED)
    )
    if not kept:
        return 0
    KeptResult.objects.filter(pk__in=[one.pk for one in kept]).update(
        leaves_at=now, leaves_because=LeaveReason.ASKED
    )
    outbox.announce(outbox.job_topic(job.number))
    audit.record(
        by=by, action="job.remove_results", thing=job, project=job.project, reason=reason,
        before={
            "folders": len(kept),
            "bytes": sum(one.size_bytes for one in kept),
            "nodes": sorted({one.node.name for one in kept}),
        },
    )  # fmt: skip
    return len(kept)
