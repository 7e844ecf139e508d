"""The verbs of submitted jobs: cancel, hold, release, requeue."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, Final, Protocol

from django.db import transaction
from django.utils import timezone

from accounts import permissions
from accounts.models import ProjectRole, User
from accounts.services import audit
from infra.errors import Conflict, NotAllowed
from scheduler import outbox
from scheduler.core.lifecycle import (
    ACTIVE,
    HOW_ENDED,
    INTERRUPTED,
    PENDING,
    JobState,
    RestartPolicy,
    StopReason,
    TaskState,
)
from scheduler.deadlines import check_after
from scheduler.models import Job, Task
from scheduler.services.jobs.requeue_ended import BEFORE_ITS_END, refuse_to_requeue, runs_at_most_once
from scheduler.services.jobs.write_jobs import held_reason
from scheduler.state.apply.suspension import stop_unsuspended
from scheduler.state.lifecycle.dependencies import (
    conditions_of,
    not_evaluated,
    resolve_dependants,
    wait_reason,
)
from scheduler.state.lifecycle.transitions import ImpossibleMove, StaleJob, move_job

#: Who holds a job, lowest first: each releases what the same or a lower one held, and a higher hold replaces a lower.
HOLDERS: Final = ("user", "lead", "admin")
#: How often a verb decides again when the job changed in between.
TRIES: Final = 5


# ---------------------------------------------------------------- cancel


def cancel_job(*, job: Job, by: User, reason: str = "") -> Job:
    """Cancel a job: a pending one ends at once, a running one is asked to stop.

    Doing it twice changes nothing. Raises Conflict for a job that has ended in another way.
    """
    permissions.require(by, "cancel", job)
    return _try_again(job, lambda: _cancel(job, by, reason), verb="cancelled")


def _cancel(job: Job, by: User, reason: str) -> None:
    if job.state in (JobState.CANCELLED, JobState.STOPPING):
        return
    if job.is_terminal:
        raise Conflict(
            message=f"Job {job.said_number} {HOW_ENDED[job.state]} already.",
            way_out="There is nothing to cancel.",
        )
    before, now = job.state, timezone.now()
    because = f"cancelled by {by.username}" + (f": {reason}" if reason else "")
    if job.state in ACTIVE:
        ask_to_end(job, JobState.STOPPING, StopReason.CANCELLED, by=by, because=because, now=now)
    else:
        move_job(job, JobState.CANCELLED, because=because, by=by, at=now, end_text=because[:300])
        for cluster_id in resolve_dependants([job], at=now):
            outbox.wake_planner(cluster_id, trigger="dependency")
    _audit_verb("job.cancel", job, by, before=before, reason=reason)


def ask_to_end(
    job: Job, to: JobState, why: StopReason, *, by: User | None, because: str, now: datetime
) -> None:
    """Ask the job's processes to end, with the grace that preemption gives; `to` is the state of the job."""
    # The job first: the transaction that moves it decides, and the attempt follows in it.
    move_job(job, to, because=because, by=by, at=now)
    attempt = job.attempts.live().first()
    if attempt is None:
        raise StaleJob(job.number)
    job.attempts.live().filter(stop_asked_at__isnull=True).update(stop_reason=why, stop_asked_at=now)
    nodes = attempt.allocations.held().values_list("node_id", flat=True)
    outbox.announce(*{outbox.node_topic(node_id) for node_id in nodes}, outbox.CLUSTER_TOPIC)


# ---------------------------------------------------------------- hold, release, requeue


def hold_job(*, job: Job, by: User, reason: str = "") -> Job:
    """Hold a pending job until it is released.

    The hold of a project's lead takes the place of the owner's, an operator's that of both; any other hold of a job
    that is held changes nothing.
    """
    permissions.require(by, "hold", job)
    return _try_again(job, lambda: _hold(job, by, reason), verb="held")


def _hold(job: Job, by: User, reason: str) -> None:
    held_by = "user" if by.pk == job.user_id else "admin" if by.is_operator else "lead"
    if job.state == JobState.HELD and HOLDERS.index(held_by) <= HOLDERS.index(job.held_by or "user"):
        return
    if job.state not in PENDING | INTERRUPTED or job.state == JobState.SUSPENDED:
        raise _no_longer_pending(job, "held")
    before, now = job.state, timezone.now()
    because = f"held by {by.username}" + (f": {reason}" if reason else "")
    move_job(
        job, JobState.HELD, because=because, by=by, at=now,
        held_by=held_by, eligible_at=None, **held_reason(by, now, admin=held_by != "user", reason=reason),
    )  # fmt: skip
    _audit_verb("job.hold", job, by, before=before, reason=reason)


def release_job(*, job: Job, by: User, reason: str = "") -> Job:
    """Let a held job be considered again; one that waits for other jobs goes on waiting for them.

    What an operator held, only an operator releases; what a lead of the project held, a lead or an operator.
    """
    permissions.require(by, "release", job)
    return _try_again(job, lambda: _release(job, by, reason), verb="released")


def _release(job: Job, by: User, reason: str) -> None:
    if job.state != JobState.HELD:
        raise Conflict(
            message=f"Job {job.said_number} is {job.public_state} and not held.",
            way_out="Only a held job can be released.",
        )
    role = permissions.roles_of(by, project_ids=[job.project_id]).get(job.project_id)
    if not may_release(job, by, role):
        who = "an operator" if job.held_by == "admin" else "a lead of its project"
        raise NotAllowed(
            message=f"Job {job.said_number} was held by {who}.",
            way_out=f"Ask {who} to release it.",
            refused=("release", job),
        )
    because = f"released by {by.username}" + (f": {reason}" if reason else "")
    if queue_again(job, because=because, by=by, at=timezone.now()):
        outbox.wake_planner(job.queue.cluster_id, trigger="release")
    _audit_verb("job.release", job, by, before=JobState.HELD, reason=reason)


def queue_again(job: Job, *, because: str, by: User, at: datetime, **changes: Any) -> bool:
    """Move a job that is held or over to where it belongs; answers whether the planner may start it now.

    A job that waits for others goes on waiting for them. `changes` are further columns.
    """
    found = conditions_of(job)
    if any(condition.missing for condition in found):
        waits = wait_reason(found, at=at, until=job.depends_until_at, then=job.depends_on_timeout)
        move_job(job, JobState.BLOCKED, because=because, by=by, at=at, held_by="", **waits | changes)
        return False
    eligible_at = max(at, job.begin_at) if job.begin_at else at
    move_job(job, JobState.QUEUED, because=because, by=by, at=at, held_by="", eligible_at=eligible_at,
             **not_evaluated(at), **changes)  # fmt: skip
    return True


class Held(Protocol):
    """A held job, as far as who may release it depends on that."""

    @property
    def held_by(self) -> str: ...


def may_release(job: Held, by: User, role: str | None) -> bool:
    """Whether a person of this role in its project may release a job: not what somebody with more rights holds."""
    if by.is_operator or job.held_by in ("", "user"):
        return True
    return job.held_by == "lead" and role == ProjectRole.LEAD


def requeue_job(*, job: Job, by: User, reason: str = "") -> Job:
    """Stop a running job and let it wait again from the beginning; one that has ended is run again.

    It keeps its number, its request, its events and its attempts; its age counts anew. Raises Conflict where its state
    does not allow it, or where results would be lost.
    """
    permissions.require(by, "requeue", job)
    return _try_again(job, lambda: _requeue(job, by, reason), verb="requeued")


def _requeue(job: Job, by: User, reason: str) -> None:
    if job.is_terminal:
        _requeue_ended(job, by, reason)
        return
    if job.state == JobState.MIGRATING:
        return  # it is being requeued already
    if job.state not in ACTIVE | {JobState.PREEMPTED} or job.state == JobState.STOPPING:
        raise Conflict(
            message=f"Job {job.said_number} is {job.state} and not running.",
            way_out="Only a job with nodes can be requeued.",
        )
    if job.restart_policy == RestartPolicy.NEVER and _may_have_begun(job):
        raise runs_at_most_once(
            job, way_out="Cancel the job, and submit it again if repeating its work is harmless."
        )
    before, now = job.state, timezone.now()
    because = f"requeued by {by.username}" + (f": {reason}" if reason else "")
    if job.state == JobState.PREEMPTED:
        move_job(job, JobState.QUEUED, because=because, by=by, at=now, eligible_at=now, **not_evaluated(now))
        outbox.wake_planner(job.queue.cluster_id, trigger="requeue")
    elif job.state == JobState.PREEMPTING:
        if not stop_instead_of_suspending(job, because):
            return  # it is being requeued already
    else:
        ask_to_end(job, JobState.PREEMPTING, StopReason.PREEMPTED, by=by, because=because, now=now)
    _audit_verb("job.requeue", job, by, before=before, reason=reason)


def _requeue_ended(job: Job, by: User, reason: str) -> None:
    before, now = job.state, timezone.now()
    refuse_to_requeue(job, at=now)
    because = f"requeued by {by.username}" + (f": {reason}" if reason else "")
    if queue_again(job, because=because, by=by, at=now, **BEFORE_ITS_END):
        outbox.wake_planner(job.queue.cluster_id, trigger="requeue")
    Job.objects.filter(pk=job.pk).update(check_at=check_after(job, now))
    _audit_verb("job.requeue", job, by, before=before, reason=reason)


def _may_have_begun(job: Job) -> bool:
    """Whether an agent has fetched a task of this job, which the lock keeps so until the transaction ends."""
    if job.state != JobState.SCHEDULED:
        return True
    Job.objects.select_for_update(of=("self",), no_key=True).get(pk=job.pk)
    return Task.objects.filter(attempt__job=job, is_live=True).exclude(state=TaskState.ASSIGNED).exists()


def stop_instead_of_suspending(job: Job, because: str) -> int:
    """A job that is being suspended ends instead; answers how many attempts that is."""
    asked = job.attempts.live().filter(suspend_asked_at__isnull=False).values_list("pk", flat=True)
    return stop_unsuspended(asked, because=because) if asked else 0


# ---------------------------------------------------------------- shared


def _try_again(job: Job, verb_once: Callable[[], None], *, verb: str) -> Job:
    """Run the verb on the job as it is now; when the job changes meanwhile, read it again and retry."""
    for _ in range(TRIES):
        try:
            with transaction.atomic():
                verb_once()
            return job
        except (StaleJob, ImpossibleMove):
            fresh = Job.objects.get(pk=job.pk)
            for field in Job._meta.concrete_fields:
                setattr(job, field.attname, getattr(fresh, field.attname))
    raise Conflict(
        message=f"Job {job.said_number} kept changing and could not be {verb}.",
        way_out="Try again in a moment.",
    )


def _no_longer_pending(job: Job, verb: str) -> Conflict:
    return Conflict(
        message=f"Job {job.said_number} is {job.public_state}; only a pending job can be {verb}.",
        way_out="Cancel or requeue it instead." if job.is_active else "There is nothing to hold.",
    )


def _audit_verb(action: str, job: Job, by: User, *, before: str, reason: str) -> None:
    audit.record(
        by=by, action=action, thing=job, before={"state": str(before)}, after={"state": str(job.state)},
        reason=reason, project=job.project,
    )  # fmt: skip
