"""Nodes that Muster takes out of service itself: where jobs of several people fail, and where a health check does."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any, Final, NamedTuple

import structlog
from django.conf import settings
from django.db import transaction
from django.db.models import Count, F, Q
from django.utils import timezone

from accounts.services import audit
from scheduler import outbox
from scheduler.core.lifecycle import FailureClass
from scheduler.models import DRAINED_BY_HEALTH_CHECK, DRAINED_BY_MUSTER, DRAINED_BY_QUARANTINE, Node
from scheduler.state.db.sql import run
from scheduler.state.lifecycle.verdicts import duration

log = structlog.get_logger(__name__)

#: Of a cluster's nodes, at most this part is in quarantine, and always one may be: a fault of all nodes, such as a
#: file server that is away, must not take the cluster out of service.
MOST_PERCENT: Final = 20
#: The exit code of a task that its node could not start.
_NOT_STARTED: Final = 126

#: The history of nodes, by whatever name its library gives the table.
_HISTORY: Final = Node.pgh_event_model._meta.db_table  # type: ignore[attr-defined]
#: A node's failures count from when it was drained last: what an operator has brought back begins anew.
_FAILURES: Final = f"""
SELECT t.node_id, count(DISTINCT j.user_id), count(*)
FROM scheduler_attempt a JOIN scheduler_task t ON t.attempt_id = a.id JOIN scheduler_job j ON j.number = a.job_id
    JOIN scheduler_node n ON n.id = t.node_id
WHERE a.ended_at > %(since)s AND a.failure_class <> '' AND t.state = 'failed' AND NOT n.draining AND NOT n.cordoned
    AND (a.failure_class = ANY(%(classes)s)
        OR (t.exit_code = %(not_started)s AND t.started_at IS NULL))
    AND a.scheduled_at > coalesce((SELECT max(e.pgh_created_at)
        FROM {_HISTORY} e
        WHERE e.pgh_obj_id = t.node_id AND e.draining), '-infinity')
GROUP BY t.node_id
HAVING count(DISTINCT j.user_id) >= %(people)s AND count(*) >= %(failures)s
ORDER BY 2 DESC, 3 DESC, 1
"""  # noqa: S608
_CLASSES: Final = [FailureClass.INFRASTRUCTURE.value, FailureClass.UNHEALTHY.value]


class _Failing(NamedTuple):
    """A node, and how many people's jobs have failed there how often."""

    node: int
    people: int
    failures: int


def quarantine_failing_nodes() -> list[str]:
    """Drain the nodes where jobs of several people failed lately; answers their names. Safe to run at any time."""
    people, window = settings.MUSTER_QUARANTINE_PEOPLE, settings.MUSTER_QUARANTINE_SECONDS
    if people < 1:
        return []
    found = run(
        _FAILURES,
        {
            "since": timezone.now() - timedelta(seconds=window),
            "classes": _CLASSES,
            "not_started": _NOT_STARTED,
            "people": people,
            "failures": max(people, settings.MUSTER_QUARANTINE_FAILURES),
        },
    )
    failing = [_Failing(*row) for row in found]
    room = _room() if failing else Counter()
    return [name for one in failing if (name := _quarantine(one, window, room))]


def _room() -> Counter[int]:
    """How many more nodes of each cluster may be put in quarantine."""
    rows = Node.objects.values("cluster_id").annotate(
        nodes=Count("pk"), away=Count("pk", filter=Q(draining=True, drained_by=DRAINED_BY_QUARANTINE))
    )
    return Counter(
        {row["cluster_id"]: max(1, row["nodes"] * MOST_PERCENT // 100) - row["away"] for row in rows}
    )


@transaction.atomic
def _quarantine(one: _Failing, window: int, room: Counter[int]) -> str:
    """Drain one node; "" where it drains already, or where too many nodes are in quarantine."""
    node = Node.objects.select_for_update(no_key=True).get(pk=one.node)
    if node.draining or node.cordoned:
        return ""
    if room[node.cluster_id] < 1:
        log.warning("node_not_quarantined", node=node.name, people=one.people, failures=one.failures)
        return ""
    room[node.cluster_id] -= 1
    reason = f"Jobs of {one.people} people failed here in {duration(window)}, {one.failures} in all"
    take_out(node, reason, DRAINED_BY_QUARANTINE)
    log.error("node_quarantined", node=node.name, people=one.people, failures=one.failures)
    record(node, "node.quarantine", reason)
    return node.name


def apply_health(node: Node, problem: str) -> None:
    """Drain a locked node whose health check failed, or bring back one that was drained for that.

    `problem` is "" where the check succeeded. A node that an operator has drained or cordoned is left alone. The last
    statement of the caller's transaction.
    """
    ours = node.draining and node.drained_by == DRAINED_BY_HEALTH_CHECK
    reason = f"Health check failed: {problem}"[:200]
    if problem and not node.draining and not node.cordoned:
        take_out(node, reason, DRAINED_BY_HEALTH_CHECK)
        log.error("node_unhealthy", node=node.name, problem=problem)
        record(node, "node.unhealthy", reason)
    elif problem and ours and node.drain_reason != reason:
        node.drain_reason = reason
        node.save(update_fields=["drain_reason"])
        outbox.announce(outbox.CLUSTER_TOPIC)
    elif not problem and ours:
        bring_back(node)
        log.info("node_healthy", node=node.name)
        record(node, "node.healthy", "Its health check succeeded")


def bring_back(node: Node) -> None:
    """Let a locked node that Muster has drained take jobs again."""
    node.draining, node.drain_reason, node.drained_by, node.drained_at = False, "", "", None
    _save(node)


def take_out(node: Node, reason: str, by: str) -> None:
    """Drain a locked node; `by` is one of `DRAINED_BY_MUSTER`."""
    node.draining, node.drain_reason, node.drained_by = True, reason[:200], by
    node.drained_at = timezone.now()
    _save(node)


def _save(node: Node) -> None:
    """Write the drain fields, and announce them."""
    Node.objects.filter(pk=node.pk).update(
        draining=node.draining, drain_reason=node.drain_reason, drained_by=node.drained_by,
        drained_at=node.drained_at, drain_deadline_at=None, generation=F("generation") + 1,
    )  # fmt: skip
    outbox.announce(outbox.CLUSTER_TOPIC, outbox.node_topic(node.pk))
    outbox.wake_planner(node.cluster_id, trigger="node")


def record(node: Node, action: str, reason: str) -> None:
    """Write down for the audit that Muster has drained a node, or has brought it back."""
    before: dict[str, Any] = {"draining": not node.draining}
    audit.record(
        by=None, action=action, thing=node, before=before, after={"draining": node.draining}, reason=reason
    )


def nodes_out_of_service() -> list[Node]:
    """Nodes that Muster has drained itself, by name."""
    return list(
        Node.objects.filter(draining=True, drained_by__in=DRAINED_BY_MUSTER).order_by("cluster_id", "name")
    )
