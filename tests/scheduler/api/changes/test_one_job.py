"""PATCH of a job: what may change while it waits and while it runs, who may, and that a refusal writes nothing."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import DatabaseError, transaction
from django.utils import timezone

from accounts.models import AuditEvent
from quotas.models import LedgerEntry
from quotas.services.budgets import make_budget
from scheduler.core.lifecycle import JobState
from scheduler.models import ChangedJob, Job, JobName, JobRequest, Node, Queue
from scheduler.services.execution.agent_messages import AgentMessage, without_known_news
from scheduler.services.execution.dispatch import Orders, orders_for
from scheduler.services.execution.reconcile import reconcile_all
from tests.scheduler.api.conftest import Api
from tests.scheduler.portal import Portal
from tests.support.factories import AllocationFactory, AttemptFactory, JobFactory, QueueFactory, TaskFactory

JOBS = "/api/v1/jobs"


def test_a_pending_job_changes_in_place(api: Api, portal: Portal) -> None:
    fast = QueueFactory(cluster=portal.cluster, slug="fast", name="Fast")
    job, client = portal.submit(name="first", priority=20), api(portal.cast.owner)
    since = timezone.now() - timedelta(hours=3)
    Job.objects.filter(pk=job.pk).update(eligible_at=since, reason_code="NoMatchingNode")
    ChangedJob.objects.all().delete()
    read = client.get(f"{JOBS}/{job.number}")

    answer = client.patch(
        f"{JOBS}/{job.number}",
        {"name": "second", "priority": 40, "queue": "fast", "time_limit": "1h", "cpu_cores": 2, "memory": "2Gi",
         "tasks": 2, "gpu_count": 1, "gpu_type": "A100", "reason": "too small"},
        headers={"If-Match": read["ETag"]},
    )  # fmt: skip

    assert answer.status_code == 200, answer.content
    body = answer.json()
    wanted = {
        "number": job.number, "name": "second", "priority": 40, "queue": "fast", "time_limit": 3600, "cpu_cores": 2.0,
        "memory_bytes": 2**31, "tasks": 2, "gpu_count": 1, "gpu_type": "A100", "state_detail": "queued",
        "eligible_at": since.isoformat().replace("+00:00", "Z"), "created_at": read.json()["created_at"],
    }  # fmt: skip
    assert {name: body[name] for name in wanted} == wanted
    assert body["reason"]["code"] == "NotEvaluatedYet"
    assert answer["ETag"] != read["ETag"]
    # The planner's feed, the event, the audit row and the index of names have it.
    assert set(ChangedJob.objects.values_list("job_number", "queue_id")) == {
        (job.number, portal.queue.pk), (job.number, fast.pk)
    }  # fmt: skip
    event = job.events.order_by("-id")[0]
    assert (event.kind, event.actor, event.details["before"]["priority"]) == (
        "job.changed",
        portal.cast.owner,
        20,
    )
    row = AuditEvent.objects.filter(action="job.change").get()
    assert (row.before["name"], row.after["name"], row.after["queue"], row.reason) == (
        "first", "second", "fast", "too small"
    )  # fmt: skip
    assert JobName.objects.filter(name="second").exists()
    # The same once more changes nothing.
    again = client.patch(f"{JOBS}/{job.number}", {"priority": 40}, headers={"If-Match": answer["ETag"]})
    assert (again.status_code, again["ETag"]) == (200, answer["ETag"])
    assert AuditEvent.objects.filter(action="job.change").count() == 1


def test_a_change_is_judged_like_a_submission_and_refused_whole(api: Api, portal: Portal) -> None:
    client = api(portal.cast.owner)
    QueueFactory(cluster=portal.cluster, slug="short", max_wall_seconds=600, max_pending_jobs=1)
    hers = QueueFactory(cluster=portal.cluster, slug="hers", project=portal.cast.project)
    Queue.objects.filter(pk=hers.pk).update(project=JobFactory().project)
    job = portal.submit(name="kept", time_limit=3600)
    before = client.get(f"{JOBS}/{job.number}").json()

    def refused(**changes: Any) -> tuple[int, dict[str, str]]:
        answer = client.patch(f"{JOBS}/{job.number}", changes)
        return answer.status_code, {one["field"]: one["code"] for one in answer.json()["errors"]}

    assert refused(name="other", priority="CRITICAL", memory="much", nodes=5, command="false", nosuch=1) == (
        403, {"priority": "above-priority-ceiling", "memory": "unreadable", "nodes": "inconsistent",
              "command": "not-changeable", "nosuch": "unknown-field"},
    )  # fmt: skip
    assert refused(gpu_count=64) == (422, {"gpu_count": "can-never-fit"})
    assert refused(queue="short") == (422, {"time_limit": "exceeds-wall-time"})
    assert refused(queue="hers") == (422, {"queue": "not-found"})
    assert refused(depends_on=[10**9]) == (422, {"depends_on/0": "not-found"})
    assert refused() == (422, {"": "required"})
    assert refused(memory="0") == (422, {"memory": "out-of-range"})
    assert client.get(f"{JOBS}/{job.number}").json() == before
    assert not AuditEvent.objects.filter(action="job.change").exists()
    # Null is what leaving the field out of a submission would be.
    assert client.patch(f"{JOBS}/{job.number}", {"cpu_cores": 4}).json()["cpu_cores"] == 4.0
    assert client.patch(f"{JOBS}/{job.number}", {"cpu_cores": None}).json()["cpu_cores"] == 1.0
    # A full queue takes no job from another queue either.
    portal.submit(queue="short", time_limit=60)
    full = client.patch(f"{JOBS}/{job.number}", {"queue": "short", "time_limit": 60})
    assert (full.status_code, full.json()["code"]) == (429, "queue-full")


def test_a_stale_change_writes_nothing(api: Api, portal: Portal) -> None:
    job, client = portal.submit(priority=10), api(portal.cast.owner)
    seen = client.get(f"{JOBS}/{job.number}")["ETag"]
    client.post(f"{JOBS}/{job.number}/hold")

    stale = client.patch(f"{JOBS}/{job.number}", {"priority": 20}, headers={"If-Match": seen})
    wrong = client.patch(f"{JOBS}/{job.number}", {"priority": 20}, headers={"If-Match": '"quota-1-1"'})

    assert (stale.status_code, stale.json()["code"], wrong.status_code) == (412, "stale", 400)
    assert JobRequest.objects.get(pk=job.pk).priority == 10
    # A hold stays through a change.
    assert client.patch(f"{JOBS}/{job.number}", {"priority": 20}).json()["state_detail"] == "held"


def test_what_a_pending_job_waits_for_is_changed(api: Api, portal: Portal) -> None:
    client = api(portal.cast.owner)
    first, job = portal.submit(), portal.submit()

    waits = client.patch(
        f"{JOBS}/{job.number}", {"depends_on": [{"job": first.number, "type": "afterany"}]}
    ).json()
    assert (waits["state_detail"], waits["reason"]["code"], waits["depends_on"][0]["type"]) == (
        "blocked", "Dependency", "completion"
    )  # fmt: skip
    free = client.patch(f"{JOBS}/{job.number}", {"depends_on": []}).json()
    assert (free["state_detail"], free["depends_on"]) == ("queued", [])
    # One that is held to a time waits for it, and no longer once that was taken back.
    later = timezone.now() + timedelta(days=1)
    assert client.patch(f"{JOBS}/{job.number}", {"begin_at": later.isoformat()}).status_code == 200
    assert Job.objects.get(pk=job.pk).eligible_at == later
    assert client.patch(f"{JOBS}/{job.number}", {"begin_at": None}).status_code == 200
    eligible = Job.objects.get(pk=job.pk).eligible_at
    assert eligible is not None
    assert eligible <= timezone.now()


def test_a_running_job_keeps_all_but_its_name_and_its_limit(api: Api, portal: Portal) -> None:
    client = api(portal.cast.owner)
    job = JobFactory(
        project=portal.cast.project, user=portal.cast.owner, queue=portal.queue, state=JobState.RUNNING, epoch=1,
        started_at=timezone.now(), time_limit_seconds=3600,
    )  # fmt: skip
    attempt = AttemptFactory(job=job, started_at=timezone.now() - timedelta(minutes=50))
    task = TaskFactory(attempt=attempt, node=portal.n1)

    answer = client.patch(f"{JOBS}/{job.number}", {"name": "renamed", "time_limit": 1800})
    longer = client.patch(f"{JOBS}/{job.number}", {"time_limit": 7200})
    other = client.patch(f"{JOBS}/{job.number}", {"priority": 1, "memory": "2Gi"})

    assert (answer.status_code, answer.json()["name"], answer.json()["time_limit"]) == (200, "renamed", 1800)
    assert longer.json()["errors"][0]["code"] == "not-changeable"
    assert {one["field"]: one["code"] for one in other.json()["errors"]} == {
        "priority": "not-changeable", "memory": "not-changeable"
    }  # fmt: skip
    # The agent is told until it says that it has heard; without an agent the server stops what is beyond the limit.
    known = {task.pk: attempt.epoch}
    assert orders_for(portal.n1, known).limits == [[task.pk, attempt.epoch, 1800]]
    raised = api(portal.cast.operator).patch(f"{JOBS}/{job.number}", {"time_limit": 7200})
    assert (raised.status_code, raised.json()["time_limit"]) == (200, 7200), raised.content
    told = orders_for(portal.n1, known).limits
    assert told == [[task.pk, attempt.epoch, 7200]]
    for heard, left in ((None, 0), ({}, 1), ({task.pk: 1800}, 1), ({task.pk: 7200}, 0)):
        message = AgentMessage("key", "", "", 0, known=known, limits=heard)
        assert len(without_known_news(message, Orders(limits=list(told))).limits) == left
    assert client.patch(f"{JOBS}/{job.number}", {"time_limit": 1800}).status_code == 200
    reconcile_all()
    attempt.refresh_from_db()
    assert attempt.stop_reason == "time_limit"
    late = api(portal.cast.operator).patch(f"{JOBS}/{job.number}", {"time_limit": 7200})
    assert (late.status_code, "being stopped" in late.json()["detail"]) == (409, True)
    Job.objects.filter(pk=job.pk).update(state=JobState.COMPLETED, completed_at=timezone.now())
    ended = client.patch(f"{JOBS}/{job.number}", {"name": "late"})
    assert (ended.status_code, "again" in ended.json()["way_out"]) == (409, True)


def test_a_longer_limit_needs_agents_that_know_it_the_queue_and_the_budget(api: Api, portal: Portal) -> None:
    client = api(portal.cast.operator)
    Queue.objects.update(max_wall_seconds=7200)
    job = JobFactory(
        project=portal.cast.project, user=portal.cast.owner, queue=portal.queue, state=JobState.RUNNING, epoch=1,
        started_at=timezone.now(), time_limit_seconds=600,
    )  # fmt: skip
    attempt = AttemptFactory(job=job, started_at=timezone.now())
    AllocationFactory(attempt=attempt, node=portal.n1, cpu_millis=1000)
    make_budget(
        subject=portal.cast.project, name="year", resource="cpu_milli_seconds", amount=3600 * 1000, period="month",
        by=portal.cast.admin, reason="the year",
    )  # fmt: skip

    def refused(limit: int) -> tuple[int, str]:
        answer = client.patch(f"{JOBS}/{job.number}", {"time_limit": limit})
        assert JobRequest.objects.get(pk=job.pk).time_limit_seconds == 600
        return answer.status_code, answer.json()["detail"]

    assert refused(7300)[0] == 422
    assert refused(7000) == (
        409,
        "The budget of project vision has too little left for the longer time limit.",
    )
    Node.objects.filter(pk=portal.n1.pk).update(agent_protocol=1)
    assert refused(1200) == (
        409,
        "The agent of node n1 is too old to make the time limit of a running job longer.",
    )
    Node.objects.filter(pk=portal.n1.pk).update(agent_protocol=2)
    assert client.patch(f"{JOBS}/{job.number}", {"time_limit": 1200}).status_code == 200
    holds = LedgerEntry.objects.filter(attempt_id=attempt.pk, kind="hold").values_list(
        "held_seconds", flat=True
    )
    assert sum(holds) == 1200


@pytest.mark.parametrize(
    ("who", "status"),
    [("owner", 200), ("lead", 200), ("operator", 200), ("admin", 200), ("colleague", 403), ("viewer", 403),
     ("auditor", 403), ("stranger", 404)],
)  # fmt: skip
def test_who_may_change_a_job(api: Api, portal: Portal, who: str, status: int) -> None:
    job = portal.submit(priority=50)

    answer = api(getattr(portal.cast, who)).patch(f"{JOBS}/{job.number}", {"priority": 30})

    assert answer.status_code == status, answer.content
    assert JobRequest.objects.get(pk=job.pk).priority == (30 if status == 200 else 50)


def test_what_ran_is_not_rewritten_and_an_unknown_method_is_405(api: Api, portal: Portal) -> None:
    job = portal.submit()

    for column, value in (("command", "false"), ("env", {"A": "1"}), ("created_at", timezone.now())):
        with pytest.raises(DatabaseError, match="does not change"), transaction.atomic():
            JobRequest.objects.filter(pk=job.pk).update(**{column: value})
    client = api(portal.cast.owner, "jobs:read")
    for method, address in (
        ("put", f"{JOBS}/{job.number}"), ("patch", JOBS), ("delete", f"{JOBS}/{job.number}/events"),
        ("put", "/api/v1/queues"),
    ):  # fmt: skip
        assert getattr(client, method)(address, {}).status_code == 405
    assert client.patch(f"{JOBS}/{job.number}", {"name": "x"}).json()["code"] == "scope-missing"


def test_a_gang_keeps_its_gathered_nodes_until_its_size_changes(api: Api, portal: Portal) -> None:
    client = api(portal.cast.owner)
    job = JobFactory(
        project=portal.cast.project, user=portal.cast.owner, queue=portal.queue, state=JobState.RESERVED, tasks=2,
        assembly_until_at=timezone.now() + timedelta(hours=1), assembly_node_ids=[portal.n1.pk], priority=50,
    )  # fmt: skip

    kept = client.patch(f"{JOBS}/{job.number}", {"name": "gang", "priority": 40}).json()
    assert (kept["state_detail"], kept["assembly_until"] is not None) == ("reserved", True)
    other = client.patch(f"{JOBS}/{job.number}", {"tasks": 3}).json()
    assert (other["state_detail"], other["assembly_until"], other["tasks"]) == ("queued", None, 3)
    assert Job.objects.get(pk=job.pk).assembly_node_ids == []
