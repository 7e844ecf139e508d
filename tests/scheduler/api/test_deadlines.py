"""Finding 23 through the API: the answer to a submission, lists, a script of sbatch, and the report of a queue."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.test import Client
from django.utils import timezone

from scheduler.core.lifecycle import JobState
from scheduler.models import Job, JobRequest
from tests.scheduler.api.conftest import Api
from tests.scheduler.portal import Portal
from tests.support.factories import Cast, JobFactory

JOBS = "/api/v1/jobs"


def within(**span: float) -> str:
    return (timezone.now() + timedelta(**span)).isoformat()


def test_the_answer_to_a_submission_says_that_the_deadline_is_at_risk(api: Api, cast: Cast) -> None:
    client = api(cast.owner)
    asked = {"command": "true", "time_limit": "10m", "wait_limit": "1h"}

    late = client.post(JOBS, {**asked, "deadline": within(minutes=5)}).json()
    fine = client.post(JOBS, {**asked, "deadline": within(minutes=20)}).json()

    assert (late["deadline_outlook"]["state"], late["wait_limit"]) == ("late", 3600)
    assert 298 <= late["deadline_outlook"]["late_seconds"] <= 301
    assert fine["deadline_outlook"]["state"] == "on-time"
    listed = client.get(f"{JOBS}?deadline=late").json()["results"]
    assert [job["number"] for job in listed] == [late["number"]]
    assert listed[0]["deadline_outlook"]["state"] == "late"
    assert client.get(f"{JOBS}?deadline=soon").status_code == 400


def test_the_preview_says_so_before(api: Api, cast: Cast) -> None:
    asked = {"command": "true", "time_limit": "10m", "deadline": within(minutes=5)}
    client = api(cast.owner)

    assert "ends" in client.post(f"{JOBS}/preview", asked).json()["deadline"]
    assert client.post(f"{JOBS}/preview", {**asked, "time_limit": "2m"}).json()["deadline"] == ""


def test_a_deadline_of_sbatch_ends_the_job_as_in_slurm(api: Api, cast: Cast) -> None:
    script = "#!/bin/sh\n#SBATCH --time=5\n#SBATCH --deadline=now+1hour\ntrue\n"

    answer = api(cast.owner).post("/api/v1/slurm/sbatch", {"script": script})

    job = Job.objects.get(number=answer.json()["job_id"])
    assert (answer.json()["ignored"], job.deadline_action) == ([], "end")
    assert job.deadline_at is not None
    assert job.check_at == job.deadline_at - timedelta(minutes=5)
    hopeless = script.replace("now+1hour", "now+3minutes")
    refused = api(cast.owner).post("/api/v1/slurm/sbatch", {"script": hopeless})
    assert (refused.status_code, refused.json()["errors"][0]["code"]) == (422, "deadline-too-early")


def due(portal: Portal, *, ago: float, ended: float | None, state: str, waited: int = 10) -> Job:
    """A job whose deadline was `ago` minutes ago; it ended `ended` minutes after it."""
    deadline = timezone.now() - timedelta(minutes=ago)
    created = deadline - timedelta(hours=1)
    job: Job = JobFactory.create(
        project=portal.cast.project, user=portal.cast.owner, queue=portal.queue, state=state,
        deadline_at=deadline, created_at=created, started_at=created + timedelta(seconds=waited),
        completed_at=None if ended is None else deadline + timedelta(minutes=ended),
    )  # fmt: skip
    return job


def test_the_report_of_a_queue_counts_met_and_missed_and_by_how_much(
    portal: Portal, api: Api, client: Client
) -> None:
    due(portal, ago=60, ended=-5, state=JobState.COMPLETED)
    due(portal, ago=60, ended=-5, state=JobState.COMPLETED, waited=100)
    late = due(portal, ago=60, ended=3, state=JobState.COMPLETED)
    due(portal, ago=60, ended=-5, state=JobState.FAILED)
    due(portal, ago=60, ended=-5, state=JobState.CANCELLED)
    runs = due(portal, ago=30, ended=None, state=JobState.RUNNING)
    due(portal, ago=60 * 24 * 8, ended=3, state=JobState.COMPLETED)  # longer ago
    due(portal, ago=-60, ended=None, state=JobState.RUNNING)  # ahead
    path = f"/api/v1/queues/{portal.queue.slug}/deadlines"

    body: dict[str, Any] = api(portal.cast.owner).get(path).json()

    counts = {name: body[name] for name in ("jobs", "met", "missed", "late", "failed", "cancelled", "ahead")}
    assert counts == {"jobs": 6, "met": 2, "missed": 3, "late": 2, "failed": 1, "cancelled": 1, "ahead": 1}
    assert body["met_percent"] == 40
    assert (body["late_by"]["median"], body["waits"]) == (180, {"median": 10, "high": 100, "highest": 100})
    assert 1799 <= body["late_by"]["highest"] <= 1810
    assert api(portal.cast.owner).get(f"{path}?days=9").json()["late"] == 3
    assert api(portal.cast.owner).get(f"{path}?days=0").status_code == 400

    client.force_login(portal.cast.owner)
    page = client.get(f"/queues/{portal.queue.pk}/deadlines/").content.decode()
    assert f"/jobs/{late.number}/" in page
    assert f"/jobs/{runs.number}/" in page
    assert "40 % met" in page
    client.force_login(portal.cast.stranger)
    assert f"/jobs/{late.number}/" not in client.get(f"/queues/{portal.queue.pk}/deadlines/").content.decode()
    assert JobRequest.objects.count() == 8
