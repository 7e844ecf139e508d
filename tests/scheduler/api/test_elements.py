"""Elements of an array that share a job, through the API: what comes back, and who may cancel one."""

from __future__ import annotations

from typing import Any

import pytest

from accounts.models import AuditEvent
from scheduler.models import ElementEnd, Job
from tests.scheduler.api.conftest import Api
from tests.scheduler.portal import Portal

JOBS = "/api/v1/jobs"
FIELDS = {
    "index", "state", "attempt", "exit_code", "exit_signal", "started_at", "ended_at", "cpu_time_ms",
    "peak_memory_mib", "stdout_offset", "stdout_bytes", "stderr_offset", "stderr_bytes", "text",
}  # fmt: skip


def submitted(api: Api, portal: Portal, **more: Any) -> Job:
    body = {"command": "true", "memory": "16Mi", "array": "0-9", "elements_per_job": 4, **more}
    answer = api(portal.cast.owner).post(JOBS, body, format="json")
    assert answer.status_code == 201, answer.json()
    return Job.objects.get(number=answer.json()["number"])


def test_a_job_lists_its_elements_and_a_plain_one_has_none(api: Api, portal: Portal) -> None:
    job, client = submitted(api, portal), api(portal.cast.owner)

    rows = client.get(f"{JOBS}/{job.number}/elements").json()["results"]

    assert [(row["index"], row["state"], row["attempt"]) for row in rows] == [
        (index, "not_ended", None) for index in range(4)
    ]
    assert all(set(row) == FIELDS for row in rows)
    assert client.get(f"{JOBS}/{portal.submit().number}/elements").json() == {"results": []}


def test_a_batch_says_how_many_jobs_an_array_became(api: Api, portal: Portal) -> None:
    body = {
        "jobs": [
            {"command": "true", "memory": "16Mi", "array": "0-9", "elements_per_job": 4},
            {"command": "true"},
        ]
    }

    answer = api(portal.cast.owner).post(f"{JOBS}:bulk", body, format="json").json()

    assert [item["jobs"] for item in answer["results"]] == [3, 1]
    assert [job.elements.indices for job in Job.objects.filter(array_id__isnull=False).order_by("number")] == [
        [0, 1, 2, 3], [4, 5, 6, 7], [8, 9],
    ]  # fmt: skip


def test_a_cancelled_element_says_who_did_it(api: Api, portal: Portal) -> None:
    job, client = submitted(api, portal), api(portal.cast.owner)
    path = f"{JOBS}/{job.number}/elements/2/cancel"

    answers = [client.post(path, {"reason": "wrong input"}, format="json") for _ in range(2)]

    assert [answer.status_code for answer in answers] == [200, 200]
    assert answers[0].json()["state"] == "cancelled"
    assert "wrong input" in answers[0].json()["text"]
    assert ElementEnd.objects.filter(job=job).count() == 1
    assert AuditEvent.objects.filter(action="element.cancel").count() == 1
    assert client.post(f"{JOBS}/{job.number}/elements/7/cancel", {}, format="json").status_code == 404


@pytest.mark.parametrize(
    ("who", "list_status", "cancel_status"),
    [
        ("owner", 200, 200),
        ("colleague", 200, 403),
        ("viewer", 200, 403),
        ("stranger", 404, 404),
        ("admin", 200, 200),
    ],
)
def test_who_may(api: Api, portal: Portal, who: str, list_status: int, cancel_status: int) -> None:
    job, client = submitted(api, portal), api(getattr(portal.cast, who))

    assert client.get(f"{JOBS}/{job.number}/elements").status_code == list_status
    answer = client.post(f"{JOBS}/{job.number}/elements/1/cancel", {}, format="json")
    assert answer.status_code == cancel_status
    assert ElementEnd.objects.filter(job=job).exists() == (cancel_status == 200)


def test_a_token_that_only_reads_cancels_nothing(api: Api, portal: Portal) -> None:
    job = submitted(api, portal)
    client = api(portal.cast.owner, "jobs:read")

    assert client.post(f"{JOBS}/{job.number}/elements/1/cancel", {}, format="json").status_code == 403
