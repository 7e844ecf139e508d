"""Queues: operators pause and resume them and set their limits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from django.db import transaction
from django.utils import timezone

from accounts import permissions
from accounts.models import User
from accounts.services import audit
from infra.errors import Conflict
from scheduler import outbox
from scheduler.core.snapshot.node_isolation import IsolationLevel
from scheduler.models import Queue
from scheduler.services.submission.fields import MAX_SECONDS, Inputs
from scheduler.services.submission.job_spec import MAX_ASSEMBLY_SECONDS

#: Limits that an operator may set: name, least, most. null removes a limit.
LIMITS: Final[dict[str, tuple[int, int]]] = {
    "max_concurrent_jobs": (0, 10_000_000),
    "max_pending_jobs": (0, 10_000_000),
    "default_wall_seconds": (1, MAX_SECONDS),
    "max_wall_seconds": (1, MAX_SECONDS),
    "default_wait_seconds": (1, MAX_SECONDS),
    "default_assembly_seconds": (1, MAX_ASSEMBLY_SECONDS),
    "preference_wait_seconds": (1, MAX_SECONDS),
    "results_days": (0, 36_500),
    "results_job_mib": (0, 2**31 - 1),
    "scratch_mib": (0, 2**31 - 1),
}
PRIORITY: Final = (0, 100)


@transaction.atomic
def pause_queue(*, queue: Queue, by: User, reason: str) -> Queue:
    """Start no more jobs of this queue; running jobs continue, and jobs may still be submitted."""
    permissions.require(by, "operate", queue)
    inputs = Inputs({"reason": reason})
    if not inputs.text("reason", most=200):
        inputs.wrong("reason", "Required: the pending jobs of the queue show it.", code="required")
    inputs.finish("The queue was not paused")
    queue = _locked(queue)
    if queue.paused:
        return queue
    queue.paused, queue.paused_reason = True, reason.strip()
    queue.paused_by, queue.paused_at = by.username, timezone.now()
    return _saved(queue, by, "queue.pause", before={"paused": False}, after={"paused": True}, reason=reason)


@transaction.atomic
def resume_queue(*, queue: Queue, by: User, reason: str = "") -> Queue:
    """Let the jobs of a paused queue start again."""
    permissions.require(by, "operate", queue)
    queue = _locked(queue)
    if not queue.paused:
        return queue
    was = {"paused": True, "paused_reason": queue.paused_reason, "paused_by": queue.paused_by}
    queue.paused, queue.paused_reason, queue.paused_by, queue.paused_at = False, "", "", None
    return _saved(queue, by, "queue.resume", before=was, after={"paused": False}, reason=reason)


@transaction.atomic
def edit_queue(
    *,
    queue: Queue,
    changes: Mapping[str, Any],
    by: User,
    reason: str = "",
    expected_generation: int | None = None,
) -> Queue:
    """Change a queue's priority and limits; running jobs keep their resources."""
    permissions.require(by, "operate", queue)
    queue = _locked(queue)
    if expected_generation is not None and expected_generation != queue.generation:
        raise Conflict(
            message=f"Queue {queue.slug} has changed since you read it.",
            code="stale",
            status=412,
            way_out="Read the queue again and repeat your change.",
        )
    wanted = _read(changes, queue)
    before, after = audit.changed({name: getattr(queue, name) for name in wanted}, wanted)
    if not after:
        return queue
    for name, value in after.items():
        setattr(queue, name, value)
    return _saved(queue, by, "queue.edit", before=before, after=after, reason=reason)


def _read(changes: Mapping[str, Any], queue: Queue) -> dict[str, Any]:
    inputs = Inputs(changes)
    inputs.refuse_unknown([*LIMITS, "priority", "results_until_fetched", "isolation"])
    wanted: dict[str, Any] = {}
    for name, (least, most) in {**LIMITS, "priority": PRIORITY}.items():
        if name not in changes:
            continue
        wanted[name] = inputs.integer(name, least=least, most=most)
        if name == "priority" and wanted[name] is None and not inputs.problems:
            inputs.wrong("priority", "Must be a number from 0 to 100.", code="required")
    if "results_until_fetched" in changes:
        value = changes["results_until_fetched"]
        if value is not None and not isinstance(value, bool):
            inputs.wrong("results_until_fetched", "Must be true, false or null.", code="not-a-flag")
        wanted["results_until_fetched"] = value
    if "isolation" in changes:
        if changes["isolation"] not in list(IsolationLevel):
            inputs.wrong("isolation", 'Must be "" (any node), "partial" or "strict".', code="unknown-choice")
        wanted["isolation"] = changes["isolation"]
    whole = {name: getattr(queue, name) for name in LIMITS} | wanted
    default, longest = whole["default_wall_seconds"], whole["max_wall_seconds"]
    if default is not None and longest is not None and default > longest:
        inputs.wrong(
            "default_wall_seconds",
            f"Is {default}, more than max_wall_seconds, {longest}.",
            code="inconsistent",
        )
    inputs.finish("The queue was not changed")
    return wanted


def _locked(queue: Queue) -> Queue:
    return Queue.objects.select_for_update(of=("self",)).select_related("cluster", "project").get(pk=queue.pk)


def _saved(
    queue: Queue, by: User, action: str, *, before: dict[str, Any], after: dict[str, Any], reason: str
) -> Queue:
    queue.generation += 1
    queue.save()
    outbox.announce(outbox.QUEUES_TOPIC)
    outbox.wake_planner(queue.cluster_id, trigger="queue")
    audit.record(
        by=by, action=action, thing=queue, before=before, after=after, reason=reason, project=queue.project
    )
    return queue
