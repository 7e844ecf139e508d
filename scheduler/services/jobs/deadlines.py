"""Ends jobs whose wait limit or deadline asks for it, notes missed deadlines, and relaxes constraints that are due."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from django.db import transaction
from django.db.models import F

from infra.times_in_text import written
from scheduler import outbox
from scheduler.core.lifecycle import (
    ACTIVE,
    INTERRUPTED,
    PENDING,
    AttemptState,
    DeadlineAction,
    FailureClass,
    JobState,
    StopReason,
)
from scheduler.deadlines import check_after, latest_start, outlook, relaxations, wait_ends
from scheduler.models import Job
from scheduler.state.lifecycle.dependencies import resolve_dependants
from scheduler.state.lifecycle.transitions import announce_job, move_job, record_event
from scheduler.state.lifecycle.verdicts import duration

#: Jobs of one transaction; the next run goes on.
BATCH: Final = 500
#: A job that is ending already is looked at again after this time.
AGAIN: Final = timedelta(seconds=5)
MISSED_EVENT: Final = "job.deadline_missed"
RELAXED_EVENT: Final = "job.relaxed"


@transaction.atomic
def check_limits(*, at: datetime) -> int:
    """Look at the jobs whose `check_at` has come; answers how many. Jobs that others are changing are left out."""
    due = Job.objects.filter(check_at__lte=at).order_by("check_at").select_related("queue")
    failed: list[Job] = []
    count = 0
    for job in due.select_for_update(of=("self",), no_key=True, skip_locked=True)[:BATCH]:
        count += 1
        if why := _why_removed(job, at):
            _remove(job, why, at)
            failed.append(job)
        else:
            _note_missed(job, at)
            _relax(job, at)
        again = _stop_at_deadline(job, at)
        Job.objects.filter(pk=job.pk).update(
            check_at=None if job.is_terminal else again or check_after(job, at)
        )
    if failed:
        for cluster_id in sorted(resolve_dependants(failed, at=at)):
            outbox.wake_planner(cluster_id, trigger="dependency")
    return count


def _note_missed(job: Job, at: datetime) -> None:
    """The event of a deadline that has passed, once: the first look after the deadline is the one due at it."""
    if (
        job.deadline_at is None
        or at < job.deadline_at
        or job.check_at is None
        or job.check_at > job.deadline_at
    ):
        return
    if job.deadline_action == DeadlineAction.END:
        return  # it is stopped, which has an event of its own
    found = outlook(job, at)
    if found is not None and found.seconds >= 0 and job.state != JobState.CANCELLED:
        text = found.text if job.is_terminal else f"Missed its deadline, {written(job.deadline_at)}."
        record_event(
            job, MISSED_EVENT, because=text, at=at,
            details={"deadline": job.deadline_at.isoformat(), "late_seconds": found.seconds},
        )  # fmt: skip


def _relax(job: Job, at: datetime) -> None:
    """Relax the constraints of a waiting job whose time has come, with one event; the next cycle plans without them."""
    if not job.relax or job.state not in PENDING:
        return
    counts = any("after_failures" in one for one in job.relax)
    failures = (
        job.attempts.filter(state__in=[AttemptState.FAILED, AttemptState.LOST]).count() if counts else 0
    )
    due = [
        one
        for one in relaxations(job)
        if not one.relaxed
        and ((one.at is not None and at >= one.at) or (one.after_failures or failures + 1) <= failures)
    ]
    if not due:
        return
    job.relaxed = [*(job.relaxed or ()), *(one.constraint.value for one in due)]
    Job.objects.filter(pk=job.pk).update(relaxed=job.relaxed, generation=F("generation") + 1)
    texts = [replace(one, relaxed=True).text for one in due]
    record_event(
        job, RELAXED_EVENT, because=" ".join(texts)[:300], at=at,
        details={"relaxed": [one.constraint.value for one in due], "failures": failures},
    )  # fmt: skip
    announce_job(job)
    outbox.wake_planner(job.queue.cluster_id, trigger="change")


def _why_removed(job: Job, at: datetime) -> str:
    """Why a job that does not run is removed now; "" where it is not."""
    if job.state not in PENDING | INTERRUPTED:
        return ""
    ends = wait_ends(job)
    if ends is not None and at >= ends:
        limit = duration(job.wait_limit_seconds)
        return f"Did not start within its wait limit of {limit}. The last reason: {job.reason_text or 'none'}"
    last = latest_start(job)
    if last is not None and at >= last:
        assert job.deadline_at is not None
        deadline = written(job.deadline_at)
        if job.time_limit_seconds:
            limit = duration(job.time_limit_seconds)
            return f"Removed: with its time limit of {limit} it can no longer end before its deadline, {deadline}."
        return f"Removed: its deadline, {deadline}, has passed."
    return ""


def _remove(job: Job, why: str, at: datetime) -> None:
    move_job(
        job, JobState.FAILED, because=why, at=at, end_text=why[:300],
        failure_class=FailureClass.TIME_LIMIT, assembly_until_at=None, assembly_node_ids=[],
    )  # fmt: skip


def _stop_at_deadline(job: Job, at: datetime) -> datetime | None:
    """Ask the processes of a job to end at its deadline, where it asked for that; answers when to look again."""
    if job.deadline_at is None or job.deadline_action != DeadlineAction.END or at < job.deadline_at:
        return None
    if job.state not in ACTIVE:
        return None
    live = job.attempts.live()
    if live.filter(stop_asked_at__isnull=True).update(stop_reason=StopReason.DEADLINE, stop_asked_at=at):
        record_event(
            job, "job.deadline_stop", because=f"its deadline has passed: {written(job.deadline_at)}", at=at
        )
        nodes = {
            node for attempt in live for node in attempt.allocations.held().values_list("node_id", flat=True)
        }
        outbox.announce(*(outbox.node_topic(node) for node in nodes), outbox.CLUSTER_TOPIC)
    return at + AGAIN
