"""The elements of a job that runs several of an array: written with it, what became of each, one cancelled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from django.db import transaction
from django.utils import timezone

from accounts import permissions
from accounts.models import User
from accounts.services import audit
from infra.errors import Conflict, NotFound
from scheduler import outbox
from scheduler.core.lifecycle import PENDING, ElementState
from scheduler.models import ElementEnd, Job, JobElements, JobEvent
from scheduler.services.submission.job_spec import JobSpec
from scheduler.state.db.sql import int_array, run

_INSERT: Final = """
INSERT INTO scheduler_jobelements (job_id, indices, limit_seconds)
SELECT job, indices::int[], limit_seconds
FROM unnest(%s::bigint[], %s::text[], %s::int[]) AS e(job, indices, limit_seconds)
"""


def write_elements(specs: Sequence[JobSpec], jobs: Sequence[Job]) -> None:
    """Note the elements of these jobs, which are those of the requests in their order."""
    if not any(spec.elements_per_job for spec in specs):
        return
    lists = [
        (int_array(indices) if spec.elements_per_job else "", spec.element_limit_seconds)
        for spec in specs
        for indices in spec.indices_of_jobs
    ]
    rows = [(job.number, *one) for job, one in zip(jobs, lists, strict=True) if one[0]]
    run(_INSERT, [list(column) for column in zip(*rows, strict=True)])


@dataclass(frozen=True, slots=True)
class Element:
    """One element; `end` is None while it has not ended, and for good where its job was stopped before."""

    index: int
    end: ElementEnd | None


def elements_of(job: Job) -> list[Element]:
    """The elements of a job by rising index; none for a job that runs one command once."""
    listed = JobElements.objects.filter(job=job).first()
    ends = {end.index: end for end in ElementEnd.objects.filter(job=job)} if listed is not None else {}
    return [Element(index, ends.get(index)) for index in listed.indices] if listed is not None else []


@transaction.atomic
def cancel_element(*, job: Job, index: int, by: User, reason: str = "") -> ElementEnd:
    """Have one element of a pending job not run; doing it twice changes nothing.

    Raises NotFound where the job has no such element, and Conflict where it has ended or its job runs: which element
    runs at this moment is known on the node alone.
    """
    permissions.require(by, "cancel", job)
    # The planner and the node that starts it lock the job too: it cannot start meanwhile.
    state = Job.objects.select_for_update(of=("self",)).values_list("state", flat=True).get(pk=job.pk)
    listed = JobElements.objects.filter(job=job).first()
    if listed is None or index not in listed.indices:
        raise NotFound(message=f"Job {job.said_number} has no element {index}.")
    end = ElementEnd.objects.filter(job=job, index=index).first()
    if end is not None and end.state == ElementState.CANCELLED:
        return end
    if end is not None:
        raise Conflict(
            message=f"Element {index} of job {job.said_number} has {end.state} already.",
            way_out="There is nothing to cancel.",
        )
    if state not in PENDING:
        raise Conflict(
            message=f"Job {job.said_number} is {state}, so its elements cannot be cancelled one by one.",
            way_out="Cancel the job, or wait until it has ended.",
        )
    now = timezone.now()
    because = f"element {index} cancelled by {by.username}" + (f": {reason}" if reason else "")
    end = ElementEnd.objects.create(
        job=job, index=index, state=ElementState.CANCELLED, ended_at=now, end_text=because[:300]
    )
    JobEvent.objects.create(
        job=job, at=now, kind="element.cancelled", because=because[:300], actor=by, details={"index": index}
    )
    audit.record(
        by=by, action="element.cancel", thing=job, after={"index": index}, reason=reason, project=job.project
    )
    outbox.announce(outbox.job_topic(job.number))
    return end
