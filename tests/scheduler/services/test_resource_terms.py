"""Limits beside requests, from the door to the agent."""

from __future__ import annotations

import pytest
from django.db import IntegrityError, transaction

from quotas.core.resources import Resources
from scheduler.api.serializers import row_of
from scheduler.core.qos import Qos
from scheduler.services.planning.job_preview import preview_job
from scheduler.state.load.snapshots import load_snapshot
from scheduler.web import forms
from tests.scheduler.portal import Portal, a_portal, problems, read
from tests.support.roles import had_asked

pytestmark = pytest.mark.django_db


@pytest.fixture
def portal(db: None) -> Portal:
    return a_portal()


def test_a_limit_without_a_request_is_the_request_too(portal: Portal) -> None:
    spec = read(portal, cpu_limit=2, memory_limit="1Gi")

    assert spec.per_task == Resources(cpu_millis=2000, memory_mib=1024)
    assert (spec.cpu_limit_millis, spec.memory_limit_mib) == (2000, 1024)


def test_a_limit_below_the_request_is_refused_by_its_name(portal: Portal) -> None:
    wrong = problems(portal, cpu_cores=2, cpu_limit=1, memory="2Gi", memory_limit="1Gi")

    assert wrong == {"cpu_limit": "inconsistent", "memory_limit": "inconsistent"}


def test_only_a_job_that_requests_nothing_at_all_may_say_0(portal: Portal) -> None:
    assert read(portal, cpu_cores=0, memory=0).per_task == Resources()
    assert problems(portal, cpu_cores=0) == {"cpu_cores": "out-of-range"}
    assert problems(portal, memory_gb=0) == {"memory_gb": "out-of-range"}


def test_limits_reach_the_planner_and_the_answer_and_the_form(portal: Portal) -> None:
    sure = portal.submit(cpu_cores=1, cpu_limit=1, memory="1Gi", memory_limit="1Gi")
    portal.submit(cpu_cores=0, memory=0)

    snapshot = load_snapshot(cluster_id=portal.cluster.pk).snapshot

    qos = [snapshot.classes[row].qos for row in snapshot.pending.class_index.tolist()]
    assert qos == [Qos.GUARANTEED, Qos.BEST_EFFORT]
    shown = row_of(sure, ())
    assert (shown["cpu_limit"], shown["memory_limit_bytes"], shown["qos"]) == (1.0, 2**30, "guaranteed")
    form = forms.form_of(sure)
    assert (form["cpu_limit"], form["memory_limit"]) == ("1", "1GiB")
    again = read(portal, **forms.payload_of(form, time_zone="UTC"))
    assert (again.cpu_limit_millis, again.memory_limit_mib) == (1000, 1024)
    assert (
        preview_job(payload={"command": "true", "cpu_limit": 2}, by=portal.cast.owner).verdict == "starts_now"
    )


def test_the_database_refuses_a_limit_below_the_request(portal: Portal) -> None:
    job = portal.submit(memory="1Gi", memory_limit="2Gi")

    with pytest.raises(IntegrityError, match="job_limits_not_below_requests"), transaction.atomic():
        had_asked(job, memory_limit_mib=512)
