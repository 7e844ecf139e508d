"""Who gets which page: the cast at every address."""

from __future__ import annotations

from copy import deepcopy
from types import SimpleNamespace

import pytest
from django.urls import reverse

from accounts.models import AuditEvent
from scheduler.core.lifecycle import JobState
from tests.scheduler.web.conftest import a_world
from tests.support.factories import QueueFactory
from tests.support.kept import made_once

OPEN_PAGES = [
    "home",
    "submit",
    "jobs",
    "cluster",
    "queues",
    "quota",
    "usage",
    "ledger",
    "tokens",
    "settings",
    "projects",
]
PEOPLE = ["owner", "colleague", "lead", "viewer", "stranger", "operator", "auditor", "admin"]

one_world = made_once(a_world)


@pytest.fixture
def world(one_world: SimpleNamespace, db: None) -> SimpleNamespace:
    return deepcopy(one_world)


@pytest.mark.parametrize("name", [*OPEN_PAGES, "audit"])
def test_a_page_asks_those_who_are_not_signed_in_to_sign_in(client, db, name) -> None:
    response = client.get(reverse(name))

    assert response.status_code == 302
    assert response.headers["Location"] == f"{reverse('signin')}?next={reverse(name)}"


@pytest.mark.parametrize("name", ["home", "jobs", "cluster", "queues", "quota"])
def test_a_refresh_of_a_part_is_refused_rather_than_sent_to_sign_in(client, db, name) -> None:
    response = client.get(reverse(name), {"partial": "1"})

    assert response.status_code == 401


@pytest.mark.parametrize("person", PEOPLE)
@pytest.mark.parametrize("name", OPEN_PAGES)
def test_everybody_gets_the_pages_for_everybody(as_user, world, person, name) -> None:
    response = as_user(getattr(world.cast, person)).get(reverse(name))

    assert response.status_code == 200


@pytest.mark.parametrize(
    ("person", "status"),
    [("owner", 200), ("colleague", 200), ("lead", 200), ("viewer", 200), ("stranger", 404), ("operator", 200),
     ("auditor", 200), ("admin", 200)],
)  # fmt: skip
@pytest.mark.parametrize("tab", ["", "overview", "why", "log", "events"])
def test_a_job_is_there_for_its_project_and_for_nobody_else(as_user, world, person, status, tab) -> None:
    response = as_user(getattr(world.cast, person)).get(reverse("job", args=[world.job.number]), {"tab": tab})

    assert response.status_code == status


@pytest.mark.parametrize(
    ("person", "status", "state"),
    [("owner", 302, "cancelled"), ("colleague", 403, "queued"), ("lead", 302, "cancelled"),
     ("viewer", 403, "queued"), ("stranger", 404, "queued"), ("operator", 302, "cancelled"),
     ("auditor", 403, "queued")],
)  # fmt: skip
def test_who_may_cancel_a_job(as_user, world, person, status, state) -> None:
    response = as_user(getattr(world.cast, person)).post(
        reverse("job-act", args=[world.job.number, "cancel"])
    )

    world.job.refresh_from_db()
    assert (response.status_code, world.job.state) == (status, state)


def test_a_refused_cancel_is_in_the_audit_trail(as_user, world) -> None:
    as_user(world.cast.colleague).post(reverse("job-act", args=[world.job.number, "cancel"]))

    event = AuditEvent.objects.get(outcome="denied")
    assert (event.actor_name, event.object_id) == ("colleague", str(world.job.pk))


@pytest.mark.parametrize("verb", ["cancel", "hold", "release", "requeue"])
def test_nothing_changes_by_get(as_user, world, verb) -> None:
    response = as_user(world.cast.owner).get(reverse("job-act", args=[world.job.number, verb]))

    world.job.refresh_from_db()
    assert (response.status_code, world.job.state) == (405, JobState.QUEUED)


@pytest.mark.parametrize(("person", "status"), [("owner", 403), ("lead", 403), ("stranger", 404)])
def test_only_operators_boost_a_job(as_user, world, person, status) -> None:
    client = as_user(getattr(world.cast, person))

    response = client.post(
        reverse("job-act", args=[world.job.number, "boost"]), {"points": "20", "hours": "2", "reason": "x"}
    )

    world.job.refresh_from_db()
    assert (response.status_code, world.job.boost) == (status, 0)
    if status == 403:
        assert "boost-dialog" not in client.get(reverse("job", args=[world.job.number])).content.decode()


def test_an_operator_boosts_a_job_and_everybody_sees_until_when(as_user, world) -> None:
    client = as_user(world.cast.operator)
    address = reverse("job", args=[world.job.number])
    assert "boost-dialog" in client.get(address).content.decode()

    client.post(
        reverse("job-act", args=[world.job.number, "boost"]), {"points": "20", "hours": "2", "reason": "x"}
    )
    nonsense = client.post(
        reverse("job-act", args=[world.job.number, "boost"]), {"points": "many", "hours": "2", "reason": "x"},
        follow=True,
    )  # fmt: skip

    world.job.refresh_from_db()
    assert world.job.boost_now == 20
    assert "+ 20 until" in as_user(world.cast.colleague).get(address + "?tab=overview").content.decode()
    assert "a boost cannot raise the priority above" in nonsense.content.decode()


@pytest.mark.parametrize("person", ["owner", "lead", "stranger", "auditor"])
def test_only_operators_drain_a_node(as_user, world, person) -> None:
    response = as_user(getattr(world.cast, person)).post(
        reverse("node-act", args=[world.gpu.pk, "drain"]), {"reason": "fan"}
    )

    world.gpu.refresh_from_db()
    assert (response.status_code, world.gpu.draining) == (403, False)


def test_an_operator_drains_a_node_with_a_reason_and_takes_it_back(as_user, world) -> None:
    client = as_user(world.cast.operator)

    client.post(reverse("node-act", args=[world.gpu.pk, "drain"]), {"reason": "replace a fan"})
    drained = client.get(reverse("node", args=[world.gpu.pk])).content.decode()
    client.post(reverse("node-act", args=[world.gpu.pk, "uncordon"]))

    world.gpu.refresh_from_db()
    assert "replace a fan" in drained
    assert "draining" in drained
    assert world.gpu.schedulable


def test_a_drain_without_a_reason_is_sent_back_with_words(as_user, world) -> None:
    response = as_user(world.cast.operator).post(
        reverse("node-act", args=[world.gpu.pk, "drain"]), {"reason": ""}, follow=True
    )

    world.gpu.refresh_from_db()
    assert not world.gpu.draining
    assert "reason" in response.content.decode().lower()


def test_an_operator_pauses_a_queue_and_everybody_reads_why(as_user, world) -> None:
    as_user(world.cast.operator).post(
        reverse("queue-act", args=[world.queue.pk, "pause"]), {"reason": "power cut at noon"}
    )

    page = as_user(world.cast.owner).get(reverse("queues")).content.decode()
    assert "power cut at noon" in page
    assert "operator" in page


def test_a_queue_of_another_project_is_not_listed(as_user, world) -> None:
    QueueFactory(cluster=world.cluster, slug="secret", project=world.cast.project)

    assert "secret" not in as_user(world.cast.stranger).get(reverse("queues")).content.decode()
    assert "secret" in as_user(world.cast.owner).get(reverse("queues")).content.decode()


@pytest.mark.parametrize(
    ("person", "status"), [("owner", 403), ("operator", 403), ("auditor", 200), ("admin", 200)]
)
def test_the_audit_trail_is_for_auditors(as_user, world, person, status) -> None:
    assert as_user(getattr(world.cast, person)).get(reverse("audit")).status_code == status


def test_the_map_hides_whose_jobs_of_other_projects_are(as_user, world) -> None:
    from tests.scheduler.web.conftest import a_running_job

    job = a_running_job(world, name="top secret model")

    stranger = as_user(world.cast.stranger).get(reverse("cluster")).content.decode()
    owner = as_user(world.cast.owner).get(reverse("cluster")).content.decode()

    assert "top secret model" not in stranger
    assert "a job of another project" in stranger
    assert f"job {job.number} top secret model of owner" in owner
