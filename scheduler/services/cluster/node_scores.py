"""Scores of nodes: from what ended there lately, how reliable and how fast each is. Planning reads them as columns."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import structlog
from django.conf import settings

from scheduler.agent.protocol import (
    NEVER_BEGAN,
    NOT_ISOLATED,
    NOT_RESTORED,
    NOT_UPLOADED,
    SHUT_DOWN,
)
from scheduler.core.forecast.node_scores import SUCCEEDED_ELSEWHERE, score_nodes
from scheduler.models import Cluster, Node, NodeScore
from scheduler.state.lifecycle.verdicts import NEVER_GIVEN, NEVER_STARTED
from scheduler.state.records import node_scores

log = structlog.get_logger(__name__)

#: What ended longer ago than this many half-lives is not read: it would count less than a sixteenth.
HALF_LIVES: Final = 4
#: What is written of the tasks of a node that counts as lost.
SILENT: Final = "Node %s stopped responding."
_ENDS: Final = node_scores.Ends(
    nothing=(SHUT_DOWN, NEVER_BEGAN, NEVER_GIVEN, NEVER_STARTED),
    failed_starts=(NOT_ISOLATED, NOT_RESTORED, NOT_UPLOADED),
    silent=SILENT,
)


def score_all() -> int:
    """Score the nodes of every cluster; answers how many scores are new or other. Safe to run at any time."""
    changed = 0
    for cluster_id in Cluster.objects.order_by("id").values_list("id", flat=True):
        try:
            changed += score_cluster(cluster_id=cluster_id)
        except Exception:
            log.exception("nodes_not_scored", cluster=cluster_id)
    return changed


def score_cluster(*, cluster_id: int) -> int:
    """Replace the scores of a cluster's nodes; none are kept while MUSTER_NODE_SCORE_HALF_LIFE_DAYS is 0.

    Answers how many are new or other than before. The planner is not woken: scores place the jobs of later cycles.
    """
    days = settings.MUSTER_NODE_SCORE_HALF_LIFE_DAYS
    if days <= 0:
        return node_scores.store_scores({}, cluster_id=cluster_id)
    half_life = timedelta(days=days)
    window = HALF_LIVES * half_life
    found = score_nodes(
        node_scores.people_on_nodes(
            cluster_id=cluster_id,
            half_life=half_life,
            window=window,
            ends=_ENDS,
            elsewhere=SUCCEEDED_ELSEWHERE,
        ),
        node_scores.outages_of_nodes(cluster_id=cluster_id, half_life=half_life, window=window),
        node_scores.runs_on_nodes(cluster_id=cluster_id, half_life=half_life, window=window),
    )
    return node_scores.store_scores(found, cluster_id=cluster_id)


@dataclass(frozen=True, slots=True)
class ObservedShown:
    """The scores of a node in words; `reliability` and `performance` are 0 to 100, None = unknown."""

    reliability: int | None
    performance: int | None
    attempts: int
    #: (how many, of what), of failures that count against the node.
    failures: tuple[tuple[int, str], ...]
    speed_percent: int | None
    compared_runs: int
    days: int
    updated_at: datetime


#: What counts against a node, by field of `NodeScore`.
_FAILURES: Final = (
    ("failed_starts", "failed to start"),
    ("lost", "lost with the node"),
    ("infrastructure", "ended by the agent or its supervisor"),
    ("succeeded_elsewhere", "failed here and succeeded on another node"),
    ("outages", "outages"),
)


def observed(node: Node) -> ObservedShown | None:
    """What was observed of a node; None where nothing was."""
    score: NodeScore | None = getattr(node, "score", None)
    if score is None:
        return None
    failures = tuple(
        (count, "outage" if (count, name) == (1, "outages") else words)
        for name, words in _FAILURES
        if (count := getattr(score, name))
    )
    return ObservedShown(
        score.reliability, score.performance, score.attempts, failures, score.speed_percent, score.compared_runs,
        days=round(HALF_LIVES * settings.MUSTER_NODE_SCORE_HALF_LIFE_DAYS), updated_at=score.updated_at,
    )  # fmt: skip
