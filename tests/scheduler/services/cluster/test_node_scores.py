"""Scores of nodes from rows: what counts against a node, what does not, and where it is shown and acted on."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone
from pytest_django.fixtures import Settings
from rest_framework.test import APIClient

from accounts.models import User
from scheduler.agent.protocol import NOT_ISOLATED, SHUT_DOWN
from scheduler.core.lifecycle import JobState
from scheduler.models import Attempt, Job, Node, NodeHeartbeat, NodeOutage, NodeScore
from scheduler.services.cluster import heartbeats
from scheduler.services.cluster.node_scores import score_all, score_cluster
from scheduler.services.execution.reconcile import reconcile_all
from scheduler.services.planning.cycles import run_cycle
from scheduler.services.planning.explain import explain_job
from scheduler.tasks import score_nodes
from tests.scheduler.portal import Portal, a_portal
from tests.support.factories import (
    AttemptFactory,
    JobFactory,
    NodeFactory,
    SchedulerProfileFactory,
    TaskFactory,
    UserFactory,
    a_token,
)

pytestmark = pytest.mark.django_db


@pytest.fixture
def portal(db: None) -> Portal:
    """Two nodes alike, and one with GPUs."""
    portal = a_portal()
    NodeFactory(cluster=portal.cluster, name="n3", partition=portal.cluster.partitions.get())
    return portal


def ended(
    portal: Portal,
    *nodes: Node,
    state: str = "succeeded",
    job: Job | None = None,
    user: User | None = None,
    name: str = "train",
    seconds: int = 60,
    days: float = 0.1,
    failure: str = "",
    task: str = "",
    text: str = "",
    **task_words: Any,
) -> Job:
    """An attempt that ended so, with a task on each of these nodes."""
    end = timezone.now() - timedelta(days=days)
    job = job or JobFactory(
        user=user or portal.cast.owner,
        queue=portal.queue,
        name=name,
        state=JobState.COMPLETED,
        epoch=0,
        completed_at=end,
    )
    Job.objects.filter(pk=job.pk).update(epoch=job.epoch + 1)
    job.refresh_from_db()
    began = end - timedelta(seconds=seconds)
    attempt = AttemptFactory(
        job=job, state=state, failure_class=failure, scheduled_at=began, started_at=began, ended_at=end
    )
    for rank, node in enumerate(nodes):
        words = {"started_at": began, "exit_code": 0 if state == "succeeded" else 1} | task_words
        TaskFactory(attempt=attempt, node=node, rank=rank, state=task or state, end_text=text, **words)
    return job


def score(node: Node) -> NodeScore:
    return NodeScore.objects.get(node=node)


def n3() -> Node:
    return Node.objects.get(name="n3")


AGAINST = [
    ({"state": "lost", "failure": "node-lost", "text": "Node n1 stopped responding."}, "lost"),
    ({"state": "lost", "failure": "node-lost", "text": "The machine was started again."}, "lost"),
    ({"state": "lost", "failure": "infrastructure", "text": NOT_ISOLATED}, "failed_starts"),
    ({"state": "failed", "failure": "user-error", "exit_code": 126, "started_at": None}, "failed_starts"),
    (
        {"state": "failed", "failure": "infrastructure", "text": "The supervisor was killed."},
        "infrastructure",
    ),
]
NOT_AGAINST = [
    {"state": "failed", "failure": "user-error"},
    {"state": "failed", "failure": "out-of-memory"},
    {"state": "failed", "failure": "time-limit"},
    {"state": "lost", "failure": "infrastructure", "text": SHUT_DOWN},
    {"state": "lost", "failure": "node-lost", "text": "Node n2 stopped responding."},  # of a job on both
    {"state": "stopped", "failure": "preempted"},
]


@pytest.mark.parametrize(("words", "counted"), AGAINST)
def test_a_failure_for_the_nodes_sake_counts_against_it(
    portal: Portal, words: dict[str, Any], counted: str
) -> None:
    for node in (portal.n1, n3()):
        ended(portal, node)
    ended(portal, portal.n1, **words)

    score_cluster(cluster_id=portal.cluster.pk)

    found = score(portal.n1)
    assert (getattr(found, counted), found.attempts) == (1, 2)
    assert found.failed_starts + found.lost + found.infrastructure + found.succeeded_elsewhere == 1
    assert (found.reliability or 0) < (score(n3()).reliability or 0)


def test_a_failure_of_the_jobs_own_does_not(portal: Portal) -> None:
    ended(portal, portal.n1)
    for words in NOT_AGAINST:
        ended(portal, portal.n1, **words)

    score_cluster(cluster_id=portal.cluster.pk)

    found = score(portal.n1)
    assert (found.reliability, found.attempts) == (
        100,
        4,
    )  # those that make no point of the node are not counted
    assert found.failed_starts + found.lost + found.infrastructure + found.succeeded_elsewhere == 0


def test_a_job_that_succeeds_on_another_node_counts_half_against_the_first(portal: Portal) -> None:
    third = n3()
    job = ended(portal, portal.n1, state="failed", failure="user-error", days=0.2)
    ended(portal, third, job=job)
    again = ended(portal, third, state="failed", failure="user-error", days=0.2)
    ended(portal, third, job=again)  # on the same node: the job's own affair

    score_cluster(cluster_id=portal.cluster.pk)

    assert (score(portal.n1).succeeded_elsewhere, score(third).succeeded_elsewhere) == (1, 0)
    assert (score(portal.n1).reliability or 0) < (score(third).reliability or 0)


def test_an_old_failure_counts_less_and_in_the_end_nothing(portal: Portal, settings: Settings) -> None:
    settings.MUSTER_NODE_SCORE_HALF_LIFE_DAYS = 7
    lost = {"state": "lost", "failure": "node-lost", "text": "Node n1 stopped responding."}
    points = []
    for days in (1, 14, 29):
        NodeScore.objects.all().delete()
        Attempt.objects.all().delete()
        for node in (portal.n1, n3()):
            for _ in range(3):
                ended(portal, node)
        ended(portal, portal.n1, days=days, **lost)
        score_cluster(cluster_id=portal.cluster.pk)
        points.append(score(portal.n1).reliability)

    assert points[0] < points[1] < points[2] == 100


def test_runs_are_compared_with_those_of_the_same_kind_on_nodes_of_the_same_type(portal: Portal) -> None:
    third = n3()
    for _ in range(4):
        ended(portal, portal.n1, seconds=100)
        ended(portal, third, seconds=300)
        ended(portal, portal.n2, seconds=900)  # another type: it has GPUs
        ended(portal, portal.n1, seconds=5000, name="other")
        ended(portal, third, seconds=3, name="short")
        ended(portal, portal.n1, seconds=9, name="short")

    score_cluster(cluster_id=portal.cluster.pk)

    assert (score(portal.n1).performance or 0) > 50 > (score(third).performance or 0)
    assert (score(portal.n1).compared_runs, score(third).compared_runs) == (4, 4)
    assert (score(portal.n2).performance, score(portal.n2).reliability) == (None, 100)


def test_a_run_that_goes_on_from_an_earlier_attempt_is_not_compared(portal: Portal) -> None:
    third = n3()
    ended(portal, third, seconds=300)
    job = ended(portal, portal.n1, state="failed", failure="user-error", days=0.2)
    ended(portal, portal.n1, job=job, seconds=20)

    score_cluster(cluster_id=portal.cluster.pk)

    assert score(third).performance is None


def test_scores_that_do_not_change_are_not_written_and_0_keeps_none(
    portal: Portal, settings: Settings
) -> None:
    ended(portal, portal.n1)

    assert score_all() == 1
    before = score(portal.n1).updated_at
    score_nodes()
    assert score(portal.n1).updated_at == before
    settings.MUSTER_NODE_SCORE_HALF_LIFE_DAYS = 0
    score_all()
    assert not NodeScore.objects.exists()


def test_a_node_that_is_lost_in_service_has_an_outage(portal: Portal) -> None:
    heartbeats.keep_door_open()
    Node.objects.filter(name="n2").update(cordoned=True)
    for node, seconds in ((portal.n1, 1000), (portal.n2, 1000), (n3(), -30)):
        NodeHeartbeat.objects.update_or_create(
            node=node,
            defaults={
                "last_seen_at": timezone.now(),
                "lease_expires_at": timezone.now() - timedelta(seconds=seconds),
            },
        )

    reconcile_all()
    reconcile_all()

    assert [outage.node for outage in NodeOutage.objects.all()] == [portal.n1]
    ended(portal, n3())
    score_cluster(cluster_id=portal.cluster.pk)
    assert score(portal.n1).outages == 1
    assert (score(portal.n1).reliability or 0) < (score(n3()).reliability or 0)
    NodeOutage.objects.update(began_at=timezone.now() - timedelta(days=60))
    score_cluster(cluster_id=portal.cluster.pk)
    assert not NodeOutage.objects.exists()
    assert not NodeScore.objects.filter(node=portal.n1).exists()


def test_the_preset_places_jobs_by_it_and_every_door_shows_the_numbers(portal: Portal) -> None:
    Node.objects.filter(name="n2").update(cordoned=True)
    for user in [UserFactory() for _ in range(3)]:
        ended(
            portal,
            portal.n1,
            user=user,
            state="lost",
            failure="node-lost",
            text="Node n1 stopped responding.",
        )
        ended(portal, n3(), user=user)
    score_cluster(cluster_id=portal.cluster.pk)
    default = portal.submit()
    run_cycle(cluster_id=portal.cluster.pk, trigger="test")
    portal.cluster.profile = SchedulerProfileFactory(placement="multi-criteria")
    portal.cluster.save()

    job = portal.submit()
    run_cycle(cluster_id=portal.cluster.pk, trigger="test")

    assert default.attempts.get().tasks.get().node == portal.n1  # the default placement does not look at it
    assert job.attempts.get().tasks.get().node == n3()
    job.refresh_from_db()
    basis = explain_job(job=job, by=portal.cast.owner).placement
    assert basis is not None
    assert basis.exact
    assert {node.name: node.parts["reliability"] for node in basis.nodes} == {
        "n1": score(portal.n1).reliability, "n3": score(n3()).reliability,
    }  # fmt: skip
    client = APIClient()
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {a_token(portal.cast.owner, 'admin')}")
    shown = client.get("/api/v1/nodes/n1").json()["observed"]
    assert (shown["reliability"], shown["lost"], shown["attempts"]) == (score(portal.n1).reliability, 3, 3)
    assert client.get("/api/v1/nodes/n2").json()["observed"] is None
    browser = Client()
    browser.force_login(portal.cast.owner)
    page = browser.get(f"/nodes/{portal.n1.pk}/").content.decode()
    assert f"Reliability {score(portal.n1).reliability} of 100" in page
    assert "3 lost with the node" in page
