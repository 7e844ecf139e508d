"""Makes running elastic jobs smaller at once, and larger by starting them again, from a checkpoint if they make any."""

from __future__ import annotations

from django.db import transaction
from django.utils import timezone

from accounts import permissions
from accounts.models import User
from accounts.services import audit
from infra.errors import Conflict, FieldProblem, InvalidInput
from scheduler import outbox
from scheduler.core.lifecycle import LIVE_TASK, JobState, TaskState
from scheduler.models import Attempt, Job, Task
from scheduler.services.jobs.verbs import requeue_job
from scheduler.state.lifecycle.transitions import record_event
from scheduler.state.settle.release import release_ended_tasks


def resize_job(*, job: Job, tasks: int, by: User, reason: str = "") -> Job:
    """Change the number of tasks of a running elastic job.

    Fewer: the highest ranks are asked to end and release what they hold as they do; the others continue.
    More: no task can be added to running processes, so the job starts again with as many as fit then: from a
    checkpoint that it is asked for first, where it makes any, else only if it has saved its work since its start.
    Raises Conflict or InvalidInput.
    """
    permissions.require(by, "requeue", job)
    least = job.min_tasks or job.tasks
    if not job.elastic:
        raise Conflict(
            message=f"Job {job.said_number} is not elastic.",
            way_out="Submit it with elastic and min_tasks.",
        )
    if not least <= tasks <= job.tasks:
        wrong = f"Must be from {least} to {job.tasks}; {tasks} is not."
        raise InvalidInput(message=wrong, problems=[FieldProblem("tasks", wrong, "out-of-range")])
    with transaction.atomic():
        row = Job.objects.select_for_update(of=("self",), no_key=True).get(pk=job.pk)
        attempt = Attempt.objects.live().filter(job=row, stop_asked_at__isnull=True).first()
        if row.state != JobState.RUNNING or attempt is None:
            raise Conflict(
                message=f"Job {job.said_number} is {row.public_state} and cannot be resized.",
                way_out="The size is chosen when the job starts.",
            )
        live = list(
            Task.objects.filter(attempt=attempt, state__in=LIVE_TASK - {TaskState.STOPPING}).order_by("rank")
        )
        if tasks <= len(live):
            _shrink(row, attempt, live[tasks:], by=by, reason=reason)
    if tasks > len(live):
        _grow(row, attempt, by=by, reason=reason or f"resized from {len(live)} to {tasks} tasks")
    elif any(task.state == TaskState.ASSIGNED for task in live[tasks:]):
        # Not while the job is locked, as settling locks nodes first. After a crash the timer does it.
        transaction.on_commit(lambda: release_ended_tasks([attempt.pk]))
    job.refresh_from_db()
    return job


def _shrink(job: Job, attempt: Attempt, leaving: list[Task], *, by: User, reason: str) -> None:
    if not leaving:
        return
    ids = [task.pk for task in leaving]
    Attempt.objects.filter(pk=attempt.pk).update(
        resized_at=timezone.now(), resized_for=None, resized_for_epoch=None
    )
    # Tasks never sent to an agent end without its confirmation.
    Task.objects.filter(pk__in=ids, state=TaskState.ASSIGNED).update(
        state=TaskState.STOPPED, ended_at=timezone.now(), end_text="Never started."
    )
    Task.objects.filter(pk__in=ids, state__in=LIVE_TASK).update(state=TaskState.STOPPING)
    ranks = [task.rank for task in leaving]
    why = f": {reason}" if reason else ""
    record_event(
        job, "job.smaller", because=f"{len(ranks)} tasks are being stopped by {by.username}{why}", by=by,
        details={"ranks": ranks[:1000]},
    )  # fmt: skip
    audit.record(
        by=by, action="job.resize", thing=job, after={"fewer": len(ranks)}, reason=reason, project=job.project
    )
    # Also to the nodes of those that stay: their processes read the new size.
    nodes = attempt.tasks.filter(state__in=LIVE_TASK).values_list("node_id", flat=True)
    outbox.announce(*{outbox.node_topic(node) for node in nodes}, outbox.CLUSTER_TOPIC)


def _grow(job: Job, attempt: Attempt, *, by: User, reason: str) -> None:
    if not job.checkpoint and (
        job.saved_at is None or attempt.started_at is None or job.saved_at < attempt.started_at
    ):
        raise Conflict(
            message=f"Job {job.said_number} has no checkpoint since its start, so its work would be lost.",
            way_out="Submit it with the field checkpoint, report a checkpoint first (POST /jobs/{id}/checkpoint), "
            "or requeue the job.",
        )
    requeue_job(job=job, by=by, reason=reason)
