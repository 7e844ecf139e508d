"""Makes rows agree with reality on a timer: silent nodes, overdue jobs, and work that a crash cut short."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import structlog
from django.conf import settings
from django.db import transaction
from django.utils import timezone

from scheduler import outbox
from scheduler.core.lifecycle import StopReason
from scheduler.services.cluster.heartbeats import DOOR_SCOPE
from scheduler.services.cluster.node_scores import SILENT
from scheduler.services.execution import dispatch
from scheduler.services.execution.reports import BATCH, announce_nodes_of
from scheduler.services.execution.slow_starts import note_slow_starts
from scheduler.services.jobs import deadlines
from scheduler.state.apply import suspension
from scheduler.state.db.sql import run
from scheduler.state.lifecycle import dependencies
from scheduler.state.records.node_scores import note_outages
from scheduler.state.settle import partial_failure
from scheduler.state.settle.release import attempts_with_ended_tasks, release_ended_tasks
from scheduler.state.settle.settle import Settled, attempts_to_settle, settle_many

log = structlog.get_logger(__name__)

#: Agents enforce time limits themselves; this much later the server asks for a stop on its own.
LIMIT_SLACK_SECONDS: Final = 30


@dataclass(frozen=True, slots=True)
class Reconciled:
    """What one run found; all zeros on a good day."""

    unknown_nodes: int = 0
    down_nodes: int = 0
    lost_attempts: int = 0
    settled_attempts: int = 0
    overdue_attempts: int = 0
    ended_waits: int = 0
    slow_starts: int = 0
    checked_limits: int = 0


def reconcile_all() -> Reconciled:
    """Do all that no message triggers; safe to run at any time, and several times at once."""
    unknown, down = _age_nodes()
    lost = _lose_attempts_of_down_nodes()
    _end_unstarted()
    suspension.suspend_attempts(suspension.attempts_to_suspend())
    suspension.stop_unsuspended(slack_seconds=LIMIT_SLACK_SECONDS)
    settled = settle_many(attempts_to_settle())
    release_ended_tasks(attempts_with_ended_tasks())
    overdue = _stop_overdue()
    waits = _end_waits()
    limits = deadlines.check_limits(at=timezone.now())
    return Reconciled(unknown, down, len(lost), len(settled), overdue, waits, note_slow_starts(), limits)


def _age_nodes() -> tuple[int, int]:
    """Make silent nodes unknown, then down; never while no web process could have received their messages."""
    grace = max(0, settings.MUSTER_NODE_LOST_SECONDS - settings.MUSTER_NODE_SILENT_SECONDS)
    age = (
        "UPDATE scheduler_node n SET state = %s, generation = n.generation + 1 FROM scheduler_nodeheartbeat h"
        " WHERE h.node_id = n.id AND n.state = ANY(%s)"
        " AND h.lease_expires_at < clock_timestamp() - make_interval(secs => %s) AND EXISTS ("
        "  SELECT 1 FROM scheduler_lease WHERE scope = %s AND expires_at > clock_timestamp())"
        " RETURNING n.name, n.cluster_id, n.id, n.cordoned OR n.draining"
    )
    with transaction.atomic():
        down = run(age, ["down", ["up", "unknown"], grace, DOOR_SCOPE])
        unknown = run(age, ["unknown", ["up"], 0, DOOR_SCOPE])
        for name, *_ in down:
            log.error("node_down", node=name)
        for name, *_ in unknown:
            log.warning("node_unknown", node=name)
        # A node that an operator has taken out of service may be switched off: that says nothing about it.
        note_outages([node for _, _, node, is_out_of_service in down if not is_out_of_service])
        if down or unknown:
            outbox.announce(outbox.CLUSTER_TOPIC)
            for cluster_id in {row[1] for row in (*down, *unknown)}:
                outbox.wake_planner(cluster_id, trigger="node")
    return len(unknown), len(down)


def _lose_attempts_of_down_nodes() -> list[Settled]:
    """End attempts of which a task ran on a node that is down, where their jobs cannot continue without it."""
    left = partial_failure.lose_with_down_nodes(at=timezone.now())
    release_ended_tasks(left)
    rows = run(
        "SELECT DISTINCT ON (a.id) a.id, a.epoch, n.name FROM scheduler_task t"
        " JOIN scheduler_node n ON n.id = t.node_id JOIN scheduler_attempt a ON a.id = t.attempt_id"
        " WHERE n.state = 'down' AND EXISTS (SELECT 1 FROM scheduler_nodeheartbeat h WHERE h.node_id = n.id)"
        " AND t.released_at IS NULL AND t.is_live AND a.is_live ORDER BY a.id"
    )
    settled: list[Settled] = []
    for first in range(0, len(rows), BATCH):
        batch = rows[first : first + BATCH]
        settled += settle_many(
            [row[0] for row in batch],
            lost={row[0]: SILENT % row[2] for row in batch},
            epochs={row[0]: row[1] for row in batch},
        )
    return settled


def _end_unstarted() -> None:
    """End tasks of stopped attempts that no agent has fetched."""
    stopped = run(
        "SELECT DISTINCT a.id FROM scheduler_attempt a JOIN scheduler_task t ON t.attempt_id = a.id"
        " WHERE t.released_at IS NULL AND a.is_live AND a.stop_asked_at IS NOT NULL AND t.state = 'assigned'"
    )
    if stopped:
        dispatch.end_unstarted([row[0] for row in stopped])


def _stop_overdue() -> int:
    """Stop attempts past their time limit whose agents have not; answers how many.

    Jobs that are locked are skipped until the next run: it waits for none. What an attempt was before its job was
    locked is looked at again.
    """
    with transaction.atomic():
        rows = run(
            "UPDATE scheduler_attempt SET stop_reason = %s, stop_asked_at = now()"
            " WHERE is_live AND stop_asked_at IS NULL AND suspended_at IS NULL AND id IN ("
            "  SELECT a.id FROM scheduler_attempt a JOIN scheduler_jobrequest r ON r.number = a.job_id"
            "   JOIN scheduler_job j ON j.number = a.job_id"
            "  WHERE a.id IN (SELECT t.attempt_id FROM scheduler_task t WHERE t.released_at IS NULL) AND a.is_live"
            "  AND a.stop_asked_at IS NULL AND a.suspended_at IS NULL AND a.started_at"
            "   + make_interval(secs => r.time_limit_seconds + a.suspended_ms / 1000 + %s) < now()"
            "  FOR NO KEY UPDATE OF j SKIP LOCKED) RETURNING id",
            [
                StopReason.TIME_LIMIT.value,
                settings.MUSTER_GRACE_SECONDS + LIMIT_SLACK_SECONDS,
            ],
        )  # fmt: skip
        announce_nodes_of([row[0] for row in rows])
    return len(rows)


def _end_waits() -> int:
    """End the waits of jobs whose time to wait for other jobs is over, and for arrays that are; answers how many."""
    with transaction.atomic():
        clusters, count = dependencies.expire_waits(at=timezone.now())
        clusters |= dependencies.resolve_arrays(at=timezone.now())
        for cluster_id in sorted(clusters):
            outbox.wake_planner(cluster_id, trigger="dependency")
    return count
