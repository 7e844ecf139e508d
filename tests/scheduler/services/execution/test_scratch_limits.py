"""How much of the disk a task may fill: as its job asks, else as its queue says, else as the site does."""

from __future__ import annotations

import pytest
from django.test import override_settings

from scheduler.models import Job, Node
from scheduler.services.cluster.queues import edit_queue
from scheduler.services.execution.dispatch import orders_for
from scheduler.services.planning.cycles import run_cycle
from tests.scheduler.portal import Portal, a_portal

pytestmark = pytest.mark.django_db


@pytest.fixture
def portal() -> Portal:
    portal = a_portal()
    Node.objects.update(storage_mib=100_000)
    Node.objects.filter(pk=portal.n2.pk).update(cordoned=True)
    return portal


def _limit_of(portal: Portal, job: Job) -> int | None:
    run_cycle(cluster_id=portal.cluster.pk, trigger="test")
    sent = orders_for(Node.objects.get(pk=portal.n1.pk), {}).assignments
    return next(one for one in sent if one["job"] == job.number).get("scratch_limit_mib")


def test_unlimited_unless_somebody_says_so(portal: Portal) -> None:
    assert _limit_of(portal, portal.submit()) is None


def test_the_request_goes_before_the_queue_and_that_before_the_site(portal: Portal) -> None:
    with override_settings(MUSTER_SCRATCH_MIB=300):
        assert _limit_of(portal, portal.submit()) == 300
        edit_queue(queue=portal.queue, changes={"scratch_mib": 200}, by=portal.cast.operator)
        assert _limit_of(portal, portal.submit()) == 200
        assert _limit_of(portal, portal.submit(storage_bytes="1Gi")) == 1024
        edit_queue(queue=portal.queue, changes={"scratch_mib": 0}, by=portal.cast.operator)
        assert _limit_of(portal, portal.submit()) is None
