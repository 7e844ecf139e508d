"""Tasks that a node runs and the database does not know: it was restored from an older state than the node's.

They may be somebody's work, so they are not ended before an operator says so. Until they have ended, by themselves or
because the node was uncordoned, the node drains: their CPUs, memory and GPUs would count as free. A job that is known,
and waits although a later attempt of it runs there, is held.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, NamedTuple
from uuid import UUID

import structlog
from django.db import transaction
from django.utils import timezone

from infra.db.prepared import ask
from scheduler import outbox
from scheduler.core.lifecycle import ACTIVE, INTERRUPTED, PENDING, JobState
from scheduler.core.reason_codes import CATEGORY, ReasonCode
from scheduler.models import DRAINED_BY_UNKNOWN_TASKS, Job, Node, UnknownTask
from scheduler.services.cluster.quarantine import bring_back, record, take_out
from scheduler.state.db.sql import int_array, run
from scheduler.state.lifecycle.transitions import ImpossibleMove, StaleJob, move_job

log = structlog.get_logger(__name__)

#: A task with its epoch.
Pair = tuple[int, int]

_KNOWN: Final = "SELECT id FROM scheduler_task WHERE id = ANY(%s::bigint[])"
#: The most numbers of jobs that are skipped at once, so that what an agent says cannot use them up.
MOST_SKIPPED: Final = 100_000
_SKIP: Final = """
SELECT count(nextval('scheduler_jobrequest_number_seq'))
FROM generate_series(1, %s)
"""
_LAST_NUMBER: Final = "SELECT coalesce(pg_sequence_last_value('scheduler_jobrequest_number_seq'), 0)"


class DescribedTask(NamedTuple):
    """Whose a task is, as its agent says; of an agent of an earlier version only the number of the job is known."""

    task: int
    epoch: int
    job: int
    job_uuid: UUID | None
    username: str


@dataclass(slots=True)
class Found:
    """The unknown tasks of a node that are not to be ended, and those that the agent has to describe."""

    spared: set[Pair] = field(default_factory=set)
    describe: list[list[int]] = field(default_factory=list)


def to_spare(stale: Iterable[Pair]) -> set[Pair]:
    """Those of these tasks, which are not live on their node, that the database does not know at all."""
    asked = set(stale)
    if not asked:
        return set()
    known = {row[0] for row in ask(_KNOWN, [int_array(sorted({task for task, _ in asked}))])}
    return {pair for pair in asked if pair[0] not in known}


def take_over(node: Node, stale: Collection[Pair], described: Sequence[DescribedTask]) -> Found:
    """Write down which unknown tasks a node has now; `stale` are all that it has and that are not live there.

    The node drains while it has any, unless an operator has taken it out of service. Safe to do again.
    """
    unknown = to_spare(stale)
    with transaction.atomic():
        row = Node.objects.select_for_update(no_key=True).get(pk=node.pk)
        rows = {(one.task, one.epoch): one for one in UnknownTask.objects.filter(node=row)}
        _forget(row, [one for pair, one in rows.items() if pair not in unknown], left=len(unknown))
        rows |= _add(row, sorted(unknown - rows.keys()))
        for one in described:
            if (task := rows.get((one.task, one.epoch))) is not None and task.job is None:
                _describe(task, one)
        here = [rows[pair] for pair in sorted(unknown)]
        for task in here:
            if task.stop_asked_at is None:
                _fence_job(row, task)
    found = Found()
    found.spared = {(task.task, task.epoch) for task in here if task.stop_asked_at is None}
    found.describe = [[task.task, task.epoch] for task in here if task.job is None]
    return found


def stop_unknown(node: Node, *, because: str, at: datetime) -> list[UnknownTask]:
    """Have the unknown tasks of a locked node ended; answers them. The next answer to its agent says so."""
    tasks = list(UnknownTask.objects.filter(node=node))
    UnknownTask.objects.filter(node=node, stop_asked_at=None).update(
        stop_asked_at=at, stopped_because=because[:200]
    )
    if tasks:
        outbox.announce(outbox.node_topic(node.pk))
    return tasks


# ---------------------------------------------------------------- the rows


def _add(node: Node, pairs: Sequence[Pair]) -> dict[Pair, UnknownTask]:
    if not pairs:
        return {}
    now = timezone.now()
    rows = [UnknownTask(node=node, task=task, epoch=epoch, found_at=now) for task, epoch in pairs]
    UnknownTask.objects.bulk_create(rows)
    reason = f"Runs {_tasks(len(pairs))} that the database does not know: was it restored from a backup?"
    log.error("unknown_tasks_found", node=node.name, tasks=[list(pair) for pair in pairs][:50])
    if not node.draining and not node.cordoned:
        take_out(node, reason, DRAINED_BY_UNKNOWN_TASKS)
    record(node, "node.unknown_tasks", reason)
    return dict(zip(pairs, rows, strict=True))


def _forget(node: Node, gone: Sequence[UnknownTask], *, left: int) -> None:
    """They have ended; with the last one, the node that Muster drained for them takes jobs again."""
    if gone:
        UnknownTask.objects.filter(pk__in=[task.pk for task in gone]).delete()
    if gone and not left and node.draining and node.drained_by == DRAINED_BY_UNKNOWN_TASKS:
        bring_back(node)
        log.info("unknown_tasks_ended", node=node.name)
        record(node, "node.unknown_tasks_ended", "The tasks that the database does not know have ended")


def _describe(task: UnknownTask, described: DescribedTask) -> None:
    task.job, task.job_uuid, task.username = described.job, described.job_uuid, described.username
    task.save(update_fields=["job", "job_uuid", "username"])
    skip_numbers(described.job)


def skip_numbers(job: int) -> None:
    """See to it that no later job gets this number, or a lower one: it has been given to a job that is not here."""
    ((last,),) = run(_LAST_NUMBER)
    if last < job:
        skipped = min(job - last, MOST_SKIPPED)
        run(_SKIP, [skipped])
        log.warning("job_numbers_skipped", after=last, skipped=skipped)


def _fence_job(node: Node, task: UnknownTask) -> None:
    """Keep the job of an unknown task from running twice: hold it while it waits, or end the task where it runs."""
    if task.job is None or task.job_uuid is None:
        return
    job = Job.objects.filter(number=task.job, request__uuid=task.job_uuid).first()
    if job is None:
        return
    if job.state in ACTIVE and job.epoch >= task.epoch:
        task.stop_asked_at = timezone.now()
        task.stopped_because = f"Attempt {job.epoch} of its job has begun elsewhere"
        task.save(update_fields=["stop_asked_at", "stopped_because"])
        record(node, "node.unknown_task_stopped", f"{task.stopped_because}: job {job.number}")
    elif job.state in (PENDING | INTERRUPTED) - {JobState.HELD}:
        _hold(job, node, task)


def _hold(job: Job, node: Node, task: UnknownTask) -> None:
    text = (
        f"An attempt of it that the database does not know, number {task.epoch}, runs on {node.name}:"
        " an operator releases it once that has ended"
    )
    reason: dict[str, Any] = {
        "reason_code": ReasonCode.HELD_BY_ADMIN.value,
        "reason_category": CATEGORY[ReasonCode.HELD_BY_ADMIN].value,
        "reason_text": f"{text}.",
        "reason_details": {"by": "Muster", "reason": text, "since": timezone.now().isoformat()},
        "reason_at": timezone.now(),
    }
    try:
        move_job(job, JobState.HELD, because=f"held: {text}", held_by="admin", eligible_at=None, **reason)
    except (StaleJob, ImpossibleMove):  # it has just changed: the next call of the agent looks again
        log.info("job_not_held", job=job.number, state=job.state)


def _tasks(number: int) -> str:
    return f"{number} task" if number == 1 else f"{number} tasks"
