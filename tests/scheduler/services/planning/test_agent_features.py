"""What the agent of a node knows is part of whether a job fits there; everywhere people read why not."""

from __future__ import annotations

from typing import Any

import pytest
from django.utils import timezone
from pytest_django.fixtures import Settings

from accounts.services.secrets import set_secret
from scheduler.agent import OLDEST_PROTOCOL, PROTOCOL
from scheduler.core.snapshot import agent_features
from scheduler.core.snapshot.agent_features import FEATURES, in_words, known_by
from scheduler.models import Job, Node
from scheduler.services.execution.dispatch import orders_for
from scheduler.services.planning import shared_snapshot
from scheduler.services.planning.cycles import run_cycle
from scheduler.services.planning.explain import explain_job
from scheduler.services.planning.job_preview import preview_job
from tests.scheduler.portal import Portal, a_portal
from tests.support.factories import FolderUploadFactory

pytestmark = pytest.mark.django_db


@pytest.fixture
def portal(settings: Settings, tmp_path: Any) -> Portal:
    settings.MUSTER_STORAGE = tmp_path.as_uri()
    portal = a_portal()
    set_secret(owner=portal.cast.owner, name="token", value="a-secret-value", by=portal.cast.owner)
    speak(OLDEST_PROTOCOL, portal.n1, portal.n2)
    return portal


def speak(protocol: int, *nodes: Node) -> None:
    Node.objects.filter(pk__in=[node.pk for node in nodes]).update(agent_protocol=protocol)
    shared_snapshot.forget_snapshots()


def payload_for(feature: str, portal: Portal) -> dict[str, Any]:
    upload = FolderUploadFactory(user=portal.cast.owner)
    fields: dict[str, dict[str, Any]] = {
        "secrets": {"secrets": [{"name": "token", "env": "TOKEN"}]},
        "checkpoints": {"checkpoint": {}},
        "probes": {"probes": [{"kind": "file", "path": "beat", "limit": "10m"}]},
        "uploads": {"upload": str(upload.pk)},
        "artifacts": {"artifacts": ["a"]},
        "output files": {"standard_output": "out"},
        "signals": {"limit_signal": {}, "time_limit": "1h"},
    }
    return fields[feature]


@pytest.mark.parametrize("feature", FEATURES)
def test_a_job_starts_where_the_agent_knows_what_it_needs_and_says_why_not_elsewhere(
    portal: Portal, feature: str
) -> None:
    job = portal.submit(**payload_for(feature, portal))
    plain = portal.submit()
    run_cycle(cluster_id=portal.cluster.pk, trigger="test")
    job.refresh_from_db()
    plain.refresh_from_db()
    assert (job.state, plain.state) == ("queued", "scheduled")
    assert job.reason_text == (
        f"All 2 nodes that could hold the job run an agent older than needed for {feature}. Upgrade the agent."
    )
    why = explain_job(job=job, by=portal.cast.owner, nodes=True)
    assert job.reason_text in why.headline
    assert f"older than needed for {feature}" in why.node_table[0].sentence
    found = preview_job(payload={"command": "true", **payload_for(feature, portal)}, by=portal.cast.owner)
    assert job.reason_text in found.headline

    speak(PROTOCOL, portal.n2)
    run_cycle(cluster_id=portal.cluster.pk, trigger="test")
    job.refresh_from_db()
    assert job.state == "scheduled"
    assert list(job.attempts.get().tasks.values_list("node__name", flat=True)) == ["n2"]


@pytest.mark.parametrize("feature", FEATURES)
def test_an_agent_replaced_by_an_older_one_is_not_given_what_it_does_not_know(
    portal: Portal, feature: str
) -> None:
    """Between the plan and the moment in which the agent fetches the task."""
    speak(PROTOCOL, portal.n2)
    job = portal.submit(restart_policy="never", max_restarts=0, **payload_for(feature, portal))
    run_cycle(cluster_id=portal.cluster.pk, trigger="test")
    Node.objects.filter(pk=portal.n1.pk).update(cordoned=True)
    plain = portal.submit()
    run_cycle(cluster_id=portal.cluster.pk, trigger="test")
    speak(OLDEST_PROTOCOL, portal.n2)

    given = orders_for(Node.objects.get(pk=portal.n2.pk), {}).assignments

    assert [one["job"] for one in given] == [plain.number]
    job.refresh_from_db()
    attempt = job.attempts.get()
    assert (job.state, attempt.state) == ("queued", "lost")
    assert attempt.end_text == f"The job was put back: the agent is older than needed for {feature}: node n2."
    Job.objects.filter(pk=job.pk).update(eligible_at=timezone.now())
    run_cycle(cluster_id=portal.cluster.pk, trigger="test")
    job.refresh_from_db()
    assert job.reason_text == (
        f"All 2 nodes that could hold the job run an agent older than needed for {feature}. Upgrade the agent."
    )

    Node.objects.filter(pk=portal.n1.pk).update(cordoned=False)
    speak(PROTOCOL, portal.n1)
    run_cycle(cluster_id=portal.cluster.pk, trigger="test")
    given = orders_for(Node.objects.get(pk=portal.n1.pk), {}).assignments
    assert [one["job"] for one in given] == [job.number]


def test_the_words_and_bits_of_features() -> None:
    assert known_by(OLDEST_PROTOCOL) == 0
    assert known_by(PROTOCOL) == agent_features.ALL
    assert (
        in_words(FEATURES["secrets"] | FEATURES["probes"] | FEATURES["uploads"])
        == "secrets, probes and uploads"
    )
    assert in_words(FEATURES["probes"]) == "probes"
