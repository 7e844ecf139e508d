"""Lists of more jobs than anybody reads: found through indexes, whole and in order whichever way is taken."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.db.models import Q

from accounts.models import User
from accounts.selectors import visible_projects
from scheduler import job_lists
from scheduler.core.lifecycle import JobState
from scheduler.job_lists import queue_totals
from scheduler.models import Job
from scheduler.models import job as job_module
from scheduler.models.job import OVER
from scheduler.selectors import listed_jobs, visible_jobs
from scheduler.web import reads
from tests.scheduler.api.conftest import Api
from tests.scheduler.portal import Portal
from tests.support.factories import JobFactory, MembershipFactory, ProjectFactory
from tests.support.roles import had_asked

JOBS = "/api/v1/jobs"
MOMENT = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.fixture
def person(portal: Portal) -> User:
    """A member of three projects, with jobs in two of them, and strangers' jobs between."""
    projects = [portal.cast.project, ProjectFactory(), ProjectFactory()]
    for project in projects[1:]:
        MembershipFactory(user=portal.cast.owner, project=project)
    strange = ProjectFactory()
    for number in range(12):
        of = (projects[0], projects[1], strange)[number % 3]
        JobFactory(
            project=of, user=portal.cast.owner if of != strange else portal.cast.stranger, queue=portal.queue,
            name=f"train {number}", labels={"nth": str(number % 2)},
            state=JobState.COMPLETED if number < 6 else JobState.FAILED if number < 9 else JobState.QUEUED,
            completed_at=MOMENT if number < 9 else None, created_at=MOMENT + timedelta(hours=number),
        )  # fmt: skip
    return portal.cast.owner


@pytest.mark.parametrize("order", ["-number", "number", "-created_at"])
@pytest.mark.parametrize("states", [OVER, ["failed"], ["queued", "running"], ["cancelled"]])
def test_the_newest_of_several_projects_are_those_of_all_of_them(
    person: User, order: str, states: list[str]
) -> None:
    assert len(visible_projects(person)) == 3
    rows = listed_jobs(person).filter(state__in=states).order_by(order)
    plain = list(visible_jobs(person).filter(state__in=states).order_by(order))

    assert [list(rows[at : at + 3]) for at in (0, 1, 4)] == [plain[at : at + 3] for at in (0, 1, 4)]
    numbers = [{"number": job.number, "project__slug": job.project.slug} for job in plain]
    assert list(rows.values("number", "project__slug")[:5]) == numbers[:5]
    assert list(rows.values_list("number", flat=True)[1:3]) == [job.number for job in plain[1:3]]
    assert rows[:1].count() == min(1, len(plain))
    assert list(rows) == plain
    assert rows.first() == (plain[0] if plain else None)


def test_a_page_of_several_projects_goes_on_where_it_ended(api: Api, person: User) -> None:
    client, seen, url = api(person), [], f"{JOBS}?limit=3"

    while url:
        page = client.get(url).json()
        seen += [job["name"] for job in page["results"]]
        url = page["next"]

    assert seen == [f"train {number}" for number in (10, 9, 7, 6, 4, 3, 1, 0)]


@pytest.mark.parametrize("few", [0, 2, 2000])
@pytest.mark.parametrize(
    ("query", "numbers"),
    [
        ("name=TRAIN", [10, 9, 7, 6, 4, 3, 1, 0]),
        ("name=rain%201", [10, 1]),
        ("name=n%201&state=queued", [10]),
        ("name=none", []),
        ("label=nth=1", [9, 7, 3, 1]),
        ("label=nth&state=completed&name=train", [4, 3, 1, 0]),
        ("label=nth=1&label=other", []),
    ],
)
def test_words_and_labels_find_the_same_whether_few_or_many_match(
    api: Api, person: User, monkeypatch: pytest.MonkeyPatch, query: str, numbers: list[int], few: int
) -> None:
    monkeypatch.setattr(job_module, "FEW", few)

    found = api(person).get(f"{JOBS}?{query}").json()["results"]

    assert [job["name"] for job in found] == [f"train {number}" for number in numbers]


@pytest.mark.parametrize("few", [0, 2, 5000])
def test_a_search_finds_words_or_people_or_a_number_and_nothing_hidden(
    person: User, monkeypatch: pytest.MonkeyPatch, few: int
) -> None:
    monkeypatch.setattr(job_module, "FEW", few)
    number = Job.objects.get(name="train 4").number
    hidden = Job.objects.get(name="train 11")
    wanted = [Q(name__icontains="n 1"), Q(number=number), Q(user=hidden.user)]

    found = listed_jobs(person).matching(*wanted)

    assert [job.name for job in found.order_by("-number")[:5]] == ["train 10", "train 4", "train 1"]
    assert found.filter(state="queued").count() == 1
    counts = job_lists.state_counts(found)
    assert {state: count.jobs for state, count in counts.items()} == {"queued": 1, "completed": 2}
    assert list(listed_jobs(person).matching(Q(name="train 11"))) == []


def test_what_was_submitted_until_a_moment_comes_in_the_order_of_submission(api: Api, person: User) -> None:
    late = JobFactory(project=Job.objects.last().project, user=person, name="late", created_at=MOMENT)
    had_asked(*Job.objects.filter(name__in=["train 3", "train 4"]), created_at=MOMENT)
    until = (MOMENT + timedelta(hours=7)).isoformat().replace("+", "%2B")
    client, seen, url = api(person), [], f"{JOBS}?limit=2&submitted__lte={until}"

    while url:
        page = client.get(url).json()
        seen += [job["name"] for job in page["results"]]
        url = page["next"]

    assert late.number > Job.objects.get(name="train 7").number
    assert seen == ["train 7", "train 6", "train 1", "late", "train 4", "train 3", "train 0"]


def test_the_strip_counts_up_to_a_bound_and_says_where_it_estimates(
    person: User, monkeypatch: pytest.MonkeyPatch, django_assert_num_queries: Any
) -> None:
    jobs = listed_jobs(person)

    with django_assert_num_queries(1):
        exact = reads.public_counts(jobs)
    monkeypatch.setattr(job_lists, "MOST_COUNTED", 3)
    with django_assert_num_queries(2):  # and the estimate of one state
        bounded = reads.public_counts(jobs)

    assert {c.state.value: c.shown for c in exact if c.count} == {
        "completed": "4", "failed": "2", "queued": "2"
    }  # fmt: skip
    assert reads.sum_of(exact) == (8, False)
    estimated = {c.state.value: c for c in bounded if c.estimated}
    assert list(estimated) == ["completed"]
    assert estimated["completed"].count >= 3
    assert estimated["completed"].shown.startswith("≈ ")
    assert "estimated" in estimated["completed"].help
    assert {c.state.value: c.shown for c in bounded if c.count and not c.estimated} == {
        "failed": "2", "queued": "2"
    }  # fmt: skip
    assert reads.sum_of(bounded).estimated
    assert reads.sum_of(reads.public_counts(jobs.none())) == (0, False)


@pytest.mark.parametrize(
    ("count", "shown"),
    [((1234, False), "1,234"), ((1234, True), "≈ 1,200"), ((987_654, True), "≈ 990,000"), ((7, True), "≈ 7")],
)
def test_an_estimate_is_rounded_and_has_a_sign(count: tuple[int, bool], shown: str) -> None:
    assert reads.count_words(job_lists.Count(*count)) == shown


def test_queues_count_their_jobs_up_to_a_bound_and_estimate_above_it(
    api: Api, portal: Portal, person: User, django_assert_num_queries: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = api(person)

    def shown() -> tuple[int, int, bool]:
        queue = client.get(f"/api/v1/queues/{portal.queue.slug}").json()
        return queue["pending_jobs"], queue["total_jobs"], queue["total_is_estimate"]

    assert shown() == (3, 12, False)
    with django_assert_num_queries(1):
        assert queue_totals([portal.queue.pk, 0]) == {portal.queue.pk: (12, False), 0: (0, False)}
    monkeypatch.setattr(job_lists, "MOST_COUNTED", 5)
    pending, total, estimated = shown()

    assert (pending, estimated) == (3, True)
    assert total >= 5


def test_the_summary_of_all_queues_names_the_states_that_it_estimates(
    api: Api, person: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = api(person)

    exact = client.get("/api/v1/queue").json()
    monkeypatch.setattr(job_lists, "MOST_COUNTED", 3)
    bounded = client.get("/api/v1/queue").json()

    counts = {state: jobs for state, jobs in exact["states"].items() if jobs}
    assert (counts, exact["estimated_states"]) == ({"queued": 2, "completed": 4, "failed": 2}, [])
    assert bounded["estimated_states"] == ["completed"]
    assert bounded["states"]["completed"] >= 3
    assert (bounded["states"]["failed"], bounded["pending_jobs"]) == (2, 2)


def test_the_planner_knows_how_often_words_of_names_occur(db: None) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT stxname FROM pg_statistic_ext WHERE stxname = 'request_upper_name'")
        assert cursor.fetchone() is not None
