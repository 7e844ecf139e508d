"""What jobs asked for and used: the page, the API, the files; whose jobs one sees."""

from __future__ import annotations

import csv
import io
import json
from datetime import timedelta

import pytest
from django.urls import reverse
from django.utils import timezone

from scheduler.core.lifecycle import JobState
from scheduler.models import Job
from tests.support.factories import AllocationFactory, AttemptFactory, JobFactory, TaskFactory

API = "/api/v1/jobs/efficiency"
HOUR = 3600


def ran(
    world, *, hours: float, state: str = "succeeded", job: Job | None = None, epoch: int = 1, **words
) -> Job:
    """A try of two tasks that was measured: four cores and 8 GiB each."""
    end = timezone.now() - timedelta(hours=1)
    job = job or JobFactory(
        project=world.cast.project, user=world.cast.owner, state=JobState.COMPLETED, cpu_millis=4000,
        memory_mib=8192, tasks=2, time_limit_seconds=10 * HOUR, completed_at=end,
    )  # fmt: skip
    begin = end - timedelta(hours=hours)
    attempt = AttemptFactory(job=job, epoch=epoch, state=state, scheduled_at=begin, ended_at=end)
    for rank in range(2):
        AllocationFactory(
            attempt=attempt, rank=rank, node=world.plain, cpu_millis=4000, memory_mib=8192, gpu_millis=1000,
            held_at=begin, released_at=end,
        )  # fmt: skip
        measured = {"cpu_time_ms": int(hours * HOUR * 1000), "peak_memory_mib": 1024 * (rank + 1)} | words
        TaskFactory(attempt=attempt, rank=rank, node=world.plain, state="succeeded", **measured)
    return job


@pytest.fixture
def jobs(world):
    wasteful = ran(world, hours=2, gpu_watched_ms=2 * HOUR * 1000, gpu_busy_ms=HOUR * 200)
    failed = ran(world, hours=1, state="failed")
    ran(world, hours=0.5, job=failed, epoch=2)
    unmeasured = ran(world, hours=0.25, cpu_time_ms=None, peak_memory_mib=None)
    return wasteful, failed, unmeasured


def test_a_job_is_told_what_would_have_been_enough(as_user, world, jobs) -> None:
    rows = {row["number"]: row for row in as_user(world.cast.owner).get(API).json()["results"]}

    one = rows[jobs[0].number]
    assert (one["seconds"], one["asked_seconds"], one["unused_seconds"]) == (2 * HOUR, 10 * HOUR, 8 * HOUR)
    assert (one["time_percent"], one["cpu_percent"], one["memory_percent"]) == (20.0, 25.0, 25.0)
    # Two tasks of four cores for two hours, of which one core each worked.
    assert (one["cpu_milli_seconds"], one["idle_cpu_milli_seconds"]) == (16_000 * HOUR, 12_000 * HOUR)
    # Two GPUs for two hours, each of which worked for twelve minutes.
    assert (one["gpu_percent"], one["idle_gpu_milli_seconds"]) == (10.0, 3600 * HOUR)
    assert one["idle_memory_mib_seconds"] == (2 * 8192 - 1024 - 2048) * 2 * HOUR
    assert one["advice"] == [
        "Ran for 2 hours of a 10 hours time limit: request about 3 hours.",
        "Used 25 % of the allocated cores: request fewer.",
        "GPUs were busy 10 % of the time: request fewer, or a share of one.",
        "Peak memory 2.0 of 8 GiB: request 3 GiB.",
    ]
    tries = rows[jobs[1].number]
    assert (tries["tries"], tries["seconds"], tries["lost_gpu_milli_seconds"]) == (2, 5400, 2000 * HOUR)
    blank = rows[jobs[2].number]
    assert (blank["cpu_percent"], blank["memory_percent"], blank["idle_cpu_milli_seconds"]) == (None, None, 0)
    assert (blank["gpu_percent"], blank["gpu_measured"], blank["idle_gpu_milli_seconds"]) == (None, None, 0)


def test_what_wasted_most_comes_first(as_user, world, jobs) -> None:
    client = as_user(world.cast.owner)

    def order(sort: str) -> list[int]:
        return [row["number"] for row in client.get(API, {"sort": sort}).json()["results"]]

    wasteful, failed, unmeasured = (job.number for job in jobs)
    assert order("gpu")[0] == failed
    assert order("idle-gpu")[0] == wasteful
    assert order("cpu") == [wasteful, failed, unmeasured]
    assert order("memory")[0] == wasteful
    assert order("time") == [failed, unmeasured, wasteful]
    assert [row["number"] for row in client.get(API, {"limit": 1}).json()["results"]] == [failed]
    assert client.get(API, {"since": "2020-01-01", "until": "2020-02-01"}).json()["results"] == []


@pytest.mark.parametrize(
    "query",
    [{"sort": "name"}, {"limit": "0"}, {"since": "soon"}, {"job": "x"}, {"owner": "me"}, {"export": "xls"}],
)
def test_a_wrong_question_is_told_what_is_wrong(as_user, world, query) -> None:
    response = as_user(world.cast.owner).get(API, query)

    assert response.status_code == 400
    assert response.json()["errors"][0]["field"] == next(iter(query))


@pytest.mark.parametrize(
    ("person", "sees"), [("owner", 3), ("colleague", 3), ("operator", 3), ("stranger", 0)]
)
def test_whose_jobs_one_sees(as_user, world, jobs, person, sees) -> None:
    client = as_user(getattr(world.cast, person))

    assert len(client.get(API).json()["results"]) == sees
    page = client.get(reverse("efficiency")).content.decode()
    assert page.count("Suggested request") == (1 if sees else 0)
    assert ("request 3 GiB" in page) == bool(sees)
    files = [b"".join(client.get(API, {"export": kind}).streaming_content) for kind in ("csv", "json")]
    assert len(list(csv.DictReader(io.StringIO(files[0].decode())))) == len(json.loads(files[1])) == sees


def test_files_are_streamed_with_every_job(as_user, world, jobs) -> None:
    response = as_user(world.cast.owner).get(reverse("efficiency"), {"export": "csv", "sort": "cpu"})

    assert response.streaming
    rows = list(csv.DictReader(io.StringIO(b"".join(response.streaming_content).decode())))
    assert [int(row["number"]) for row in rows] == [job.number for job in jobs]
    assert rows[0]["cpu_percent"] == "25.0"


@pytest.mark.parametrize("count", [1, 3])
def test_the_page_asks_the_same_for_one_and_for_three(
    as_user, world, count, django_assert_max_num_queries
) -> None:
    for _ in range(count):
        ran(world, hours=1)
    client = as_user(world.cast.owner)
    client.get(reverse("efficiency"))

    with django_assert_max_num_queries(12):
        client.get(reverse("efficiency"))
