"""Finding 25: the states of a gang's members in the API, and the queue's default for gathering nodes."""

from __future__ import annotations

from scheduler.core.lifecycle import JobState
from scheduler.models import Job, Task
from scheduler.services.execution.agent_messages import AgentMessage, without_known_news
from scheduler.services.execution.dispatch import Orders, orders_for
from tests.scheduler.api.conftest import Api
from tests.scheduler.portal import Portal
from tests.support.factories import AllocationFactory, AttemptFactory, TaskFactory

JOBS = "/api/v1/jobs"


def test_the_members_of_a_gang_are_listed_with_state_and_end(portal: Portal, api: Api) -> None:
    job = portal.submit(tasks=2)
    client = api(portal.cast.owner)
    assert client.get(f"{JOBS}/{job.number}/members").json()["results"] == []
    Job.objects.filter(pk=job.pk).update(state=JobState.RUNNING, epoch=2)
    TaskFactory(attempt=AttemptFactory(job=job, epoch=1, state="lost"), node=portal.n1)
    attempt = AttemptFactory(job=job, epoch=2)
    TaskFactory(attempt=attempt, node=portal.n1, rank=0, state="running")
    TaskFactory(
        attempt=attempt,
        node=portal.n2,
        rank=1,
        state="failed",
        exit_code=3,
        end_text="Ended with exit code 3.",
    )

    members = client.get(f"{JOBS}/{job.number}/members").json()["results"]

    said = [(one["attempt"], one["rank"], one["node"], one["state"], one["exit_code"]) for one in members]
    assert said == [(2, 0, "n1", "running", None), (2, 1, "n2", "failed", 3)]
    assert api(portal.cast.stranger).get(f"{JOBS}/{job.number}/members").status_code == 404


def test_a_gang_gathers_by_the_default_of_its_queue(portal: Portal, api: Api) -> None:
    path = f"/api/v1/queues/{portal.queue.slug}"
    too_long = api(portal.cast.operator).patch(path, {"default_assembly_seconds": 86_401})
    assert (too_long.status_code, too_long.json()["errors"][0]["field"]) == (422, "default_assembly_seconds")
    answer = api(portal.cast.operator).patch(
        path, {"default_assembly_seconds": 600, "default_wait_seconds": 60}
    )
    assert (answer.json()["default_assembly_seconds"], answer.json()["default_wait_seconds"]) == (600, 60)

    asked = [{"tasks": 2}, {"tasks": 2, "assembly_timeout": "1h"}, {"tasks": 2, "assembly_timeout": 0}, {}]
    assert [portal.submit(**one).assembly_timeout_seconds for one in asked] == [600, 3600, None, None]


def test_a_size_is_ordered_until_the_agent_knows_it_and_never_of_an_older_agent(portal: Portal) -> None:
    job = portal.submit(tasks=3, min_tasks=1, elastic=True)
    attempt = AttemptFactory(job=job, epoch=1)
    for rank in range(3):
        TaskFactory(attempt=attempt, node=portal.n1, rank=rank, state="running")
        AllocationFactory(attempt=attempt, node=portal.n1, rank=rank)
    known = dict.fromkeys(Task.objects.values_list("id", flat=True), 1)
    assert orders_for(portal.n1, known).worlds == []
    Task.objects.filter(rank=2).update(state="stopping")
    attempt.resized_at = attempt.scheduled_at
    attempt.save()

    worlds = orders_for(portal.n1, known).worlds

    assert [one[2:] for one in worlds] == [[2, "0-1"], [2, "0-1"]]
    for said, left in ((None, 0), ({}, 2), ({worlds[0][0]: 2}, 1), ({one[0]: 2 for one in worlds}, 0)):
        message = AgentMessage("key", "", "", 0, known=known, worlds=said)
        assert len(without_known_news(message, Orders(worlds=list(worlds))).worlds) == left
