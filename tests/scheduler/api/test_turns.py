"""Findings 18 and 19 through the API: whose turn it is on one slot, from cycle to cycle."""

from __future__ import annotations

from scheduler.core.lifecycle import JobState
from scheduler.models import Job, Node, SchedulerProfile
from scheduler.services.execution.reconcile import reconcile_all
from scheduler.services.jobs.verbs import cancel_job
from scheduler.services.planning.cycles import run_cycle
from tests.scheduler.api.conftest import Api
from tests.scheduler.portal import Portal
from tests.support.factories import QueueFactory

JOBS = "/api/v1/jobs"


def in_turn(portal: Portal) -> list[str]:
    """The names of all jobs as they get the one slot, each for a while."""
    names = []
    while Job.objects.pending().exists():
        run_cycle(cluster_id=portal.cluster.pk, trigger="test")
        job = Job.objects.get(state=JobState.SCHEDULED)
        names.append(job.name)
        cancel_job(job=job, by=portal.cast.operator)
        reconcile_all()
    return names


def with_one_slot(portal: Portal, policy: str) -> None:
    Node.objects.filter(pk=portal.n2.pk).update(cordoned=True)
    SchedulerProfile.objects.update(policy=policy)


def test_finding_18_one_slot_alternates_between_two_people(portal: Portal, api: Api) -> None:
    with_one_slot(portal, "fair_queue")
    SchedulerProfile.objects.update(options={"tenant": "user"})
    for person, name in ((portal.cast.owner, "abc"), (portal.cast.colleague, "xy")):
        for letter in name:
            sent = api(person).post(JOBS, {"command": "true", "name": letter, "cpu_cores": 16})
            assert sent.status_code == 201

    assert in_turn(portal) == ["a", "x", "b", "y", "c"]


def test_finding_19_a_queue_of_higher_priority_goes_first_under_first_in_first_out(
    portal: Portal, api: Api
) -> None:
    with_one_slot(portal, "fifo")
    urgent = QueueFactory(cluster=portal.cluster, name="urgent", slug="urgent", priority=80)
    urgent.partitions.set(portal.queue.partitions.all())
    client = api(portal.cast.owner)
    for name, queue in (("one", "default"), ("two", "default"), ("urgent", "urgent")):
        client.post(JOBS, {"command": "true", "name": name, "queue": queue, "cpu_cores": 16})

    assert in_turn(portal) == ["urgent", "one", "two"]
