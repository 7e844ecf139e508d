"""Which checkpoint an attempt goes on from, and its bytes for the node where it runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from datetime import timedelta
from typing import Final

from django.db import transaction
from django.utils import timezone

from infra.errors import Conflict
from scheduler.agent.protocol import RestoreAnswer
from scheduler.core.lifecycle import LIVE_TASK, NodeState
from scheduler.models import Checkpoint, CheckpointState, Job, JobEvent, Node, Task
from scheduler.services.checkpoints.stored_bytes import piece, stored_manifest
from scheduler.state.lifecycle.transitions import record_event

#: An attempt waits for a checkpoint of an earlier one that is on its way, while pieces come at least so often.
STALLED_SECONDS: Final = 60.0


def restore(*, node: Node, task: int, epoch: int) -> RestoreAnswer:
    """What a task that is about to start goes on from; `wait` while that is on its way. Raises Conflict."""
    ours = _live_task(node, task, epoch)
    job = ours.attempt.job_id
    earlier = Checkpoint.objects.filter(job_id=job, epoch__lt=epoch)
    on_the_way = earlier.filter(
        state=CheckpointState.STORING,
        seen_at__gt=timezone.now() - timedelta(seconds=STALLED_SECONDS),
        node__state=NodeState.UP,
    )
    if on_the_way.exists():
        return RestoreAnswer(wait=True)
    for row in parts_for(ours.rank, earlier.filter(state=CheckpointState.COMPLETE).order_by("taken_at")):
        try:
            return RestoreAnswer(id=str(row.pk), manifest=stored_manifest(row))
        except Conflict as error:
            _mark_damaged(row, error.message)
    return RestoreAnswer()


def whole_sets(complete: Iterable[Checkpoint]) -> list[dict[int, Checkpoint]]:
    """The checkpoints that are whole, as their parts by rank, newest first; `complete` are oldest first.

    Tasks of one job write parts of one checkpoint under the same name. It is whole when every rank that has written
    any in that attempt has written this one.
    """
    writers: dict[int, set[int]] = defaultdict(set)
    parts: dict[tuple[int, str], dict[int, Checkpoint]] = {}
    for row in complete:
        writers[row.epoch].add(row.rank)
        whole = parts.pop((row.epoch, row.name), {})
        whole[row.rank] = row
        parts[row.epoch, row.name] = whole  # as new as its newest part
    return [part for (epoch, _), part in reversed(parts.items()) if part.keys() == writers[epoch]]


def parts_for(rank: int, complete: Iterable[Checkpoint]) -> list[Checkpoint]:
    """For a task of this rank its part of each whole checkpoint, newest first.

    A rank without a part gets that of the lowest rank.
    """
    return [part.get(rank, part[min(part)]) for part in whole_sets(complete)]


def _live_task(node: Node, task: int, epoch: int) -> Task:
    found = (
        Task.objects.select_related("attempt")
        .filter(pk=task, node=node, attempt__epoch=epoch, state__in=LIVE_TASK)
        .first()
    )
    if found is None:
        raise Conflict(message=f"Task {task} of attempt {epoch} does not run on this node.", code="not-yours")
    return found


def _mark_damaged(row: Checkpoint, text: str) -> None:
    with transaction.atomic():
        moved = Checkpoint.objects.filter(pk=row.pk, state=CheckpointState.COMPLETE).update(
            state=CheckpointState.LEAVING, text=text[:300]
        )
        if moved:
            because = f"checkpoint {row.name} cannot be used: {text}"
            record_event(Job.objects.get(pk=row.job_id), "job.checkpoint_failed", because=because)


def give_piece(*, node: Node, checkpoint: str, number: int, task: int, epoch: int) -> bytes:
    """One piece for a task that is about to start; raises Conflict, StorageError."""
    ours = _live_task(node, task, epoch)
    row = Checkpoint.objects.filter(
        pk=checkpoint, job_id=ours.attempt.job_id, state=CheckpointState.COMPLETE
    ).first()
    if row is None:
        raise Conflict(message="There is no such checkpoint of this job.", code="not-expected")
    try:
        return piece(row, number)
    except Conflict as error:
        _mark_damaged(row, error.message)
        raise


@transaction.atomic
def note_restored(*, node: Node, checkpoint: str, task: int, epoch: int) -> None:
    """A task goes on from this checkpoint: one event for its attempt."""
    ours = _live_task(node, task, epoch)
    job = Job.objects.select_for_update(of=("self",), no_key=True).get(pk=ours.attempt.job_id)
    row = Checkpoint.objects.filter(pk=checkpoint, job=job).first()
    if row is None or JobEvent.objects.filter(job=job, epoch=epoch, kind="job.restored").exists():
        return
    because = f"continues from checkpoint {row.name} of attempt {row.epoch}, fetched to {node.name}"
    record_event(job, "job.restored", because=because, details={"name": row.name, "attempt": row.epoch})
