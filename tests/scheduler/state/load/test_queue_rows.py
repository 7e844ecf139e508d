"""Queues as the planner reads them."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from django.utils import timezone

from scheduler.models import Attempt, Cluster, Queue, Suspension
from scheduler.state.db.query import fetch
from scheduler.state.db.sql import run
from scheduler.state.load import queue_rows
from tests.support.factories import AttemptFactory, JobFactory, QueueFactory

pytestmark = pytest.mark.django_db

WORDS = {"which": queue_rows.QUEUES_OF_CLUSTER, "counted": "false", "lock": ""}


def preempted(cluster: Cluster) -> dict[int, int]:
    found = fetch(queue_rows.QUEUES, [cluster.pk], **WORDS)
    return dict(zip(found["id"], found["preempted_last_hour"], strict=True))


def _stopped(queue: Queue, *, minutes: int, **more: object) -> Attempt:
    at = timezone.now() - timedelta(minutes=minutes)
    return AttemptFactory(job=JobFactory(queue=queue), stopped_for=1, stop_asked_at=at, **more)


def test_what_was_preempted_in_the_last_hour_is_counted_by_queue() -> None:
    queue = QueueFactory()
    other = QueueFactory(cluster=queue.cluster)
    twice = _stopped(queue, minutes=5, state="failed")
    AttemptFactory(job=twice.job, epoch=2, stopped_for=1, stop_asked_at=twice.stop_asked_at)
    _stopped(queue, minutes=61)
    _stopped(other, minutes=59)
    AttemptFactory(job=JobFactory(queue=queue), stop_asked_at=timezone.now())
    for minutes in (10, 70):
        Suspension.objects.create(
            attempt=AttemptFactory(job=JobFactory(queue=queue)), for_job=1, for_epoch=1, cpu_millis=1,
            asked_at=timezone.now() - timedelta(minutes=minutes),
        )  # fmt: skip

    assert preempted(queue.cluster) == {queue.pk: 3, other.pk: 1}


def test_no_queue_is_asked_for_all_jobs_that_it_ever_had() -> None:
    """Of tables without statistics, too: those of a database that has just begun."""
    queue = QueueFactory()

    plan = run(f"EXPLAIN {queue_rows.QUEUES.sql(**WORDS)}", [queue.cluster_id])

    text = "\n".join(line for (line,) in plan)
    assert "scheduler_job" in text
    assert not re.search(r"on scheduler_job\b.*\n\s+[\w ]+: \(.*queue_id = queue\.id", text), text
