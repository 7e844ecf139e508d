"""The usage of a job on its page and in the API."""

from __future__ import annotations

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from scheduler.models import AttemptUsage
from scheduler.services.jobs.usage import JobUsage, Point
from scheduler.web.job_usage import usage_lines
from tests.scheduler.web.conftest import a_running_job
from tests.support.factories import UserFactory


@pytest.fixture
def used(world):
    job = a_running_job(world, cpu_millis=4000, memory_mib=8192)
    AttemptUsage.objects.create(
        attempt=job.attempts.get(), step_seconds=10, samples=[0, 1, 2], cpu_millis=[0, 3200, 2000],
        memory_mib=[0, 2048, 4096], gpu_samples=[0, 1, 1], gpu_percent=[0, 80, 40], gpu_memory_mib=[0, 100, 512],
    )  # fmt: skip
    return job


def test_the_page_has_a_line_for_each_figure_and_its_table(as_user, world, used) -> None:
    page = as_user(world.cast.owner).get(reverse("job", args=[used.number])).content.decode()

    assert page.count('class="usage-line"') == 4
    assert "CPU: 1 core of 1 core at last, 3.2 cores at most" in page
    assert "GPU utilisation: 40 % of 100 % at last, 80 % at most" in page
    assert "From the start, over 30 s." in page
    assert '<td class="nowrap">10 s</td>' in page


def test_placement_has_the_use_of_a_task_that_runs(as_user, world, used) -> None:
    """Nodes report the use of a task at its end; until then the card shows what was sampled."""
    page = as_user(world.cast.owner).get(reverse("job", args=[used.number])).content.decode()

    row = page.split("Placement</h2>")[1].split("</table>")[0]
    assert "4 GiB" in row
    assert "1 core in use" in row
    assert "–" not in row


def test_the_part_that_is_live_has_the_lines_and_no_more_queries(
    as_user, world, used, django_assert_num_queries
) -> None:
    client, url = as_user(world.cast.owner), reverse("job", args=[used.number]) + "?partial=1&tab=overview"
    client.get(url)
    with CaptureQueriesContext(connection) as with_lines:
        assert "usage-line" in client.get(url).content.decode()
    AttemptUsage.objects.all().delete()
    with django_assert_num_queries(len(with_lines)):
        assert "usage-line" not in client.get(url).content.decode()


def test_the_api_has_the_points_beside_what_was_given(as_user, world, used) -> None:
    answer = as_user(world.cast.owner).get(f"/api/v1/jobs/{used.number}/usage").json()

    assert (answer["attempt"], answer["step_seconds"], answer["tasks"]) == (1, 10, 1)
    assert answer["given"]["gpu_memory_mib"] > 0
    assert answer["points"][1] == {
        "at_seconds": 20, "cpu_millis": 1000, "memory_mib": 4096, "gpu_percent": 40, "gpu_memory_mib": 512,
    }  # fmt: skip


def test_the_api_knows_jobs_that_never_started_attempts_and_strangers(as_user, world, used) -> None:
    client = as_user(world.cast.owner)
    assert client.get(f"/api/v1/jobs/{world.job.number}/usage").json()["points"] == []
    assert client.get(f"/api/v1/jobs/{used.number}/usage?attempt=9").status_code == 404
    assert as_user(UserFactory()).get(f"/api/v1/jobs/{used.number}/usage").status_code == 404


def test_a_single_point_is_a_line_and_a_gap_is_bridged() -> None:
    def lines(*points: Point):
        shown = usage_lines(JobUsage(1, None, 10, list(points), 1, 1000, 1024, 0))
        assert shown is not None
        return shown.lines

    (cpu, _) = lines(Point(10, 500, 1, None, None))
    assert [spot.split(",")[0] for spot in cpu.points.split()] == ["0.0", "320.0"]
    (cpu, _) = lines(Point(0, 500, 1, None, None), Point(30, 2000, 1, None, None))
    assert [spot.split(",")[0] for spot in cpu.points.split()] == ["40.0", "280.0"]
    assert cpu.given_y == 34.4
    assert usage_lines(JobUsage(1, None, 10, [], 1, 1000, 1024, 0)) is None
