"""What jobs wait for: some of several, checkpoints, data, each other in one request, and never for ever."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from accounts.models import Membership
from infra.errors import Conflict, InvalidInput, MusterError, NotFound
from scheduler.core.lifecycle import JobState
from scheduler.models import Dataset, Job, JobDependency
from scheduler.services.execution.reconcile import reconcile_all
from scheduler.services.jobs.datasets import declare_dataset, report_checkpoint, withdraw_dataset
from scheduler.services.jobs.verbs import hold_job, release_job
from scheduler.services.submission.fields_dependencies import find_circle
from scheduler.state.lifecycle.dependencies import resolve_dependants
from scheduler.state.lifecycle.transitions import move_job
from tests.scheduler.portal import Portal, a_portal, submit_many
from tests.support.factories import AttemptFactory, ProjectFactory
from tests.support.roles import had_asked

pytestmark = pytest.mark.django_db


@pytest.fixture
def portal(db: None) -> Portal:
    return a_portal()


def end(job: Job, state: JobState = JobState.COMPLETED) -> None:
    job.refresh_from_db()
    at = timezone.now()
    if job.state == JobState.QUEUED:
        move_job(job, JobState.SCHEDULED, because="planned")
    move_job(job, state, because="ended", at=at)
    resolve_dependants([job], at=at)


def fresh(job: Job) -> Job:
    return Job.objects.get(pk=job.pk)


def run(job: Job) -> None:
    move_job(job, JobState.SCHEDULED, because="planned", epoch=1)
    move_job(job, JobState.RUNNING, because="started", started_at=timezone.now())
    AttemptFactory(job=job, epoch=1)


# ---------------------------------------------------------------- k of n


def test_a_job_starts_once_so_many_of_several_have_completed(portal: Portal) -> None:
    shards = [portal.submit(name=f"shard{n}") for n in range(5)]
    merge = portal.submit(depends_on=[{"any": 2, "of": [job.number for job in shards]}])
    assert merge.reason_text == (
        f"Depends on 2 of jobs {shards[0].number} (shard0), {shards[1].number} (shard1), "
        f"{shards[2].number} (shard2) and 2 more."
    )

    end(shards[3])
    waiting = fresh(merge)
    assert (waiting.state, waiting.reason_details["open"]) == (JobState.BLOCKED, 1)
    assert waiting.reason_text.startswith("Depends on 1 more of jobs ")
    assert shards[3].number not in waiting.reason_details["jobs"]
    end(shards[0])

    assert fresh(merge).state == JobState.QUEUED


def test_failures_count_only_once_too_few_are_left(portal: Portal) -> None:
    shards = [portal.submit() for _ in range(3)]
    merge = portal.submit(depends_on=[{"any": 2, "of": [job.number for job in shards]}])

    end(shards[0], JobState.FAILED)
    assert fresh(merge).reason_code == "Dependency"
    end(shards[1], JobState.CANCELLED)

    assert fresh(merge).state == JobState.BLOCKED
    assert fresh(merge).reason_code == "DependencyNeverSatisfied"
    assert "too few are left" in fresh(merge).reason_text


def test_groups_and_single_waits_have_to_hold_together(portal: Portal) -> None:
    one, two, three = (portal.submit() for _ in range(3))
    job = portal.submit(depends_on=[one.number, {"any": 1, "of": [two.number, three.number]}])

    end(three)
    assert fresh(job).state == JobState.BLOCKED
    end(one)

    assert fresh(job).state == JobState.QUEUED


@pytest.mark.parametrize(
    ("group", "field"),
    [
        ({"any": 0, "of": [1]}, "depends_on/0/any"),
        ({"any": 3, "of": [1, 2]}, "depends_on/0/any"),
        ({"any": 1, "of": []}, "depends_on/0/of"),
        ({"any": 1, "of": 7}, "depends_on/0/of"),
        ({"any": 1, "of": [1], "job": 3}, "depends_on/0/job"),
        ({"any": 1, "of": [{"any": 1, "of": [2]}]}, "depends_on/0/of/0/any"),
        ({"data": "no blanks please"}, "depends_on/0/data"),
    ],
)
def test_what_cannot_be_read_is_named(portal: Portal, group: object, field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        portal.submit(depends_on=[group])

    assert field in {problem.field for problem in refused.value.problems}


# ---------------------------------------------------------------- time is up


def test_a_wait_that_is_over_fails_the_job_and_tells_those_behind_it(portal: Portal) -> None:
    first = portal.submit()
    second = portal.submit(depends_on=[first.number], depends_timeout="30m")
    third = portal.submit(depends_on=[second.number])
    assert ", then the job fails." in second.reason_text

    assert reconcile_all().ended_waits == 0
    had_asked(second, depends_until_at=timezone.now() - timedelta(seconds=1))
    assert reconcile_all().ended_waits == 1

    assert (fresh(second).state, fresh(third).reason_code) == (JobState.FAILED, "DependencyNeverSatisfied")
    assert fresh(second).end_text.startswith("Dependency timeout at ")
    assert f"{first.number}" in fresh(second).end_text


def test_a_job_may_go_on_without_those_it_waited_for(portal: Portal) -> None:
    first = portal.submit()
    second = portal.submit(depends_on=[first.number], depends_timeout=60, on_depends_timeout="start")
    had_asked(second, depends_until_at=timezone.now() - timedelta(seconds=1))

    reconcile_all()

    assert fresh(second).state == JobState.QUEUED


def test_the_clock_of_a_held_job_runs_on(portal: Portal) -> None:
    first = portal.submit()
    job = portal.submit(depends_on=[first.number], depends_timeout=60, hold=True)
    had_asked(job, depends_until_at=timezone.now() - timedelta(seconds=1))
    reconcile_all()
    assert fresh(job).state == JobState.HELD

    release_job(job=fresh(job), by=portal.cast.owner)
    reconcile_all()

    assert fresh(job).state == JobState.FAILED


# ---------------------------------------------------------------- checkpoints


def test_a_job_waits_for_the_checkpoint_of_another(portal: Portal) -> None:
    train = portal.submit(name="train")
    evaluate = portal.submit(depends_on=[{"job": train.number, "type": "checkpoint"}])
    assert evaluate.reason_text == f"Depends on a checkpoint of job {train.number} (train)."
    with pytest.raises(Conflict):
        report_checkpoint(job=train, by=portal.cast.owner)
    run(train)

    report_checkpoint(job=train, by=portal.cast.owner, path="/ckpt/7")

    assert (fresh(evaluate).state, fresh(train).saved_path) == (JobState.QUEUED, "/ckpt/7")
    # Whoever comes later finds it there already.
    assert portal.submit(depends_on=[{"job": train.number, "type": "checkpoint"}]).state == JobState.QUEUED
    with pytest.raises(NotFound):
        report_checkpoint(job=train, by=portal.cast.stranger)


def test_a_job_that_ends_without_a_checkpoint_never_will_have_one(portal: Portal) -> None:
    train = portal.submit()
    evaluate = portal.submit(depends_on=[{"job": train.number, "type": "checkpoint"}])

    end(train)

    assert fresh(evaluate).reason_code == "DependencyNeverSatisfied"


# ---------------------------------------------------------------- data


def test_a_job_waits_for_data_of_its_project(portal: Portal) -> None:
    job = portal.submit(depends_on=[{"data": "faces/1"}])
    other = portal.submit(depends_on=[{"data": "faces/2"}])
    assert job.reason_text == "Depends on data faces/1."

    declare_dataset(payload={"name": "faces/1", "path": "/data/faces"}, by=portal.cast.colleague)

    assert (fresh(job).state, fresh(other).state) == (JobState.QUEUED, JobState.BLOCKED)
    later = portal.submit(depends_on=[{"data": "faces/1"}])
    assert (later.state, JobDependency.objects.get(job=later).satisfied) == (JobState.QUEUED, True)


def test_withdrawn_data_are_waited_for_again(portal: Portal) -> None:
    dataset = declare_dataset(payload={"name": "faces"}, by=portal.cast.owner)
    with pytest.raises(MusterError):
        withdraw_dataset(dataset=dataset, by=portal.cast.stranger)

    withdraw_dataset(dataset=dataset, by=portal.cast.owner)

    assert portal.submit(depends_on=[{"data": "faces"}]).state == JobState.BLOCKED
    assert Dataset.objects.get().ready_at is None
    with pytest.raises(MusterError):
        declare_dataset(payload={"name": "faces", "project": "vision"}, by=portal.cast.stranger)


# ---------------------------------------------------------------- each other, in one request


def test_jobs_of_one_request_wait_for_each_other_by_ref(portal: Portal) -> None:
    train, prepare, report = (
        submit_many(
            payloads=[
                {"command": "true", "ref": "train", "depends_on": {"ref": "prepare"}},
                {"command": "true", "ref": "prepare", "name": "prepare", "array": "0-1"},
                {"command": "true", "depends_on": [{"ref": "train", "type": "completion"}]},
            ],
            by=portal.cast.owner,
        )[:1]
        + list(Job.objects.filter(name="prepare").order_by("number")[:1])
        + [Job.objects.latest("number")]
    )

    assert (train.state, prepare.state, report.state) == ("blocked", "queued", "blocked")
    assert train.reason_details["jobs"] == [prepare.number, prepare.number + 1]
    for job in Job.objects.filter(name="prepare"):
        end(job)
    assert fresh(train).state == JobState.QUEUED


def test_a_circle_is_refused_and_named(portal: Portal) -> None:
    with pytest.raises(InvalidInput) as refused:
        submit_many(
            payloads=[
                {"command": "true", "ref": "a", "depends_on": {"ref": "c"}},
                {"command": "true", "ref": "b", "depends_on": {"ref": "a"}},
                {"command": "true", "ref": "c", "depends_on": [{"any": 1, "of": [{"ref": "b"}]}]},
                {"command": "true"},
            ],
            by=portal.cast.owner,
        )

    assert {problem.field for problem in refused.value.problems} == {
        "jobs/0/depends_on", "jobs/1/depends_on", "jobs/2/depends_on",
    }  # fmt: skip
    assert "a waits for c waits for b waits for a" in refused.value.problems[0].message
    assert not Job.objects.exists()


def test_names_that_nobody_has_or_two_have_are_refused(portal: Portal) -> None:
    with pytest.raises(InvalidInput) as refused:
        submit_many(
            payloads=[
                {"command": "true", "ref": "a"},
                {"command": "true", "ref": "a"},
                {"command": "true", "depends_on": {"ref": "nobody"}},
                {"command": "true", "ref": "self", "depends_on": {"ref": "self"}},
            ],
            by=portal.cast.owner,
        )
    assert [problem.code for problem in refused.value.problems] == ["twice", "not-found", "circle"]
    with pytest.raises(InvalidInput, match="has no other job"):
        portal.submit(depends_on={"ref": "prepare"})


def test_circles_are_found_wherever_they_are() -> None:
    assert find_circle({"a": ["b"], "b": ["c"], "c": []}) == []
    assert find_circle({"a": ["b", "c"], "b": ["d"], "c": ["d"], "d": []}) == []  # a diamond is none
    assert find_circle({"x": ["a"], "a": ["b"], "b": ["a"]}) == ["a", "b", "a"]
    assert find_circle({"a": ["a"]}) == ["a", "a"]


def test_a_held_job_keeps_its_waits(portal: Portal) -> None:
    first = portal.submit()
    job = portal.submit(depends_on=[{"any": 1, "of": [first.number]}])
    hold_job(job=job, by=portal.cast.owner)
    end(first)
    assert fresh(job).state == JobState.HELD

    assert release_job(job=fresh(job), by=portal.cast.owner).state == JobState.QUEUED


# ---------------------------------------------------------------- what others may know


def test_a_job_of_another_project_is_told_by_its_number_only(portal: Portal, client: Client) -> None:
    """A colleague sees the job that waits, and may not see the one that it waits for."""
    owner, colleague = portal.cast.owner, portal.cast.colleague
    elsewhere = ProjectFactory(name="Mergers", slug="mergers")
    Membership.objects.create(user=owner, project=elsewhere, role="member")
    secret = portal.submit(name="merger with Acme", project="mergers")
    known = portal.submit(name="ours", project="vision")
    waits = portal.submit(project="vision", depends_on=[secret.number, known.number])
    text = f"Depends on 2 jobs: {secret.number}, {known.number} (ours)."
    assert waits.reason_text == text

    end(known)
    assert fresh(waits).reason_text == f"Depends on job {secret.number}."
    client.force_login(colleague)
    page = client.get(f"/jobs/{waits.number}/").content.decode()
    assert str(secret.number) in page
    assert "Acme" not in page

    end(secret, JobState.FAILED)
    assert "Acme" not in fresh(waits).reason_text


# ---------------------------------------------------------------- what can never be (finding 24)


def test_finding_24_a_job_whose_dependency_failed_counts_against_no_limit(portal: Portal) -> None:
    first = portal.submit(name="first")
    queue = first.queue
    queue.max_pending_jobs = 2
    queue.save()
    lost = portal.submit(name="lost", depends_on=[first.number])
    end(first, JobState.FAILED)
    assert fresh(lost).reason_code == "DependencyNeverSatisfied"

    portal.submit(name="one")
    portal.submit(name="two")

    with pytest.raises(MusterError, match="has 2 pending jobs of at most 2"):
        portal.submit(name="three")


def test_finding_24_jobs_whose_dependency_failed_are_cancelled_where_the_site_says_so(
    portal: Portal, settings: Any
) -> None:
    settings.MUSTER_KILL_INVALID_DEPEND = True
    first = portal.submit(name="first")
    second = portal.submit(name="second", depends_on=[first.number])
    third = portal.submit(name="third", depends_on=[second.number])
    after = portal.submit(name="after", depends_on=[{"job": third.number, "type": "completion"}])

    end(first, JobState.FAILED)

    gone = fresh(second)
    assert gone.state == JobState.CANCELLED
    assert gone.end_text == f"Depends on success of job {first.number} (first), which failed."
    assert fresh(third).state == JobState.CANCELLED
    assert fresh(after).state == JobState.QUEUED


def test_a_wait_with_an_end_is_not_cancelled_before_it(portal: Portal, settings: Any) -> None:
    settings.MUSTER_KILL_INVALID_DEPEND = True
    first = portal.submit(name="first")
    waits = portal.submit(depends_on=[first.number], depends_timeout=600, on_depends_timeout="start")

    end(first, JobState.FAILED)

    assert fresh(waits).state == JobState.BLOCKED
