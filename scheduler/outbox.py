"""Hints sent once the current transaction has committed: to live topics, waiting agents and the planner.

The rows are the truth: pages refetch, agents ask again and planners look every few seconds anyway, so a lost
hint costs time and nothing else; a broker that is down never fails a request.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

from infra import notifications
from infra.notifications import CHANNEL, QUOTAS_TOPIC, announce, announce_many, project_topic, user_topic

__all__ = [
    "CHANNEL", "CLUSTER_TOPIC", "QUEUES_TOPIC", "QUOTAS_TOPIC", "JobOwner", "announce", "announce_jobs",
    "announce_many", "job_topic", "log_topic", "node_topic", "project_topic", "user_topic", "wake_planner",
]  # fmt: skip


def job_topic(number: int) -> str:
    return f"job:{number}"


def log_topic(number: int) -> str:
    return f"log:{number}"


def node_topic(node_id: int) -> str:
    """The topic that the agent of this node waits for."""
    return f"node:{node_id}"


CLUSTER_TOPIC: Final = "cluster"
QUEUES_TOPIC: Final = "queues"


class JobOwner(Protocol):
    """A job with its owner: a model instance or a row with these names."""

    @property
    def number(self) -> int: ...

    @property
    def user_id(self) -> int: ...

    @property
    def project_id(self) -> int: ...


def announce_jobs(jobs: Iterable[JobOwner], *others: str) -> None:
    """Announce changed jobs after commit: to their pages, their owners, their projects and the queues.

    `others` are further topics of the same change. Without any job nothing is announced.
    """
    topics = {
        topic
        for job in jobs
        for topic in (job_topic(job.number), user_topic(job.user_id), project_topic(job.project_id))
    }
    if topics:
        announce_many(topics | {QUEUES_TOPIC, *others})


def wake_planner(cluster_id: int, *, trigger: str) -> None:
    """Ask for a cycle of this cluster after commit; several asks before it begins make one cycle."""
    notifications.wake_planners(cluster_id, trigger=trigger)
