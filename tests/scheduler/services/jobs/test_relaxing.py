"""Retry with constraints relaxed, and said so (N27): from the request to the plan, the event and the page."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from scheduler.core.lifecycle import JobState
from scheduler.models import Job, Node
from scheduler.services.changes.change import change_job
from scheduler.services.jobs.deadlines import check_limits
from scheduler.services.planning.cycles import run_cycle
from scheduler.services.planning.job_preview import preview_job
from tests.scheduler.portal import Portal, a_portal, problems
from tests.support.factories import AttemptFactory

pytestmark = pytest.mark.django_db


@pytest.fixture
def portal(db: None) -> Portal:
    portal = a_portal()
    Node.objects.filter(pk=portal.n1.pk).update(rack="r1", labels={"disk": "ssd"})
    Node.objects.filter(pk=portal.n2.pk).update(rack="r2", labels={"disk": "hdd"})
    return portal


def later(job: Job, **after: float) -> datetime:
    """A moment after the job began to wait."""
    assert job.eligible_at is not None
    return job.eligible_at + timedelta(**after)


def planned(portal: Portal, job: Job) -> Job:
    run_cycle(cluster_id=portal.cluster.pk, trigger="test")
    return Job.objects.get(pk=job.pk)


#: Two tasks of nine cores: never on one node of sixteen, so never in one rack.
TWO_RACKS = {"tasks": 2, "cpu_cores": 9, "pack": "rack"}
RELAX_PACK = [{"constraint": "pack", "after": "10m"}]


def test_a_preferred_rack_is_waited_for_and_given_up_with_an_event(portal: Portal) -> None:
    job = portal.submit(**TWO_RACKS, relax=RELAX_PACK)
    assert planned(portal, job).state == JobState.QUEUED
    check_limits(at=later(job, seconds=599))
    assert planned(portal, job).state == JobState.QUEUED

    check_limits(at=later(job, seconds=600))

    assert planned(portal, job).state == JobState.SCHEDULED
    event = job.events.get(kind="job.relaxed")
    assert event.because == (
        "No longer required: one topology domain for all tasks (pack), after a wait of 10 min; preferred still."
    )
    assert event.details == {"relaxed": ["pack"], "failures": 0}
    check_limits(at=later(job, hours=1))
    assert job.events.filter(kind="job.relaxed").count() == 1


def test_without_relax_a_preference_is_not_waited_for_unless_the_queue_says_so(portal: Portal) -> None:
    assert planned(portal, portal.submit(**TWO_RACKS)).state == JobState.SCHEDULED
    portal.queue.preference_wait_seconds = 60
    portal.queue.save()
    asked = [
        portal.submit(pack="rack"), portal.submit(pack="rack", relax=[]), portal.submit(),
        portal.submit(pack={"level": "rack", "required": True}),
    ]  # fmt: skip
    assert [job.relax for job in asked] == [[{"constraint": "pack", "after": 60}], [], [], []]


def test_a_required_gpu_model_is_dropped_after_failures_and_not_after_preemptions(portal: Portal) -> None:
    job = portal.submit(
        gpu_count=1,
        gpu_type="H100",
        relax=[{"constraint": "gpu_type", "after_failures": 2}],
        restart_policy="always",
    )
    assert planned(portal, job).state == JobState.QUEUED
    AttemptFactory.create(job=job, epoch=1, state="stopped")
    AttemptFactory.create(job=job, epoch=2, state="failed")
    Job.objects.filter(pk=job.pk).update(check_at=later(job))
    check_limits(at=later(job, days=1))
    assert planned(portal, job).state == JobState.QUEUED

    AttemptFactory.create(job=job, epoch=3, state="lost")
    Job.objects.filter(pk=job.pk).update(check_at=later(job), epoch=3)
    check_limits(at=later(job, days=1))

    assert planned(portal, job).state == JobState.SCHEDULED
    assert "any will do" in job.events.get(kind="job.relaxed").because


def test_preferred_and_required_labels_hold_until_then(portal: Portal) -> None:
    """Only n1 has ssd, and it is full; the job that prefers ssd waits for it, and takes n2 afterwards."""
    portal.submit(cpu_cores=16, node_selector={"disk": "ssd"})
    wish = {"affinity": {"preferred": [{"weight": 5, "requirements": {"key": "disk", "values": ["ssd"]}}]}}
    must = {"node_selector": {"disk": "ssd"}}
    jobs = [
        portal.submit(**wish, relax=[{"constraint": "preferred", "after": "5m"}]),
        portal.submit(**must, relax=[{"constraint": "node_selector", "after": "5m"}]),
    ]
    assert [planned(portal, job).state for job in jobs] == [JobState.QUEUED] * 2

    check_limits(at=later(jobs[1], minutes=6))

    assert [planned(portal, job).state for job in jobs] == [JobState.SCHEDULED] * 2


def test_the_preview_says_what_is_required_until_when_and_what_comes_then(portal: Portal) -> None:
    found = preview_job(payload={"command": "true", **TWO_RACKS, "relax": RELAX_PACK}, by=portal.cast.owner)

    assert found.verdict == "would_wait"
    assert found.relaxations[0].startswith(
        "Required, and relaxed after a wait of 10 min: one topology domain for all tasks (pack). That is "
    )
    assert found.relaxations[1] == "With all of this relaxed: Would start now on 2 nodes: n1, n2."


def test_the_clock_of_a_job_on_hold_does_not_run(portal: Portal) -> None:
    job = portal.submit(**TWO_RACKS, relax=RELAX_PACK, hold=True)
    check_limits(at=job.created_at + timedelta(days=1))
    assert Job.objects.get(pk=job.pk).relaxed is None
    assert Job.objects.get(pk=job.pk).check_at is not None


def test_a_change_of_relax_begins_anew(portal: Portal) -> None:
    job = portal.submit(**TWO_RACKS, relax=RELAX_PACK)
    check_limits(at=later(job, minutes=10))
    changed = change_job(
        job=job, changes={"relax": [{"constraint": "pack", "after": "1h"}]}, by=portal.cast.owner
    )
    assert (changed.relaxed, planned(portal, job).state) == (None, JobState.QUEUED)


def test_a_gang_that_gave_its_nodes_back_waits_on(portal: Portal) -> None:
    """Each pause of a gang moves `eligible_at`; the wait counts from when the job came."""
    job = portal.submit(**TWO_RACKS, relax=RELAX_PACK)
    Job.objects.filter(pk=job.pk).update(eligible_at=later(job, minutes=30), assemblies_failed=3)
    check_limits(at=later(job, minutes=11))
    assert Job.objects.get(pk=job.pk).relaxed == ["pack"]


@pytest.mark.parametrize(
    ("asked", "wrong"),
    [
        ({"relax": [{"constraint": "pack", "after": "1m"}]}, {"relax/0/constraint": "inconsistent"}),
        ({"pack": "rack", "relax": [{"constraint": "pack"}]}, {"relax/0/after": "required"}),
        (
            {"pack": "rack", "relax": [{"constraint": "rack", "after": 5}]},
            {"relax/0/constraint": "unknown-choice"},
        ),
        ({"pack": "rack", "relax": RELAX_PACK * 2}, {"relax/1/constraint": "one-of"}),
        (
            {
                "pack": "rack",
                "relax": [{"constraint": "pack", "after_failures": 1}],
                "restart_policy": "never",
            },
            {"relax/0/after_failures": "inconsistent"},
        ),
    ],
)
def test_what_could_not_act_is_refused(
    portal: Portal, asked: dict[str, object], wrong: dict[str, str]
) -> None:
    assert problems(portal, **asked) == wrong
