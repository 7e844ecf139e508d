"""Time limits of running jobs: agents get the new limit, and budgets set aside what a longer one may use."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from django.db import IntegrityError, transaction
from django.db.models import Q

from infra.errors import Conflict
from scheduler import outbox
from scheduler.backends.registry import backend_of
from scheduler.models import Attempt, Job, Task
from scheduler.services.accounting.holds import hold_longer
from scheduler.services.changes.parse_change import is_longer
from scheduler.state.ledger import ledger

#: The first protocol of agents that take another time limit for what runs.
_SINCE_PROTOCOL: Final = 2


def lock_budgets(job: Job) -> None:
    """Lock the counters of the budgets that a running job is set aside of."""
    ledger.lock_periods(list(job.attempts.live().values_list("pk", flat=True)))


def follow(job: Job, before: Mapping[str, Any], *, at: datetime) -> None:
    """Have the processes of a job that runs end by its time limit, counted from their start, where that was changed.

    The new limit is written; `before` are the changed columns as they were.

    The order is repeated until the agents have it, however long one is away. Raises Conflict where a longer limit
    would not act, or where the budget has too little left; a shorter one acts in any case, as the server keeps it too.
    """
    if "time_limit_seconds" not in before or not job.is_active:
        return
    attempt = job.attempts.live().select_for_update(no_key=True).first()
    if attempt is None:
        return
    if is_longer(before["time_limit_seconds"], job.time_limit_seconds):
        _refuse_what_would_not_act(job, attempt)
        _hold_more(job, attempt, at=at)
    Attempt.objects.filter(pk=attempt.pk).update(limit_changed_at=at)
    nodes = Task.objects.filter(attempt=attempt, released_at=None).values_list("node_id", flat=True)
    outbox.announce(*{outbox.node_topic(node_id) for node_id in nodes})


def _refuse_what_would_not_act(job: Job, attempt: Attempt) -> None:
    if attempt.stop_asked_at is not None:
        raise Conflict(
            message=f"The processes of job {job.said_number} are being stopped already, whatever the limit is.",
            way_out="Wait until the job has ended or waits again, then change the limit or submit the job again.",
        )
    cluster = job.queue.cluster
    if not backend_of(cluster).capabilities.changes_limits:
        raise Conflict(
            message=f"The backend of cluster {cluster.slug} cannot make the time limit of a running job longer.",
            way_out="Requeue the job and change the limit while it waits.",
        )
    older = Task.objects.filter(
        Q(node__agent_protocol__lt=_SINCE_PROTOCOL), attempt=attempt, released_at=None
    ).values_list("node__name", flat=True)
    if (name := older.first()) is not None:
        raise Conflict(
            message=f"The agent of node {name} is too old to make the time limit of a running job longer.",
            way_out="Upgrade the agent of that node; its jobs go on. Then send the change again.",
        )


def _hold_more(job: Job, attempt: Attempt, *, at: datetime) -> None:
    ending = ledger.Ending(attempt.pk, job.number, job.project_id, job.user_id)
    try:
        with transaction.atomic():
            hold_longer(ending, now=at)
    except IntegrityError as error:
        if "budget passed" not in str(error):
            raise
        raise Conflict(
            message=f"The budget of project {job.project.slug} has too little left for the longer time limit.",
            way_out="Ask for a smaller increase, or have the budget raised.",
        ) from error
