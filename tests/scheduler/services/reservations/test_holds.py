"""Holds: the nodes that the planner would start a job on now, for every kind of pending job."""

from __future__ import annotations

import pytest

from infra.errors import Conflict
from scheduler.models import Node
from scheduler.services.jobs.verbs import hold_job
from scheduler.services.reservations.reserve import reserve
from tests.scheduler.portal import Portal, a_portal

pytestmark = pytest.mark.django_db


@pytest.fixture
def portal(db: None) -> Portal:
    return a_portal()


def test_a_hold_heeds_labels_as_the_planner_does(portal: Portal) -> None:
    Node.objects.filter(pk=portal.n1.pk).update(labels={"ssd": "yes"})
    job = portal.submit(node_selector={"ssd": "yes"})

    held = reserve(payload={"job_id": job.number}, by=portal.cast.operator)

    assert [part.node.name for part in held.parts.all()] == ["n1"]


def test_a_job_that_its_owner_holds_back_gets_nodes_too(portal: Portal) -> None:
    job = portal.submit(gpu_count=2)
    hold_job(job=job, by=portal.cast.owner)
    job.refresh_from_db()

    held = reserve(payload={"job_id": job.number}, by=portal.cast.operator)

    assert [part.node.name for part in held.parts.all()] == ["n2"]


def test_nodes_that_are_reserved_already_have_no_room(portal: Portal) -> None:
    first, second = portal.submit(gpu_count=3), portal.submit(gpu_count=2)
    reserve(payload={"job_id": first.number}, by=portal.cast.operator)

    with pytest.raises(Conflict) as refused:
        reserve(payload={"job_id": second.number}, by=portal.cast.operator)

    assert refused.value.code == "not-enough-free"
    assert "0 fit now" in refused.value.message


def test_only_the_nodes_that_were_asked_for_are_held(portal: Portal) -> None:
    job = portal.submit()

    held = reserve(payload={"job_id": job.number, "nodes": ["n2"]}, by=portal.cast.operator)

    assert [part.node.name for part in held.parts.all()] == ["n2"]
