"""A planner that is not heard is not kept from people: every page, the job's sentence and /readyz say so."""

from __future__ import annotations

import re
import time

import pytest
from django.core.cache import cache
from django.test import Client
from django.urls import reverse

from scheduler.models import Job, Lease
from scheduler.state.lease import planner_liveness
from tests.support.factories import JobFactory


@pytest.fixture(autouse=True)
def nothing_seen_yet() -> None:
    cache.clear()
    planner_liveness.forget_terms()


def test_a_planner_is_silent_once_its_term_has_not_changed_for_long() -> None:
    heard = [
        planner_liveness.silence(
            planner_liveness.term_since(1, token, clock=lambda at=at: at), clock=lambda at=at: at
        )
        for token, at in [(7, 100.0), (7, 129.0), (7, 142.0), (8, 143.0), (8, 144.0), (9, 9000.0)]
    ]

    assert heard == [None, None, 42.0, None, None, None]


def test_a_process_that_looks_for_the_first_time_knows_what_others_saw() -> None:
    planner_liveness.term_since(1, 7, clock=lambda: 100.0)
    planner_liveness.forget_terms()

    assert (
        planner_liveness.silence(planner_liveness.term_since(1, 7, clock=lambda: 190.0), clock=lambda: 190.0)
        == 90.0
    )


def test_a_cluster_that_was_never_planned_is_not_called_silent() -> None:
    assert planner_liveness.silence(planner_liveness.term_since(1, None), clock=lambda: 9e9) is None


@pytest.mark.django_db
@pytest.mark.parametrize(("minutes", "says"), [(0, False), (2, True)])
def test_pages_and_probes_say_when_the_planner_is_silent(client: Client, minutes: int, says: bool) -> None:
    job: Job = JobFactory(
        reason_code="NotEvaluatedYet", reason_text="Not evaluated yet. The next cycle follows within seconds."
    )
    Lease.objects.create(scope=f"cluster:{job.queue.cluster_id}", token=5)
    planner_liveness.term_since(job.queue.cluster_id, 5, clock=lambda: time.time() - 60 * minutes)
    client.force_login(job.user, backend="accounts.backends.PasswordBackend")

    page = client.get(reverse("job", args=[job.number])).content.decode()
    ready = client.get("/readyz")

    header = re.sub("<[^>]+>", "", page.split("</header>")[0])
    assert ("has not responded for 2m" in header) == says
    assert ("Not evaluated yet: the scheduler has not responded for 2m" in page) == says
    assert ("The next cycle follows within seconds" in page) != says
    assert ready.status_code == 200
    assert ("planner" in ready.json()["degraded"]) == says
