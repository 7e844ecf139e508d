"""Moves and drains go on by themselves: each step is taken from rows, so that any process may take the next one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

import structlog
from django.db import transaction
from django.utils import timezone

from accounts.models import User
from accounts.services import audit
from infra.times_in_text import written
from scheduler.core.lifecycle import PENDING, JobState, StopReason
from scheduler.models import (
    OPEN_MOVES,
    Allocation,
    Attempt,
    Checkpoint,
    CheckpointState,
    Job,
    JobEvent,
    JobMove,
    MoveCause,
    MoveState,
    Node,
)
from scheduler.models.results.checkpoint_policy import CheckpointPolicy, policy_of
from scheduler.services.jobs.verbs import ask_to_end, stop_instead_of_suspending
from scheduler.services.moves.drain_plan import plan_drain
from scheduler.services.moves.fates import LEAVES, RUNS, Fate, attempts_on, fate_of, nodes_of
from scheduler.services.moves.verbs import end_move, has_saved, open_move, place_anywhere, stop_for
from scheduler.state.lifecycle.transitions import ImpossibleMove, StaleJob

log = structlog.get_logger(__name__)

#: A checkpoint that was asked for is waited for during the grace of the job and so long.
SLACK_SECONDS: Final = 60
#: A job that was moved waits so long for the node it was to go to; then any node will do.
PATIENCE_SECONDS: Final = 60
#: Of one drain, moves that are under way together: each reads and writes a checkpoint.
MOST_TOGETHER: Final = 8
#: After a move that came to nothing, how long the next one of the same job waits, and how many there are.
RETRY_SECONDS: Final = 60
MOST_TRIES: Final = 3
#: Events that say that no checkpoint comes.
_NO_CHECKPOINT: Final = ("job.checkpoint_missed", "job.checkpoint_refused", "job.checkpoint_failed")


def drive() -> int:
    """Take the next step of every move and every drain with a deadline; answers how many were taken.

    Safe to run at any time, and several times at once: each step locks its job and looks again. A step that fails is
    logged and taken again by the next run; the others do not wait for it.
    """
    open_ones = JobMove.objects.filter(ended_at=None).order_by("pk").values_list("pk", flat=True)
    steps = sum(_taken(partial(_advance, number), move=number) for number in open_ones)
    return steps + _drive_drains(timezone.now())


def _taken(step: Callable[[], int], **of: Any) -> int:
    """How many steps were taken; 0 for one that fails."""
    try:
        return step()
    except Exception:
        log.exception("move_step_failed", **of)
        return 0


# ---------------------------------------------------------------- moves


@transaction.atomic
def _advance(number: int) -> bool:
    move = JobMove.objects.select_related("target", "asked_by").get(pk=number)
    job = Job.objects.select_for_update(of=("self",), no_key=True).select_related("queue").get(pk=move.job_id)
    move.refresh_from_db(fields=["state", "ended_at"])
    if move.state not in OPEN_MOVES:
        return False
    move.job, now = job, timezone.now()
    before = (move.state, move.text)
    steps = {MoveState.SAVING: _saving, MoveState.STOPPING: _stopping, MoveState.WAITING: _waiting}
    steps[MoveState(move.state)](move, job, now)
    return (move.state, move.text) != before


def _saving(move: JobMove, job: Job, now: datetime) -> None:
    """It runs where it was, and is asked for its first checkpoint: until that is stored the move may be undone."""
    if job.epoch != move.epoch or job.state not in RUNS:
        end_move(move, MoveState.UNDONE, f"the job is {job.public_state}, and no longer runs there", now)
    elif move.cause == MoveCause.DRAIN and not _still_drains(move, job):
        end_move(move, MoveState.UNDONE, "the drain was cancelled", now)
    elif has_saved(move):
        stop_for(move, job, now)
    elif missed := _missed(move):
        end_move(move, MoveState.UNDONE, missed, now)
    elif not _comes(move) and now > move.asked_at + timedelta(seconds=_grace(job) + SLACK_SECONDS):
        text = f"no checkpoint came within {_grace(job) + SLACK_SECONDS} s"
        end_move(move, MoveState.UNDONE, text, now)


def _still_drains(move: JobMove, job: Job) -> bool:
    held = Allocation.objects.held().filter(attempt__job=job, attempt__epoch=move.epoch)
    return held.filter(node__draining=True).exists()


def _missed(move: JobMove) -> str:
    """Why no checkpoint comes, if an event since then says so."""
    found = JobEvent.objects.filter(
        job=move.job_id, epoch=move.epoch, kind__in=_NO_CHECKPOINT, at__gte=move.asked_at
    ).order_by("-id")
    return str(found.values_list("because", flat=True).first() or "")


def _comes(move: JobMove) -> bool:
    """A checkpoint is on its way to the storage; one of which nothing comes any more is let go by itself."""
    storing = Checkpoint.objects.filter(job=move.job_id, epoch=move.epoch, state=CheckpointState.STORING)
    return storing.filter(seen_at__gt=timezone.now() - timedelta(seconds=SLACK_SECONDS)).exists()


def _grace(job: Job) -> int:
    return (policy_of(job.checkpoint) or CheckpointPolicy()).grace


def _stopping(move: JobMove, job: Job, now: datetime) -> None:
    """Its attempt is asked to end."""
    if job.is_terminal and job.epoch == move.epoch:
        end_move(move, MoveState.UNDONE, f"the job ended before the move ({job.state})", now)
    elif job.epoch > move.epoch or job.state in PENDING:
        move.state = MoveState.WAITING
        move.save(update_fields=["state"])
        _waiting(move, job, now)


def _waiting(move: JobMove, job: Job, now: datetime) -> None:
    """It holds nothing, and waits for its next attempt, or that one starts."""
    if job.is_terminal and job.epoch == move.epoch:
        end_move(move, MoveState.UNDONE, f"the job ended before the start on another node ({job.state})", now)
    elif job.epoch > move.epoch and (job.is_terminal or job.state in RUNS):
        latest = Attempt.objects.get(job=job, epoch=job.epoch)
        names = (
            Allocation.objects.filter(attempt=latest).order_by("rank").values_list("node__name", flat=True)
        )
        where = ", ".join(dict.fromkeys(names))
        end_move(move, MoveState.DONE, f"moved from {', '.join(move.leaves)} to {where}", now)
    elif job.state in PENDING and job.move_terms is not None:
        _rolled_back(move, job, now)


def _rolled_back(move: JobMove, job: Job, now: datetime) -> None:
    """Where the place that was planned cannot be had, the job goes on from its checkpoint wherever there is one."""
    if job.epoch > move.epoch:
        place_anywhere(
            move, "the start on the other node failed: the job continues from its checkpoint on any node"
        )
        return
    ended = Attempt.objects.filter(job=job, epoch=move.epoch).values_list("ended_at", flat=True).first()
    if ended is not None and now > ended + timedelta(seconds=PATIENCE_SECONDS):
        text = f"no other node was free for {PATIENCE_SECONDS} s: the job continues from its checkpoint on any node"
        place_anywhere(move, text)


# ---------------------------------------------------------------- drains


def _drive_drains(now: datetime) -> int:
    draining = Node.objects.filter(draining=True, drain_deadline_at__isnull=False).order_by(
        "cluster_id", "name"
    )
    clusters: dict[int, list[Node]] = defaultdict(list)
    for node in draining:
        clusters[node.cluster_id].append(node)
    steps = 0
    for nodes in clusters.values():
        due = [node for node in nodes if node.drain_deadline_at and node.drain_deadline_at <= now]
        for attempt in attempts_on(due) if due else ():
            steps += _taken(partial(_leave, attempt, due, now), job=attempt.job_id)
        rest = [node for node in nodes if node not in due]
        steps += _taken(partial(_move_off, rest, nodes, now), cluster=nodes[0].cluster_id)
    return steps


def _move_off(open_nodes: list[Node], closed: list[Node], now: datetime) -> int:
    """Begin to move jobs off these nodes for which a place is free; nodes of `closed` all drain."""
    candidates = _candidates(open_nodes, now)
    if not candidates:
        return 0
    under_way = JobMove.objects.filter(
        cause=MoveCause.DRAIN, state__in=(MoveState.SAVING, MoveState.STOPPING), ended_at=None
    )
    left = MOST_TOGETHER - under_way.filter(job__queue__cluster=open_nodes[0].cluster_id).count()
    if left <= 0:
        return 0
    deadline = min(node.drain_deadline_at for node in open_nodes if node.drain_deadline_at)
    plan = plan_drain(closed, deadline, now=now)
    going = [one for one in plan.jobs if one.fate == Fate.MOVES and one.job.number in candidates]
    begun = 0
    for one in going[:left]:
        attempt, nodes = candidates[one.job.number]
        by = _drained_by(nodes)
        leaves = [node.name for node in nodes]
        move = open_move(
            one.job.number, attempt.epoch, cause=MoveCause.DRAIN, leaves=leaves, by=by, reason=_reason(nodes)
        )
        begun += move is not None
    return begun


def _candidates(nodes: list[Node], now: datetime) -> dict[int, tuple[Attempt, list[Node]]]:
    """Jobs that are to be moved and are not yet, each with its attempt and those of its nodes that drain."""
    attempts = attempts_on(nodes)
    held = nodes_of(attempts)
    found = {}
    for attempt in attempts:
        draining = [node for node in held.get(attempt.pk, []) if node.drain_deadline_at is not None]
        deadline = min((node.drain_deadline_at for node in draining if node.drain_deadline_at), default=None)
        if fate_of(attempt, deadline) == Fate.MOVES:
            found[attempt.job_id] = (attempt, draining)
    tried: dict[int, list[JobMove]] = defaultdict(list)
    for move in JobMove.objects.filter(job__in=list(found)):
        if move.ended_at is None or move.epoch == found[move.job_id][0].epoch:
            tried[move.job_id].append(move)
    return {number: one for number, one in found.items() if _may_try(tried[number], now)}


def _may_try(moves: Iterable[JobMove], now: datetime) -> bool:
    ends = [move.ended_at for move in moves]
    if None in ends or len(ends) >= MOST_TRIES:
        return False
    return all(end is not None and now > end + timedelta(seconds=RETRY_SECONDS) for end in ends)


def _leave(attempt: Attempt, due: list[Node], now: datetime) -> bool:
    """Stop one job whose nodes' deadline is over: it saves if it can, and waits to start again."""
    with transaction.atomic():
        job = Job.objects.select_for_update(of=("self",), no_key=True).get(pk=attempt.job_id)
        if job.epoch != attempt.epoch or not job.is_active:
            return False
        nodes = [node for node in nodes_of([attempt]).get(attempt.pk, []) if node in due]
        if not nodes:
            return False
        by, names = _drained_by(nodes), ", ".join(node.name for node in nodes)
        because = f"the deadline of the drain of {names} has passed ({_reason(nodes)}): the job is requeued"
        if job.state == JobState.PREEMPTING:
            asked = stop_instead_of_suspending(job, because)
            return bool(asked)
        if job.state in LEAVES:
            return False
        to = JobState.MIGRATING if job.checkpoint and job.state in RUNS else JobState.PREEMPTING
        before = job.state
        try:
            ask_to_end(job, to, StopReason.DRAINED, by=by, because=because[:300], now=now)
        except (StaleJob, ImpossibleMove):
            return False
        JobMove.objects.filter(job=job, epoch=job.epoch, state=MoveState.SAVING).update(
            state=MoveState.STOPPING, stopped_at=now
        )
        log.info("job_left_draining_node", job=job.number, nodes=names)
        audit.record(
            by=by, action="job.drain", thing=job, before={"state": before}, after={"state": job.state},
            reason=_reason(nodes)[:300], project=job.project,
        )  # fmt: skip
    return True


def _drained_by(nodes: Iterable[Node]) -> User | None:
    """Who drains the first of them: what becomes of the jobs is their act."""
    name = next((node.drained_by for node in nodes if node.drained_by), "")
    return User.objects.filter(username=name).first() if name else None


def _reason(nodes: Iterable[Node]) -> str:
    """`replace a fan, until 14:00`"""
    node = next(iter(nodes))
    until = f"until {written(node.drain_deadline_at)}" if node.drain_deadline_at else ""
    return ", ".join(filter(None, (node.drain_reason, until)))
