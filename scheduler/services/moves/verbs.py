"""Move a running job to other nodes by a checkpoint, and the steps that every move takes."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.db import transaction
from django.db.models import F
from django.utils import timezone

from accounts import permissions
from accounts.models import User
from accounts.services import audit
from infra.errors import Conflict
from scheduler import outbox
from scheduler.core.lifecycle import JobState, RestartPolicy, StopReason
from scheduler.core.whatif.moved import Place
from scheduler.models import Attempt, Checkpoint, CheckpointState, Job, JobMove, MoveCause, MoveState, Node
from scheduler.services.checkpoints.verbs import ask_tasks, require_checkpoints
from scheduler.services.jobs.verbs import ask_to_end
from scheduler.services.moves.fates import RUNS, nodes_of
from scheduler.services.moves.places import find_places
from scheduler.state.lifecycle.transitions import record_event


def migrate_job(
    *, job: Job, by: User, target: Node | None = None, reason: str = "", cause: MoveCause = MoveCause.ASKED
) -> Job:
    """Move a running job away from its nodes, to `target` or to where the planner places it.

    One that has no checkpoint of this attempt yet is asked for one first, and runs on where it is until that is
    stored. Then it saves once more, ends, and starts elsewhere. While it is moved, a second time changes nothing.
    Raises NotFound, NotAllowed, and Conflict where it cannot be moved, such as when no place is free.
    """
    permissions.require(by, "requeue", job)
    if is_moving(job):
        return job
    attempt = _movable(job)
    leaves = [node.name for node in nodes_of([attempt]).get(attempt.pk, [])]
    if target is not None:
        _require_target(job, target, leaves)
    terms = terms_of(leaves, target.name if target else "")
    place = find_places(job.queue.cluster_id, [(job, terms)])[job.number]
    if not place.nodes:
        raise _no_place(job, target, place)
    with transaction.atomic():
        move = open_move(
            job.pk, attempt.epoch, cause=cause, leaves=leaves, target=target, by=by, reason=reason
        )
        if move is not None:
            audit.record(
                by=by, action="job.migrate", thing=move.job, before={"nodes": leaves}, reason=reason,
                after={"state": move.job.state, "target": target.name if target else "", "cause": cause.value},
                project=job.project,
            )  # fmt: skip
    job.refresh_from_db()
    if move is None and not is_moving(job):
        raise Conflict(
            message=f"Job {job.said_number} has changed while a place was looked for: it is {job.public_state} now.",
            way_out="Look at the job, and try again if it runs.",
        )
    return job


def is_moving(job: Job) -> bool:
    """Whether a move of the job is under way."""
    return JobMove.objects.filter(job=job, ended_at=None).exists()


def terms_of(leaves: Sequence[str], target: str = "") -> dict[str, Any]:
    """Where a moved job may start, as its row keeps it."""
    return {"leave": list(leaves)} | ({"only": [target]} if target else {})


def _movable(job: Job) -> Attempt:
    """The live attempt of a job that can be moved; raises Conflict."""
    require_checkpoints(job)
    attempt = job.attempts.live().select_related("job__queue").first()
    if job.state not in RUNS or attempt is None:
        raise Conflict(
            message=f"Job {job.said_number} is {job.public_state} and cannot be moved.",
            way_out="Only a running job can be moved.",
        )
    if job.restart_policy == RestartPolicy.NEVER:
        raise Conflict(
            message=f"Job {job.said_number} runs at most once (restart_policy never) and cannot start again elsewhere.",
            way_out="Let it end where it is.",
        )
    return attempt


def _require_target(job: Job, target: Node, leaves: Sequence[str]) -> None:
    """Raise Conflict for a node that the job cannot be sent to, whatever is free there."""
    if target.name in leaves:
        raise Conflict(
            message=f"Job {job.said_number} runs on {target.name} already.",
            way_out="Choose another node, or none.",
        )
    if target.cluster_id != job.queue.cluster_id:
        raise Conflict(
            message=f"Node {target.name} is not in the cluster of job {job.said_number}.",
            way_out=f"Choose a node of cluster {job.queue.cluster.slug}.",
        )
    if not target.schedulable:
        state = "draining" if target.draining else "cordoned" if target.cordoned else target.state
        raise _no_place(job, target, Place((), f"The node is {state} and takes no jobs."))


def _no_place(job: Job, target: Node | None, place: Place) -> Conflict:
    who = f"Node {target.name} cannot" if target else "No other node can"
    return Conflict(
        message=f"{who} start job {job.said_number} now. {place.why_not}".strip(),
        code="no-place",
        way_out="Wait, choose another node, or requeue the job.",
    )


# ---------------------------------------------------------------- the steps of a move


@transaction.atomic
def open_move(
    number: int,
    epoch: int,
    *,
    cause: MoveCause,
    leaves: Sequence[str],
    target: Node | None = None,
    by: User | None,
    reason: str = "",
) -> JobMove | None:
    """Begin a move of this attempt: with its first checkpoint, or where it has one, with its end.

    None where the job has changed since it was looked at, or is moved already.
    """
    job = Job.objects.select_for_update(of=("self",), no_key=True).get(pk=number)
    if job.epoch != epoch or job.state not in RUNS or is_moving(job):
        return None
    now = timezone.now()
    move = JobMove.objects.create(
        job=job, epoch=epoch, cause=cause, leaves=list(leaves), target=target, asked_by=by, asked_at=now,
        reason=reason[:300],
    )  # fmt: skip
    if has_saved(move):
        stop_for(move, job, now)
        return move
    because = (
        f"{why_of(move)}; a checkpoint is requested first, and the job continues here until it is stored"
    )
    record_event(job, "job.move_asked", because=because, by=by, at=now, details=_details(move))
    ask_tasks(job, because="a checkpoint is asked for, to move the job", by=by)
    return move


def has_saved(move: JobMove) -> bool:
    """Whether a checkpoint of the attempt that is to end is stored: then it can save, and its work is not lost."""
    return Checkpoint.objects.filter(
        job=move.job_id, epoch=move.epoch, state=CheckpointState.COMPLETE
    ).exists()


def stop_for(move: JobMove, job: Job, now: datetime) -> None:
    """Ask a locked job to save once more and to end; from here on the move goes on, whatever happens."""
    ask_to_end(
        job, JobState.MIGRATING, StopReason.DRAINED, by=move.asked_by, because=why_of(move)[:300], now=now
    )
    if move.cause != MoveCause.DRAIN:  # a node that drains takes no job; one that no longer drains may
        terms = terms_of(move.leaves, move.target.name if move.target else "")
        Job.objects.filter(pk=job.pk).update(move_terms=terms)
    move.state, move.stopped_at = MoveState.STOPPING, now
    move.save(update_fields=["state", "stopped_at"])


def why_of(move: JobMove) -> str:
    """`moved away from n1, to n2 by olga: fans are loud`"""
    where = f", to {move.target.name}" if move.target else ""
    who = f" by {move.asked_by.username}" if move.asked_by else ""
    what = ", which is draining" if move.cause == MoveCause.DRAIN else ""
    why = f": {move.reason}" if move.reason else ""
    return f"moved away from {', '.join(move.leaves)[:100]}{what}{where}{who}{why}"


def end_move(move: JobMove, state: MoveState, text: str, now: datetime) -> None:
    """A move is over: done, or undone and the job is where it was."""
    move.state, move.ended_at, move.text = state, now, text[:300]
    move.save(update_fields=["state", "ended_at", "text"])
    Job.objects.filter(pk=move.job_id, move_terms__isnull=False).update(move_terms=None)
    done = state == MoveState.DONE
    kind = "job.moved" if done else "job.move_undone"
    record_event(
        move.job, kind, because=text if done else f"not moved: {text}", at=now, details=_details(move)
    )


def place_anywhere(move: JobMove, text: str) -> None:
    """Let a job that waits start on any node again; `text` says why. Inside a transaction, with the job locked."""
    Job.objects.filter(pk=move.job_id).update(move_terms=None, generation=F("generation") + 1)
    move.text = text[:300]
    move.save(update_fields=["text"])
    record_event(move.job, "job.move_changed", because=text, details=_details(move))
    outbox.wake_planner(move.job.queue.cluster_id, trigger="migrate")


def _details(move: JobMove) -> dict[str, Any]:
    return {
        "move": move.pk,
        "cause": move.cause,
        "from": move.leaves,
        "target": move.target.name if move.target else "",
    }
