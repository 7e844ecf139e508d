"""What nodes say of checkpoints: jobs that were asked, checkpoints that were written, and their bytes."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, NamedTuple

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from infra.errors import Conflict
from quotas.core.resources import MIB, show_mib
from scheduler.core.lifecycle import JobState
from scheduler.models import Checkpoint, CheckpointReason, CheckpointState, Job, Node, Task
from scheduler.models.results.checkpoint_policy import CheckpointPolicy, policy_of
from scheduler.services.checkpoints.removal import remove_leaving
from scheduler.services.checkpoints.resume import whole_sets
from scheduler.services.checkpoints.stored_bytes import (
    check_whole,
    checked_manifest,
    pieces_of,
    put_manifest,
    put_piece,
)
from scheduler.services.jobs.datasets import save_checkpoint
from scheduler.state.db.sql import run
from scheduler.state.lifecycle.transitions import announce_job, move_job, record_event

#: How often the row of a checkpoint says that pieces of it come.
_SEEN_SECONDS: Final = 10.0
_MOST_FILES: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Announced:
    """A checkpoint that a task has finished; `trouble` says why its node does not send it."""

    task: int
    epoch: int
    name: str
    marked_ns: int
    reason: str
    files: int
    size: int
    trouble: str = ""


class _Owner(NamedTuple):
    job: int
    rank: int
    checkpoint: str  # JSON


_OWNER: Final = """
SELECT a.job_id, t.rank, r.checkpoint::text FROM scheduler_task t JOIN scheduler_attempt a ON a.id = t.attempt_id
    JOIN scheduler_jobrequest r ON r.number = a.job_id
WHERE t.id = %s AND a.epoch = %s AND t.node_id = %s
"""


def _owner(node: Node, task: int, epoch: int) -> _Owner:
    rows = run(_OWNER, [task, epoch, node.pk])
    if not rows:
        raise Conflict(message=f"Task {task} of attempt {epoch} is not on this node.", code="not-yours")
    return _Owner(*rows[0])


def _locked(number: int) -> Job:
    return Job.objects.select_for_update(of=("self",), no_key=True).get(pk=number)


# ---------------------------------------------------------------- asked


@transaction.atomic
def take_asked(*, node: Node, task: int, epoch: int, reason: str, seconds: int) -> None:
    """A task was asked for a checkpoint: its job is checkpointing while it runs."""
    owner = _owner(node, task, epoch)
    job = _locked(owner.job)
    Task.objects.filter(pk=task, checkpoint_asked_at__isnull=False).update(checkpoint_asked_at=None)
    why = CheckpointReason(reason).label.removeprefix("requested ")
    because = f"checkpoint requested ({why}); the job has {seconds} s"
    if job.epoch == epoch and job.state == JobState.RUNNING:
        move_job(job, JobState.CHECKPOINTING, because=because, details={"reason": reason, "rank": owner.rank})
    elif job.epoch == epoch and job.state in (JobState.PREEMPTING, JobState.MIGRATING):
        record_event(
            job, "job.checkpointing", because=because, details={"reason": reason, "rank": owner.rank}
        )


@transaction.atomic
def take_missed(*, node: Node, task: int, epoch: int, text: str) -> None:
    """Nothing came of it: the job goes on as before.

    Without a text, an agent that was restarted knows of no request; one that has not reached it yet is sent again.
    """
    job = _locked(_owner(node, task, epoch).job)
    if text:
        Task.objects.filter(pk=task, checkpoint_asked_at__isnull=False).update(checkpoint_asked_at=None)
    _goes_on(job, epoch)
    if text and job.epoch == epoch:
        record_event(job, "job.checkpoint_missed", because=f"no checkpoint on {node.name}: {text}")


def _goes_on(job: Job, epoch: int) -> None:
    """The job is not waited for any more. Its event is that of the checkpoint."""
    if job.epoch != epoch or job.state != JobState.CHECKPOINTING:
        return
    Job.objects.filter(pk=job.pk).update(state=JobState.RUNNING, generation=job.generation + 1)
    job.state, job.generation = JobState.RUNNING, job.generation + 1
    announce_job(job)


# ---------------------------------------------------------------- written


@transaction.atomic
def begin(*, node: Node, announced: Announced) -> str:
    """A task has written a checkpoint: the id under which its bytes are to come, "" where it is not wanted.

    Announced again, it is the same one.
    """
    owner = _owner(node, announced.task, announced.epoch)
    policy = policy_of(json.loads(owner.checkpoint))
    if policy is None:
        raise Conflict(message=f"Job {owner.job} makes no checkpoints.", code="not-yours")
    job, now = _locked(owner.job), timezone.now()
    trouble = announced.trouble or _too_large(announced.size, policy)
    row, created = Checkpoint.objects.get_or_create(
        job_id=owner.job, epoch=announced.epoch, rank=owner.rank, name=announced.name,
        marked_ns=announced.marked_ns,
        defaults={
            "node": node, "reason": announced.reason, "files": announced.files, "size_bytes": announced.size,
            "state": CheckpointState.FAILED if trouble else CheckpointState.STORING, "text": trouble[:300],
            "taken_at": now, "seen_at": now,
        },
    )  # fmt: skip
    _goes_on(job, announced.epoch)
    if created and trouble:
        because = f"checkpoint {row.name} is refused: {trouble}"
        record_event(job, "job.checkpoint_refused", because=because, details={"name": row.name})
    elif created:
        announce_job(job)
    return str(row.pk) if row.state == CheckpointState.STORING else ""


def _too_large(size: int, policy: CheckpointPolicy) -> str:
    limits = [limit for limit in (policy.max_size_mib, settings.MUSTER_CHECKPOINT_MIB) if limit]
    if limits and size > min(limits) * MIB:
        return f"The checkpoint has {show_mib(-(-size // MIB))}; the maximum is {show_mib(min(limits))}."
    return ""


def take_piece(*, node: Node, checkpoint: str, number: int, sha256: str, data: bytes) -> None:
    """Store one piece; the same one again changes nothing. Raises Conflict, InvalidInput, StorageError."""
    row = _expected(node, checkpoint)
    put_piece(row, number, data, sha256)
    now = timezone.now()
    if now - row.seen_at > timedelta(seconds=_SEEN_SECONDS):
        Checkpoint.objects.filter(pk=row.pk).update(seen_at=now)


def _expected(node: Node, checkpoint: str) -> Checkpoint:
    row = Checkpoint.objects.filter(pk=checkpoint, node=node).first()
    if row is None or row.state != CheckpointState.STORING:
        raise Conflict(message="This checkpoint is not expected from this node.", code="not-expected")
    return row


def finish(*, node: Node, checkpoint: str, manifest: Any, seconds: float = math.inf) -> str:
    """All pieces are stored: read them back, compare the checksums, and keep the newest; answers its state then.

    `storing` once it has read for `seconds`: the same call again goes on. Raises MusterError.
    """
    row = Checkpoint.objects.filter(pk=checkpoint, node=node).first()
    if row is None:
        raise Conflict(message="This checkpoint is not expected from this node.", code="not-expected")
    if row.state != CheckpointState.STORING:
        return row.state
    checked = checked_manifest(manifest, row)
    why = check_whole(row, checked, seconds=seconds)
    if why is None:
        Checkpoint.objects.filter(pk=row.pk).update(seen_at=timezone.now())
        return CheckpointState.STORING
    if why:
        fail(node=node, checkpoint=checkpoint, text=why)
        return CheckpointState.FAILED
    put_manifest(row, checked)
    with transaction.atomic():
        job, now = _locked(row.job_id), timezone.now()
        moved = Checkpoint.objects.filter(pk=row.pk, state=CheckpointState.STORING).update(
            state=CheckpointState.COMPLETE, stored_at=now, seen_at=now
        )
        if moved:
            _note_saved(job, row, node)
            _leave_oldest(job, row)
    remove_leaving(job=row.job_id)
    return CheckpointState.COMPLETE


def _note_saved(job: Job, row: Checkpoint, node: Node) -> None:
    """The job's work until then is not lost any more."""
    because = f"checkpoint {row.name} of {_shown(row.size_bytes)} is stored, written on {node.name}"
    if job.saved_at is None or job.saved_at <= row.taken_at:
        save_checkpoint(job, path=row.name, because=because, at=row.taken_at)
    else:
        record_event(job, "job.saved", because=because, details={"path": row.name})


def _shown(size: int) -> str:
    return f"{size:,} bytes" if size < MIB else show_mib(size // MIB)


def _leave_oldest(job: Job, newest: Checkpoint) -> None:
    """Let go what is older than the newest ones of this rank that its job keeps.

    Of a job of several tasks as many whole checkpoints stay as well: a rank that is ahead takes none away.
    """
    keep = (policy_of(job.checkpoint) or CheckpointPolicy()).keep
    complete = list(Checkpoint.objects.filter(job=job, state=CheckpointState.COMPLETE).order_by("taken_at"))
    own = [row for row in complete if row.rank == newest.rank]
    stay = {row.pk for row in own[-keep:]}
    if len(own) < len(complete):
        stay |= {row.pk for part in whole_sets(complete)[:keep] for row in part.values()}
    Checkpoint.objects.filter(pk__in=[row.pk for row in own if row.pk not in stay]).update(
        state=CheckpointState.LEAVING, text="Replaced by newer checkpoints."
    )


@transaction.atomic
def fail(*, node: Node, checkpoint: str, text: str) -> None:
    """A checkpoint was not stored; a second time changes nothing."""
    row = Checkpoint.objects.filter(pk=checkpoint, node=node, state=CheckpointState.STORING).first()
    if row is None:
        return
    job = _locked(row.job_id)
    moved = Checkpoint.objects.filter(pk=row.pk, state=CheckpointState.STORING).update(
        state=CheckpointState.LEAVING if pieces_of(row) else CheckpointState.FAILED, text=text[:300]
    )
    if moved:
        because = f"checkpoint {row.name} was not stored: {text}"
        record_event(job, "job.checkpoint_failed", because=because, details={"name": row.name})
