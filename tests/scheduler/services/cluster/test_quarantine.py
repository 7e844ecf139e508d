"""Nodes that Muster takes out of service itself, and how they come back."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone
from pytest_django.fixtures import Settings

from accounts.models import AuditEvent, User
from config import health
from notifications.services import findings
from scheduler import labels
from scheduler.core.lifecycle import JobState
from scheduler.models import Attempt, Cluster, Node
from scheduler.services.cluster.nodes import drain_node, uncordon_node
from scheduler.services.cluster.quarantine import apply_health, quarantine_failing_nodes
from tests.support.factories import (
    AttemptFactory,
    ClusterFactory,
    JobFactory,
    NodeFactory,
    OperatorFactory,
    TaskFactory,
    UserFactory,
)

pytestmark = pytest.mark.django_db


@pytest.fixture
def cluster(settings: Settings) -> Cluster:
    settings.MUSTER_QUARANTINE_PEOPLE = 3
    settings.MUSTER_QUARANTINE_FAILURES = 4
    settings.MUSTER_QUARANTINE_SECONDS = 600
    return ClusterFactory()


@pytest.fixture
def people() -> list[User]:
    return [UserFactory() for _ in range(3)]


def fail(
    node: Node, user: User, *, failure: str = "infrastructure", ago: int = 60, **task: object
) -> Attempt:
    """A job of this person that failed on this node."""
    end = timezone.now() - timedelta(seconds=ago)
    job = JobFactory(user=user, state=JobState.FAILED, epoch=1, completed_at=end)
    attempt = AttemptFactory(
        job=job, state="failed", failure_class=failure, scheduled_at=end - timedelta(seconds=5), ended_at=end
    )
    words = {"state": "failed", "exit_code": 1, "started_at": end - timedelta(seconds=4)} | task
    TaskFactory(attempt=attempt, node=node, **words)
    return attempt


def test_a_node_where_jobs_of_three_people_fail_takes_no_more(cluster: Cluster, people: list[User]) -> None:
    bad, good = NodeFactory(cluster=cluster), NodeFactory(cluster=cluster)
    for person in [*people, people[0]]:
        fail(bad, person)
    fail(good, people[0])
    before = bad.generation

    assert quarantine_failing_nodes() == [bad.name]

    bad.refresh_from_db()
    good.refresh_from_db()
    assert (bad.draining, bad.in_quarantine, bad.schedulable, good.schedulable) == (True, True, False, True)
    assert bad.drain_reason == "Jobs of 3 people failed here in 10 min, 4 in all"
    assert bad.generation > before
    assert labels.node_label(bad).word == "quarantined"
    assert AuditEvent.objects.get(action="node.quarantine").actor is None
    assert quarantine_failing_nodes() == []  # once


@pytest.mark.parametrize(
    ("failure", "task", "counts"),
    [
        ("unhealthy", {}, True),
        ("user-error", {"exit_code": 126, "started_at": None}, True),
        ("user-error", {"exit_code": 126}, False),
        ("user-error", {}, False),
        ("out-of-memory", {}, False),
        ("time-limit", {}, False),
        ("infrastructure", {"ago": 700}, False),
    ],
)
def test_what_counts_as_the_nodes_fault(
    cluster: Cluster, people: list[User], failure: str, task: dict, counts: bool
) -> None:
    node = NodeFactory(cluster=cluster)
    for person in people * 2:
        fail(node, person, failure=failure, **task)
    assert quarantine_failing_nodes() == ([node.name] if counts else [])


def test_failures_of_two_people_or_too_few_are_not_the_nodes(cluster: Cluster, people: list[User]) -> None:
    two, few = NodeFactory(cluster=cluster), NodeFactory(cluster=cluster)
    for person in people[:2] * 5:
        fail(two, person)
    for person in people:
        fail(few, person)
    assert quarantine_failing_nodes() == []


def test_nobody_is_quarantined_where_the_site_says_never(
    cluster: Cluster, people: list[User], settings: Settings
) -> None:
    settings.MUSTER_QUARANTINE_PEOPLE = 0
    node = NodeFactory(cluster=cluster)
    for person in people * 2:
        fail(node, person)
    assert quarantine_failing_nodes() == []


def test_a_fault_of_all_nodes_leaves_most_of_them_in_service(cluster: Cluster, people: list[User]) -> None:
    nodes = [NodeFactory(cluster=cluster) for _ in range(10)]
    for node in nodes:
        for person in people * 2:
            fail(node, person)
    assert len(quarantine_failing_nodes()) == 2
    assert quarantine_failing_nodes() == []


def test_what_an_operator_brings_back_begins_anew(cluster: Cluster, people: list[User]) -> None:
    node = NodeFactory(cluster=cluster)
    for person in people * 2:
        fail(node, person)
    quarantine_failing_nodes()

    uncordon_node(node=node, by=OperatorFactory(), reason="new disk")
    node.refresh_from_db()
    assert node.schedulable
    assert quarantine_failing_nodes() == []

    for person in people * 2:
        fail(node, person, ago=-60)
    assert quarantine_failing_nodes() == [node.name]


def test_operators_and_the_health_page_are_notified(cluster: Cluster, people: list[User]) -> None:
    operator, node = OperatorFactory(), NodeFactory(cluster=cluster)
    for person in people * 2:
        fail(node, person)
    quarantine_failing_nodes()

    now = timezone.now()
    findings.look(now=now)
    findings.look(now=now)

    assert operator.notifications.filter(kind="node.down").count() == 1
    assert "Jobs of 3 people failed here" in operator.notifications.get(kind="node.down").text
    [check] = [one for one in health.run_checks() if one.name == "nodes"]
    assert (check.ok, check.needed) == (False, False)
    assert node.name in check.text


# ---------------------------------------------------------------- the site's health check


def locked(node: Node) -> Node:
    return Node.objects.select_for_update(no_key=True).get(pk=node.pk)


def test_a_failed_health_check_drains_and_a_good_one_brings_back(cluster: Cluster) -> None:
    node = NodeFactory(cluster=cluster)

    apply_health(locked(node), "disk is read-only")
    apply_health(locked(node), "disk is gone")
    node.refresh_from_db()
    assert (node.draining, node.drain_reason) == (True, "Health check failed: disk is gone")
    assert (node.drained_by_words, node.in_quarantine) == ("Muster", False)

    apply_health(locked(node), "")
    node.refresh_from_db()
    assert node.schedulable
    assert node.drain_reason == ""
    actions = (
        AuditEvent.objects.filter(action__startswith="node.").order_by("pk").values_list("action", flat=True)
    )
    assert list(actions) == ["node.unhealthy", "node.healthy"]


def test_a_good_health_check_does_not_undo_what_others_drained(cluster: Cluster) -> None:
    node = NodeFactory(cluster=cluster)
    drain_node(node=node, by=OperatorFactory(), reason="maintenance")
    apply_health(locked(node), "bad")
    apply_health(locked(node), "")
    node.refresh_from_db()
    assert (node.draining, node.drain_reason) == (True, "maintenance")
