"""A page of jobs is read by statements of its own, and shows what the objects of the models would."""

from __future__ import annotations

import random
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import time_machine
from django.utils import timezone

from accounts.models import User
from scheduler import job_lists
from scheduler.api.serializers import JobSerializer, moment
from scheduler.core.lifecycle import TERMINAL, AttemptState, JobState
from scheduler.core.reason_codes import ReasonCategory, ReasonCode
from scheduler.job_lists import JobRow, how_many, job_rows, node_names
from scheduler.models import DependencyKind, Job, StartForecast
from scheduler.selectors import listed_jobs, priority_names, visible_jobs, with_allocations
from tests.scheduler.api.conftest import Api
from tests.scheduler.portal import Portal
from tests.support.factories import (
    AllocationFactory,
    AttemptFactory,
    JobDependencyFactory,
    JobFactory,
    MembershipFactory,
    ProjectFactory,
)

JOBS = "/api/v1/jobs"
NOT_IN_LISTS = ("command", "script", "env", "secrets", "upload", "expected_runtime", "relax", "reservation")
MOMENT = datetime(2026, 3, 1, 12, 30, 5, 250, tzinfo=UTC)


def some_jobs(portal: Portal, seed: int, count: int = 12) -> list[Job]:
    """Jobs with every field set in some and left out in others, with what belongs to jobs of their state."""
    dice = random.Random(seed)
    projects = [portal.cast.project, ProjectFactory()]
    MembershipFactory(user=portal.cast.owner, project=projects[1])
    made = [_a_job(portal, dice, dice.choice(projects)) for _ in range(count)]
    for job in made:
        _relations(portal, dice, job, made)
    return made


def _a_job(portal: Portal, dice: random.Random, project: Any) -> Job:
    def maybe(value: Any, without: Any = None) -> Any:
        return value if dice.random() < 0.5 else without

    def at() -> datetime | None:
        return maybe(MOMENT + timedelta(seconds=dice.randrange(1, 10**6)))

    state = dice.choice(list(JobState))
    waits, deadline = state in (JobState.QUEUED, JobState.HELD), at()
    return JobFactory(
        project=project, user=portal.cast.owner, queue=portal.queue, state=state,
        name=dice.choice(["train", "Ünïcode 'quoted\" %s {x}", "a" * 200]), job_type=maybe("interactive", "batch"),
        epoch=dice.choice([0, 1, 2]), tasks=4, nodes=maybe(2), tasks_per_node=maybe(2), min_tasks=maybe(3),
        elastic=maybe(True, False), on_task_failure=dice.choice(["fail", "wait"][:1]), pack=maybe("rack", ""),
        pack_required=maybe(True, False), assembly_timeout_seconds=maybe(60), assembly_until_at=at(),
        cpu_millis=dice.choice([0, 500, 2000]), memory_mib=dice.choice([0, 1023]), storage_mib=maybe(5, 0),
        cpu_limit_millis=maybe(4000), memory_limit_mib=maybe(2048), gpus=maybe(1, 0), gpu_model=maybe("A100", ""),
        gpu_slice=maybe("1g.10gb", ""), extras=maybe({"licence": 2}, {}), time_limit_seconds=maybe(3600),
        working_dir=maybe("/data", ""), labels=maybe({"team": "x", "α": "β"}, {}),
        node_selector=maybe({"disk": "ssd"}, {}), tolerations=maybe([{"key": "k", "operator": "Exists"}], []),
        affinity=maybe({"node": {"required": []}}, {}), depends_until_at=at(), saved_at=at(),
        saved_path=maybe("/save", ""), array_id=maybe(uuid.uuid4()), array_index=maybe(7), array_max_running=maybe(3),
        priority=dice.randrange(101), boost=maybe(5, 0), max_restarts=dice.randrange(4),
        boost_until_at=timezone.now() + timedelta(days=dice.choice([-1, 1])), preemptible=maybe(False, True),
        created_at=MOMENT + timedelta(seconds=dice.randrange(10**6)), begin_at=at(), deadline_at=deadline,
        deadline_action=maybe("end", "none") if deadline else "none", wait_limit_seconds=maybe(600),
        eligible_at=at(), scheduled_at=at(), started_at=at(), expected_start_at=at(),
        completed_at=MOMENT if state in TERMINAL else None, exit_code=maybe(3), exit_signal=maybe(9),
        end_text=maybe("It ended.", ""), submitted_via=dice.choice(["api", "web"]),
        reason_code=maybe(ReasonCode.HELD_BY_USER, "") if waits else "",
        reason_category=ReasonCategory.FIX if waits else "", reason_text=maybe("Why.", ""),
        reason_details=maybe({"begin_ms": 1_772_000_000_000, "until": MOMENT.isoformat()}, {}),
    )  # fmt: skip


def _relations(portal: Portal, dice: random.Random, job: Job, others: list[Job]) -> None:
    if job.state == JobState.QUEUED and dice.random() < 0.7:
        StartForecast.objects.create(
            job=job, p10_at=MOMENT, p90_at=dice.choice([None, MOMENT]), unknown=dice.choice(["", "No end."]),
            computed_at=MOMENT,
        )  # fmt: skip
    for other in dice.sample(others, 2):
        if other != job and dice.random() < 0.5:
            JobDependencyFactory(job=job, on=other, satisfied=dice.choice([None, True, False]), group=1)
    if dice.random() < 0.2:
        JobDependencyFactory(job=job, on=None, data="genomes", kind=DependencyKind.DATA)
    for epoch in range(1, job.epoch + 1):
        over = epoch < job.epoch
        attempt = AttemptFactory(
            job=job, epoch=epoch, state=AttemptState.FAILED if over else AttemptState.RUNNING,
            **({"ended_at": timezone.now()} if over else {}),
        )  # fmt: skip
        for rank, node in enumerate([portal.n2, portal.n1, portal.n2][: dice.choice([1, 3])]):
            AllocationFactory(
                attempt=attempt, rank=rank, node=node, device_ids=dice.choice([[], [1, 2]]),
                numa_domain=dice.choice([None, 1]), held_at=MOMENT,
                released_at=timezone.now() if over else None,
            )  # fmt: skip


def as_objects_show(jobs: Any) -> list[dict[str, Any]]:
    """What the serializer of a whole job says of the models' objects, without what lists leave out."""
    whole = JobSerializer(
        with_allocations(jobs), many=True, context={"priority_names": priority_names()}
    ).data
    return [{name: value for name, value in job.items() if name not in NOT_IN_LISTS} for job in whole]


def in_order(shown: list[dict[str, Any]]) -> list[dict[str, Any]]:
    for job in shown:
        job["depends_on"].sort(key=lambda one: (one["group"], one["number"] or 0))
    return shown


@pytest.mark.parametrize("seed", range(6))
def test_a_page_says_of_each_job_what_its_objects_say(api: Api, portal: Portal, seed: int) -> None:
    # Between their deadlines, and at one moment: the outlook of a deadline counts seconds.
    with time_machine.travel(MOMENT + timedelta(days=5), tick=False):
        some_jobs(portal, seed)

        page = api(portal.cast.owner).get(f"{JOBS}?limit=50").json()["results"]

        whole = as_objects_show(visible_jobs(portal.cast.owner).order_by("-number"))
    assert len(page) == 12
    assert in_order(page) == in_order(whole)


def test_a_row_reads_like_the_job(portal: Portal) -> None:
    some_jobs(portal, 3)

    jobs = {job.number: job for job in visible_jobs(portal.cast.owner)}
    rows: list[JobRow] = list(job_rows(listed_jobs(portal.cast.owner).order_by("number")))  # type: ignore[arg-type]

    assert [row.number for row in rows] == sorted(jobs)
    for row in rows:
        job = jobs[row.number]
        for name in ("pk", "public_state", "boost_now", "is_terminal", "is_pending", "is_active"):
            assert getattr(row, name) == getattr(job, name), name
        assert (row.queue.name, row.project.name) == (job.queue.name, job.project.name)
        expected = job.likely_start and moment(job.likely_start.p10_at)
        assert (row.likely_start and moment(row.likely_start.p10_at)) == expected


def test_each_person_gets_the_jobs_that_they_may_see(api: Api, portal: Portal) -> None:
    some_jobs(portal, 1)
    of_project = {job.number for job in Job.objects.filter(project=portal.cast.project)}
    everything = {job.number for job in Job.objects.all()}

    def seen(person: User) -> set[int]:
        return {job["number"] for job in api(person).get(JOBS).json()["results"]}

    assert of_project < everything
    assert seen(portal.cast.owner) == everything
    assert seen(portal.cast.colleague) == of_project
    assert seen(portal.cast.stranger) == set()
    assert seen(portal.cast.operator) == everything


@pytest.mark.parametrize("jobs", [1, 3, 12])
def test_a_page_takes_as_many_statements_whatever_it_shows(
    api: Api, portal: Portal, django_assert_num_queries: Any, jobs: int
) -> None:
    some_jobs(portal, 2, max(jobs, 2))
    client = api(portal.cast.operator)
    client.get(JOBS)

    with django_assert_num_queries(3):  # the token; the rows; what belongs to them
        page = client.get(f"{JOBS}?limit={jobs}").json()["results"]
    assert len(page) == jobs


def test_a_list_that_nobody_has_a_job_in_is_empty(api: Api, portal: Portal) -> None:
    client = api(portal.cast.owner)

    assert client.get(JOBS).json()["results"] == []
    assert client.get(f"{JOBS}?project=none&count=true").json() == {
        "results": [], "next": None, "previous": None, "count": 0, "count_is_estimate": False,
    }  # fmt: skip
    assert list(job_rows(Job.objects.none())) == []
    assert node_names([]) == {}


def test_a_number_of_jobs_is_counted_up_to_a_bound_and_estimated_above_it(
    api: Api, portal: Portal, monkeypatch: pytest.MonkeyPatch
) -> None:
    some_jobs(portal, 4)
    client = api(portal.cast.owner)

    counted = client.get(f"{JOBS}?count=true&limit=2").json()
    monkeypatch.setattr(job_lists, "MOST_COUNTED", 5)
    estimated = client.get(f"{JOBS}?count=true&limit=2").json()

    assert (counted["count"], counted["count_is_estimate"], len(counted["results"])) == (12, False, 2)
    assert estimated["count_is_estimate"] is True
    assert estimated["count"] >= 5
    assert "count" not in client.get(f"{JOBS}?count=false").json()
    assert client.get(f"{JOBS}?count=perhaps").status_code == 400
    assert how_many(Job.objects.filter(name="none")) == (0, False)


def test_node_names_are_those_of_the_latest_attempt_in_the_order_of_ranks(portal: Portal) -> None:
    job = JobFactory(project=portal.cast.project, state=JobState.RUNNING, epoch=2)
    waiting = JobFactory(project=portal.cast.project)
    before = AttemptFactory(job=job, epoch=1, state=AttemptState.FAILED, ended_at=timezone.now())
    AllocationFactory(attempt=before, node=portal.n2, held_at=MOMENT, released_at=timezone.now())
    now = AttemptFactory(job=job, epoch=2)
    for rank, node in enumerate([portal.n1, portal.n1, portal.n2]):
        AllocationFactory(attempt=now, rank=rank, node=node)

    rows: Any = list(job_rows(Job.objects.filter(number__in=[job.number, waiting.number])))

    assert node_names(rows) == {job.number: ["n1", "n2"]}
