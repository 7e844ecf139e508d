"""Jobs through the API: what comes back, who may, how many queries, and that nothing is half written."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from accounts.models import AuditEvent
from scheduler.core.lifecycle import AttemptState, JobState
from scheduler.models import Attempt, Job, JobEvent
from tests.scheduler.api.conftest import Api
from tests.scheduler.portal import Portal
from tests.support.factories import (
    AllocationFactory,
    AttemptFactory,
    Cast,
    JobFactory,
    LogChunkFactory,
    TaskFactory,
)

JOBS = "/api/v1/jobs"

#: The contract: a program may count on every one of these.
FIELDS = {
    "boost", "id", "number", "name", "state", "state_detail", "reason", "priority", "priority_class", "priority_band",
    "queue", "project", "user", "command", "script", "job_type", "tasks", "nodes", "tasks_per_node", "cpu_cores",
    "memory_bytes", "memory_gb", "storage_bytes", "gpu_count", "gpu_type", "gpu_share", "extras", "time_limit",
    "env", "secrets", "upload", "image", "expected_runtime",
    "reservation", "working_dir", "mail_type", "labels", "node_selector", "tolerations", "affinity",
    "depends_on", "array_id", "job_id",
    "array_index", "array_max_running", "restart_policy", "max_restarts", "restart_rules", "probes", "checkpoint",
    "artifacts", "standard_output", "standard_error", "open_mode",
    "restart_delay", "restart_delay_max", "limit_signal", "preemptible", "created_at", "begin_at",
    "deadline", "eligible_at", "scheduled_at", "started_at", "completed_at", "expected_start", "likely_start",
    "exit_code",
    "failure_class",
    "exit_signal", "end_text", "attempt", "allocations", "submitted_via", "depends_until", "on_depends_timeout",
    "saved_at", "saved_path", "min_tasks", "elastic", "on_task_failure", "pack", "assembly_timeout", "assembly_until",
    "cpu_limit", "memory_limit_bytes", "qos", "gpu_slice", "numa",
    "deadline_action", "deadline_outlook", "wait_limit", "relax",
}  # fmt: skip


def running(portal: Portal, **fields: Any) -> Job:
    """A job with one live task on n2 that has printed something."""
    job = JobFactory(
        project=portal.cast.project, user=portal.cast.owner, queue=portal.queue, state=JobState.RUNNING, epoch=1,
        started_at=timezone.now(), **fields,
    )  # fmt: skip
    attempt = AttemptFactory(job=job)
    task = TaskFactory(attempt=attempt, node=portal.n2)
    AllocationFactory(attempt=attempt, node=portal.n2)
    LogChunkFactory(task=task, data=b"hello\n")
    return job


# ---------------------------------------------------------------- submit


def test_a_submitted_job_comes_back_whole(api: Api, cast: Cast) -> None:
    answer = api(cast.owner).post(JOBS, {"command": "echo hello", "memory": "1Gi", "priority": "high"})

    assert answer.status_code == 201, answer.content
    job = Job.objects.get()
    body = answer.json()
    assert set(body) == FIELDS
    assert (body["id"], body["number"]) == (str(job.uuid), job.number)
    assert answer["Location"] == f"{JOBS}/{job.uuid}"
    assert (body["state"], body["state_detail"], body["reason"]["code"]) == (
        "queued",
        "queued",
        "NotEvaluatedYet",
    )
    assert (body["queue"], body["project"], body["user"]) == ("default", "vision", "owner")
    assert (body["memory_bytes"], body["memory_gb"]) == (2**30, 1.074)
    assert (body["priority"], body["priority_class"], body["priority_band"]) == (75, "HIGH", "high")
    assert (body["attempt"], body["allocations"], body["depends_on"]) == (0, [], [])


def test_what_was_submitted_is_what_the_detail_shows(api: Api, cast: Cast) -> None:
    client = api(cast.owner)
    first = client.post(JOBS, {"command": "true"}).json()
    request = {
        "name": "🚀 train", "script": "#!/bin/sh\necho", "tasks": 2, "nodes": 2, "cpu_cores": 1.5,
        "gpu_share": 0.5, "gpu_type": "A100", "tasks_per_node": 2, "env": {"A": "1"}, "labels": {"team": "x"},
        "depends_on": [first["number"]], "time_limit": "01:00:00", "restart_policy": "on_failure",
    }  # fmt: skip
    client.post(JOBS, {**request, "nodes": 1})
    body = client.get(f"{JOBS}/{Job.objects.latest('number').uuid}").json()

    assert body["depends_on"] == [
        {
            "job": first["id"], "number": first["number"], "job_id": str(first["number"]), "array": False, "data": None,
            "type": "success", "group": 0, "need": 1,
            "satisfied": None,
        }
    ]  # fmt: skip
    assert (body["state"], body["state_detail"], body["time_limit"]) == ("queued", "blocked", 3600)
    same = [
        "name",
        "script",
        "tasks",
        "cpu_cores",
        "gpu_share",
        "gpu_type",
        "env",
        "labels",
        "restart_policy",
    ]
    assert {name: body[name] for name in same} == {name: request[name] for name in same}


def test_a_repeated_key_gets_the_first_answer_again(api: Api, cast: Cast) -> None:
    client, key = api(cast.owner), {"Idempotency-Key": str(uuid.uuid4())}

    first = client.post(JOBS, {"command": "true"}, headers=key)
    again = client.post(JOBS, {"command": "true"}, headers=key)
    other = client.post(JOBS, {"command": "false"}, headers=key)

    assert (first.status_code, again.status_code, other.status_code) == (201, 201, 422)
    assert again.json() == first.json()
    assert again["Idempotent-Replayed"] == "true"
    assert other.json()["code"] == "idempotency-key-reused"
    assert Job.objects.count() == 1


def test_submission_takes_few_statements(api: Api, cast: Cast, django_assert_max_num_queries: Any) -> None:
    client = api(cast.owner)
    client.post(JOBS, {"command": "true"})

    with django_assert_max_num_queries(8):
        client.post(JOBS, {"command": "true"})


def test_a_priority_above_the_ceiling_is_a_denial_that_is_written_down(api: Api, cast: Cast) -> None:
    answer = api(cast.owner).post(JOBS, {"command": "true", "priority": "CRITICAL"})

    assert (answer.status_code, answer.json()["code"]) == (403, "above-priority-ceiling")
    assert Job.objects.count() == 0
    denied = AuditEvent.objects.get(outcome="denied")
    assert (denied.actor, denied.request_id) == (cast.owner, answer.json()["request_id"])


@pytest.mark.parametrize("who", ["viewer", "auditor"])
def test_those_who_only_look_cannot_submit(api: Api, cast: Cast, who: str) -> None:
    answer = api(getattr(cast, who)).post(JOBS, {"command": "true"})

    assert (answer.status_code, answer.json()["code"]) == (403, "project-not-usable")
    assert Job.objects.count() == 0


def test_a_token_of_one_project_submits_to_that_one_only(api: Api, cast: Cast) -> None:
    from tests.support.factories import ProjectFactory

    other = ProjectFactory(slug="other", member=cast.owner)
    client = api(cast.owner, "jobs:write", project=cast.project)

    assert client.post(JOBS, {"command": "true"}).json()["project"] == "vision"
    assert client.post(JOBS, {"command": "true", "project": other.slug}).status_code == 403


# ---------------------------------------------------------------- bulk


def test_two_hundred_jobs_are_taken_at_once(api: Api, cast: Cast) -> None:
    answer = api(cast.owner).post(f"{JOBS}:bulk", {"jobs": [{"command": "true"}] * 200})

    assert answer.status_code == 201
    body = answer.json()
    assert (body["taken"], body["refused"], len(body["results"])) == (200, 0, 200)
    assert [item["number"] for item in body["results"]] == sorted(
        Job.objects.values_list("number", flat=True)
    )


def test_a_batch_with_a_bad_job_is_refused_whole_and_points_at_it(api: Api, cast: Cast) -> None:
    jobs = [{"command": "true"}, {"command": "true", "cpu_cores": -1}, 7]

    answer = api(cast.owner).post(f"{JOBS}:bulk", {"jobs": jobs})

    assert answer.status_code == 422
    assert [item["pointer"] for item in answer.json()["errors"]] == ["/jobs/1/cpu_cores", "/jobs/2"]
    assert Job.objects.count() == 0


def test_a_batch_that_is_not_atomic_takes_the_good_ones(api: Api, cast: Cast) -> None:
    jobs = [{"command": "true"}, {"comand": "true"}, {"command": "true", "array": "0-2"}]

    answer = api(cast.owner).post(f"{JOBS}:bulk", {"jobs": jobs, "atomic": False})

    assert answer.status_code == 207
    body = answer.json()
    assert [item["status"] for item in body["results"]] == [201, 422, 201]
    assert body["results"][2]["jobs"] == 3
    assert Job.objects.count() == 4


@pytest.mark.parametrize(
    "body", [{}, {"jobs": []}, {"jobs": "x"}, {"jobs": [{}] * 1001}, {"jobs": [{}], "x": 1}]
)
def test_a_batch_that_is_none_is_refused(api: Api, cast: Cast, body: dict[str, Any]) -> None:
    assert api(cast.owner).post(f"{JOBS}:bulk", body).status_code == 422


# ---------------------------------------------------------------- look


def test_a_job_is_found_by_id_and_by_number(api: Api, portal: Portal) -> None:
    job, client = portal.submit(), api(portal.cast.owner)

    assert client.get(f"{JOBS}/{job.uuid}").json() == client.get(f"{JOBS}/{job.number}").json()


@pytest.mark.parametrize(
    ("who", "status"),
    [("owner", 200), ("colleague", 200), ("lead", 200), ("viewer", 200), ("operator", 200), ("auditor", 200),
     ("admin", 200), ("stranger", 404)],
)  # fmt: skip
@pytest.mark.parametrize("tail", ["", "/events", "/logs", "/why"])
def test_who_may_look_at_a_job(api: Api, portal: Portal, who: str, status: int, tail: str) -> None:
    job = running(portal)

    answer = api(getattr(portal.cast, who)).get(f"{JOBS}/{job.uuid}{tail}")

    assert answer.status_code == status, answer.content


def test_a_stranger_cannot_tell_a_hidden_job_from_none(api: Api, portal: Portal) -> None:
    job, client = portal.submit(), api(portal.cast.stranger)

    for method, tail in [("get", ""), ("delete", ""), ("post", "/hold"), ("get", "/logs"), ("get", "/why")]:
        hidden = getattr(client, method)(f"{JOBS}/{job.number}{tail}")
        missing = getattr(client, method)(f"{JOBS}/{job.number + 999}{tail}")
        assert (hidden.status_code, missing.status_code) == (404, 404), (method, tail)
        assert hidden.json()["detail"].replace(str(job.number), "N") == missing.json()["detail"].replace(
            str(job.number + 999), "N"
        )
    assert client.get(JOBS).json()["results"] == []


def test_a_running_job_shows_what_it_holds(api: Api, portal: Portal) -> None:
    body = api(portal.cast.owner).get(f"{JOBS}/{running(portal).number}").json()

    assert (body["state"], body["attempt"], body["reason"]) == ("running", 1, None)
    assert [(a["rank"], a["node"], a["cpu_cores"], a["memory_bytes"]) for a in body["allocations"]] == [
        (0, "n2", 1.0, 2**30)
    ]


def test_a_submission_asks_the_database_six_times(
    api: Api, portal: Portal, django_assert_num_queries: Any
) -> None:
    client = api(portal.cast.owner)
    body = {"command": "true"}
    client.post(JOBS, body)  # the audit chain begins, the cluster's shapes are read

    # The token; what the person may use; begin; the job, its event and the head of the audit chain; the audit row; end.
    with django_assert_num_queries(6):
        assert client.post(JOBS, body).status_code == 201


def test_lists_and_details_take_as_many_queries_for_three_as_for_one(
    api: Api, portal: Portal, django_assert_num_queries: Any
) -> None:
    client = api(portal.cast.owner)
    running(portal)
    client.get(JOBS)

    # The token; the projects; the rows; what belongs to them.
    with django_assert_num_queries(4):
        client.get(JOBS)
    running(portal)
    running(portal)
    with django_assert_num_queries(4):
        client.get(JOBS)
    with django_assert_num_queries(7):
        client.get(f"{JOBS}/{Job.objects.latest('number').number}")


def test_pages_are_stable_while_jobs_come_in(api: Api, portal: Portal) -> None:
    client = api(portal.cast.owner)
    numbers = [portal.submit().number for _ in range(5)]

    first = client.get(JOBS, {"limit": 2}).json()
    portal.submit()
    second = client.get(first["next"]).json()
    third = client.get(second["next"]).json()

    seen = [job["number"] for page in (first, second, third) for job in page["results"]]
    assert seen == sorted(numbers, reverse=True)
    assert (first["previous"], third["next"]) == (None, None)
    assert "script" not in first["results"][0]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("state=queued", {"a", "b", "held"}),
        ("state__in=running,cancelled", {"busy"}),
        ("state_detail=held", {"held"}),
        ("name=US", {"busy"}),
        ("user=me", {"a", "b", "held", "busy"}),
        ("user=colleague", {"theirs"}),
        ("queue=default&label=team=red", {"a"}),
        ("label=team", {"a", "b"}),
        ("label=team&label=size=1", {"a"}),
        ("gpu_type=a100", {"b"}),
        ("project=vision&state=running", {"busy"}),
        ("reason_category=ask", {"held"}),
        ("node=n2", {"busy"}),
        ("submitted__gte=2999-01-01T00:00:00Z", set()),
    ],
)
def test_lists_are_filtered_by_the_server(api: Api, portal: Portal, query: str, expected: set[str]) -> None:
    portal.submit(name="a", labels={"team": "red", "size": "1"})
    portal.submit(name="b", labels={"team": "blue"}, gpu_count=1, gpu_type="A100")
    portal.submit(name="held", hold=True)
    running(portal, name="busy")
    JobFactory(
        project=portal.cast.project, user=portal.cast.colleague, name="theirs", state=JobState.PREEMPTED
    )

    answer = api(portal.cast.owner).get(f"{JOBS}?{query}")

    assert answer.status_code == 200, answer.content
    assert {job["name"] for job in answer.json()["results"]} == expected


@pytest.mark.parametrize(
    "query",
    ["state=waiting", "state__in=queued,lost", "submitted__gte=soon", "colour=red", "limit=0", "limit=501",
     "limit=x", "array_id=x", "name=%00", "cursor=%ff", "cursor=bm9uc2Vuc2U="],
)  # fmt: skip
def test_a_filter_that_makes_no_sense_is_refused_and_not_ignored(api: Api, cast: Cast, query: str) -> None:
    answer = api(cast.owner).get(f"{JOBS}?{query}")

    assert answer.status_code in (400, 404), answer.content
    assert answer["Content-Type"] == "application/problem+json"


def test_states_of_many_jobs_come_in_one_answer(api: Api, portal: Portal) -> None:
    jobs = [portal.submit() for _ in range(3)]
    hidden = JobFactory()

    answer = api(portal.cast.owner).get(
        f"{JOBS}/state", {"ids": f"{jobs[0].number},{jobs[1].uuid},{hidden.number}"}
    )

    assert [(row["number"], row["state"]) for row in answer.json()["results"]] == [
        (jobs[0].number, "queued"),
        (jobs[1].number, "queued"),
    ]
    assert api(portal.cast.owner).get(f"{JOBS}/state", {"ids": "1,x"}).status_code == 400


# ---------------------------------------------------------------- verbs


def test_cancelling_says_whether_it_is_over(api: Api, portal: Portal) -> None:
    client = api(portal.cast.owner)

    pending = client.delete(f"{JOBS}/{portal.submit().number}?reason=not+needed")
    busy = client.delete(f"{JOBS}/{running(portal).uuid}")

    assert (pending.status_code, pending.json()["state"]) == (200, "cancelled")
    assert pending.json()["end_text"].endswith(": not needed")
    assert (busy.status_code, busy.json()["state_detail"]) == (202, "stopping")


def test_hold_release_and_requeue(api: Api, portal: Portal) -> None:
    client, job = api(portal.cast.owner), portal.submit()

    held = client.post(f"{JOBS}/{job.number}/hold", {"reason": "wait"})
    free = client.post(f"{JOBS}/{job.number}/release")
    again = client.post(f"{JOBS}/{job.number}/release")
    busy = client.post(f"{JOBS}/{running(portal).number}/requeue")

    assert [a.status_code for a in (held, free, again, busy)] == [200, 200, 409, 200]
    assert held.json()["reason"]["code"] == "HeldByUser"
    assert (free.json()["state_detail"], busy.json()["state_detail"]) == ("queued", "preempting")


@pytest.mark.parametrize(
    ("who", "status"),
    [
        ("owner", 403),
        ("colleague", 403),
        ("lead", 403),
        ("stranger", 404),
        ("auditor", 403),
        ("operator", 200),
    ],
)
def test_who_may_boost(api: Api, portal: Portal, who: str, status: int) -> None:
    job = portal.submit(priority=30)

    answer = api(getattr(portal.cast, who)).post(
        f"{JOBS}/{job.number}/boost", {"points": 20, "seconds": 3600, "reason": "its node died twice"}
    )

    assert answer.status_code == status
    job.refresh_from_db()
    assert (job.priority, job.boost_now) == (30, 20 if status == 200 else 0)
    if status == 200:
        assert (answer.json()["priority"], answer.json()["boost"]["points"]) == (30, 20)


@pytest.mark.parametrize(
    ("who", "status"),
    [("owner", 200), ("colleague", 403), ("viewer", 403), ("stranger", 404), ("operator", 200)],
)
def test_who_may_cancel(api: Api, portal: Portal, who: str, status: int) -> None:
    job = portal.submit()

    answer = api(getattr(portal.cast, who)).delete(f"{JOBS}/{job.number}")

    assert answer.status_code == status
    job.refresh_from_db()
    assert (job.state == JobState.CANCELLED) == (status == 200)
    assert AuditEvent.objects.filter(outcome="denied").count() == (status != 200)


@pytest.mark.parametrize(
    ("scope", "method", "tail", "status"),
    [
        ("jobs:read", "get", "", 200), ("jobs:read", "delete", "", 403), ("jobs:read", "post", "/hold", 403),
        ("jobs:write", "get", "", 200), ("jobs:write", "delete", "", 200), ("nodes:read", "get", "", 403),
        ("jobs:read", "get", "/logs", 200), ("quota:read", "get", "/logs", 403),
    ],
)  # fmt: skip
def test_a_token_does_no_more_than_its_scopes(
    api: Api, portal: Portal, scope: str, method: str, tail: str, status: int
) -> None:
    client = api(portal.cast.owner, scope)

    answer = getattr(client, method)(f"{JOBS}/{portal.submit().number}{tail}")

    assert answer.status_code == status
    if status == 403:
        assert answer.json()["code"] == "scope-missing"


# ---------------------------------------------------------------- events, logs, why, preview


def test_events_are_told_in_order(api: Api, portal: Portal) -> None:
    client, job = api(portal.cast.owner), portal.submit()
    client.delete(f"{JOBS}/{job.number}")

    events = client.get(f"{JOBS}/{job.number}/events").json()["results"]

    assert [(event["kind"], event["actor"]) for event in events] == [
        ("job.submitted", "owner"),
        ("job.cancelled", "owner"),
    ]


def test_a_log_is_read_from_an_offset_on(api: Api, portal: Portal) -> None:
    client, job = api(portal.cast.owner), running(portal)
    logs = f"{JOBS}/{job.number}/logs"

    whole = client.get(logs, {"stream": "stdout"}).json()
    rest = client.get(logs, {"offset": 4, "limit": 1}).json()
    plain = client.get(logs, {"offset": 2}, headers={"Accept": "text/plain"})

    assert whole == {"stream": "stdout", "offset": 0, "next_offset": 6, "eof": False,
                     "awaited_bytes": None, "text": "hello\n"}  # fmt: skip
    assert rest == {"stream": "merged", "offset": 4, "next_offset": 5, "eof": False,
                    "awaited_bytes": None, "text": "o"}  # fmt: skip
    assert (plain.content, plain["X-Next-Offset"], plain["X-Eof"]) == (b"llo\n", "6", "false")
    assert plain["Content-Type"] == "text/plain; charset=utf-8"


def test_a_log_ends_when_the_job_has(api: Api, portal: Portal) -> None:
    client, job = api(portal.cast.owner), running(portal)
    Attempt.objects.update(state=AttemptState.SUCCEEDED, ended_at=timezone.now() - timedelta(days=1))
    Job.objects.update(state=JobState.COMPLETED, completed_at=timezone.now())

    assert client.get(f"{JOBS}/{job.number}/logs").json()["eof"] is True


def test_a_character_is_never_cut_in_two(api: Api, portal: Portal) -> None:
    job = running(portal)
    LogChunkFactory(task=Attempt.objects.get().tasks.get(), offset=6, data="grüße 🚀".encode())
    client, text, offset = api(portal.cast.owner), "", 0

    for _ in range(30):
        part = client.get(
            f"{JOBS}/{job.number}/logs", {"stream": "stdout", "offset": offset, "limit": 5}
        ).json()
        text, offset = text + part["text"], part["next_offset"]

    assert text == "hello\ngrüße 🚀"


@pytest.mark.parametrize(
    "query", ["stream=both", "offset=-1", "offset=x", "limit=0", "limit=99999999", "rank=-1", "attempt=0"]
)
def test_a_log_query_that_makes_no_sense_is_refused(api: Api, portal: Portal, query: str) -> None:
    answer = api(portal.cast.owner).get(f"{JOBS}/{running(portal).number}/logs?{query}")

    assert answer.status_code == 400
    assert answer.json()["errors"][0]["field"] == query.partition("=")[0]


def test_a_waiting_job_says_why_with_numbers(api: Api, portal: Portal) -> None:
    job = portal.submit(cpu_cores=16, nodes=2)
    type(portal.n1).objects.filter(pk=portal.n1.pk).update(cordoned=True)

    body = api(portal.cast.owner).get(f"{JOBS}/{job.number}/why?nodes=1").json()

    assert body["number"] == job.number
    assert body["reason_code"]
    assert {node["name"] for node in body["node_table"]} == {"n1", "n2"}
    assert body["snapshot_at"].endswith("Z")
    assert body["order"] == {"policy": "fifo", "placement": "best_fit", "rule": "", "since": None}


def test_a_preview_writes_nothing(api: Api, portal: Portal) -> None:
    client = api(portal.cast.owner, "jobs:read")

    now = client.post(f"{JOBS}/preview", {"command": "true"})
    never = client.post(f"{JOBS}/preview", {"command": "true", "gpu_count": 1000})

    assert (now.json()["verdict"], now.json()["nodes"][0]["name"]) == ("starts_now", "n1")
    assert never.json()["verdict"] == "never"
    assert (Job.objects.count(), JobEvent.objects.count()) == (0, 0)
