"""What would happen to a job, and why one waits: the planner's own answers, shown and not acted on."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from accounts.models import User
from infra.errors import MusterError
from scheduler.core.lifecycle import JobState
from scheduler.models import Job
from scheduler.services.planning import shared_snapshot
from scheduler.services.planning.explain import explain_job
from scheduler.services.planning.explanation_parts import PreviewNode
from scheduler.services.planning.job_preview import Preview, preview_job
from tests.scheduler.state.small import SmallWorld
from tests.support.factories import (
    MembershipFactory,
    OperatorFactory,
    OrganizationFactory,
    ProjectFactory,
    QuotaFactory,
    UserFactory,
)

pytestmark = pytest.mark.django_db


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> SmallWorld:
    """No picture takes long here, however busy the machine is."""
    monkeypatch.setattr(shared_snapshot, "QUICK_SECONDS", 600.0)
    shared_snapshot.forget_snapshots()
    world = SmallWorld()
    world.node("n1", gpus=4)
    world.node("n2", cordoned=True, gpus=4)
    return world


def asked(world: SmallWorld, by: User | None = None, **payload: Any) -> Preview:
    return preview_job(
        payload={"command": "true", "queue": world.queue.slug, "project": world.project.slug} | payload,
        by=by or world.person,
    )


# ------------------------------------------------------------------ before submitting


def test_what_fits_starts_now_and_says_where(world: SmallWorld) -> None:
    found = asked(world, gpu_count=2, tasks=2)

    assert (found.verdict, found.reason_code, found.category) == ("starts_now", "", "")
    assert found.headline == "Would start now on n1."
    node = world.cluster.nodes.get(name="n1")
    assert found.nodes == (PreviewNode(node.pk, "n1", tasks=2, devices=(0, 1, 2, 3)),)
    assert [(gate.name, gate.turned_away, gate.left) for gate in found.gates] == [
        ("all", 0, 2), ("cordoned", 1, 1), ("fits", 0, 1),
    ]  # fmt: skip


def test_nothing_is_written(world: SmallWorld) -> None:
    with CaptureQueriesContext(connection) as captured:
        asked(world, gpu_count=2)

    assert [
        q["sql"] for q in captured if not q["sql"].lstrip().startswith(("SELECT", "WITH RECURSIVE"))
    ] == []
    assert Job.objects.count() == 0


def test_what_does_not_fit_now_would_wait_and_says_for_what_and_behind_whom(world: SmallWorld) -> None:
    world.job(gpus=4)
    world.job(gpus=4)

    found = asked(world, gpu_count=4)

    assert (found.verdict, found.reason_code, found.category) == ("would_wait", "WaitingForResources", "wait")
    assert found.headline.startswith("Needs 4 GPUs; 0 of 8 free.")
    assert found.headline.endswith("1 job (4 GPUs) is ahead.")
    assert (found.ahead_jobs, found.ahead_gpus, found.position) == (1, 4, 2)
    assert found.nodes == ()
    assert [blocker.code for blocker in found.blockers] == ["WaitingForResources"]
    assert found.gates[-1].left == 0


def test_what_no_machine_can_hold_never_starts_and_says_the_number_that_exists(world: SmallWorld) -> None:
    found = asked(world, gpu_count=1000)

    assert (found.verdict, found.category) == ("never", "fix")
    assert "1,000 GPUs" in found.headline
    assert "the largest node has 4" in found.headline
    assert [problem.field for problem in found.problems] == ["gpu_count"]


def test_labels_that_no_node_has_are_named_and_an_operator_may_set_them(world: SmallWorld) -> None:
    found = asked(world, node_selector={"arch": "s390x"})

    assert (found.verdict, found.reason_code, found.category) == ("would_wait", "NodesUnavailable", "ask")
    assert "arch=s390x" in found.headline


def test_a_wrong_request_is_refused_with_every_problem(world: SmallWorld) -> None:
    found = asked(world, tasks=0, gpu_cuont=1)

    assert found.verdict == "refused"
    assert sorted(problem.field for problem in found.problems) == ["gpu_cuont", "tasks"]


def test_a_project_one_may_not_use_is_refused(world: SmallWorld) -> None:
    stranger = MembershipFactory(project=ProjectFactory()).user

    found = asked(world, by=stranger)

    assert found.verdict == "refused"
    assert found.nodes == ()


def test_the_quota_is_shown_before_and_after(world: SmallWorld) -> None:
    world.quota("gpu_millis", 4000, soft=1000, used=0)
    world.quota("running_jobs", 3)
    world.quota("storage_mib", 10)  # the job asks for none

    found = asked(world, gpu_count=1, tasks=2)

    lines = {line.resource: (line.used, line.after, line.hard, line.passed) for line in found.quota}
    assert lines == {"gpu_millis": (0, 2000, 4000, "soft"), "running_jobs": (0, 1, 3, "")}


def test_a_full_quota_would_wait(world: SmallWorld) -> None:
    world.quota("gpu_millis", 4000, used=3000)

    found = asked(world, gpu_count=2)

    assert (found.verdict, found.reason_code) == ("would_wait", "WaitingForQuota")
    assert found.quota[0].passed == "hard"


def test_the_limit_that_refuses_is_named_with_how_far_over_it_is(world: SmallWorld) -> None:
    lab = OrganizationFactory(slug="lab")
    world.project.organization = lab
    world.project.save()
    world.quota("gpu_millis", 8000, used=1000)
    words = {"project": None, "resource": "gpu_millis", "nominal": None}
    QuotaFactory(organization=lab, hard=3000, used=2000, **words)
    QuotaFactory(user=world.person, hard=9000, **words)
    QuotaFactory(organization=lab, hard=1000, gpu_model="H100", **words)

    found = asked(world, gpu_count=3)

    assert found.reason_code == "WaitingForQuota"
    assert [(use.owner, use.after, use.refuses, use.over_by) for use in found.quota] == [
        (f"project {world.project.slug}", 4000, False, 0),
        ("organization lab", 5000, True, 2000),
        (f"user {world.person.username}", 3000, False, 0),
    ]
    assert found.quota[1].text == "organization lab: 2 GPUs exceeds the limit."


def test_what_is_kept_back_for_others_refuses_too(world: SmallWorld) -> None:
    lab = OrganizationFactory(slug="lab")
    world.project.organization = lab
    world.project.save()
    world.quota("gpu_millis", 8000)
    words = {"resource": "gpu_millis", "hard": None}
    QuotaFactory(project=None, organization=lab, nominal=4000, **words)
    QuotaFactory(project=ProjectFactory(organization=lab), nominal=3000, lending_limit=0, **words)

    found = asked(world, gpu_count=2)

    assert found.reason_code == "WaitingForQuota"
    assert [(use.owner, use.over_by) for use in found.quota if use.refuses] == [("organization lab", 1000)]
    assert found.quota[1].text == "organization lab: 1 GPU exceeds what is left: some is reserved for others."


def test_a_held_job_and_one_that_begins_later_would_wait_for_that(world: SmallWorld) -> None:
    assert asked(world, hold=True).reason_code == "HeldByUser"
    later = (timezone.now() + timedelta(days=1)).isoformat()
    found = asked(world, begin_at=later)
    assert (found.verdict, found.reason_code, found.position) == ("would_wait", "BeginTime", None)


def test_a_job_that_depends_on_an_unfinished_one_would_wait_for_it(world: SmallWorld) -> None:
    other = world.job()

    assert asked(world, depends_on=[other.number]).reason_code == "Dependency"


def test_an_array_says_how_many_jobs_it_becomes(world: SmallWorld) -> None:
    assert asked(world, array="0-9").elements == 10


def test_that_a_job_runs_at_most_once_is_said_before_it_is_submitted(world: SmallWorld) -> None:
    assert asked(world, restart_policy="never").restarts.startswith("The job runs at most once: ")
    assert asked(world).restarts == ""


def test_a_preview_is_plain_data(world: SmallWorld) -> None:
    found = asked(world)

    assert json.loads(json.dumps(found.as_dict(), default=str))["verdict"] == "starts_now"
    assert found.snapshot_at is not None
    assert abs(timezone.now() - found.snapshot_at) < timedelta(seconds=60)


def test_what_the_preview_says_is_what_the_next_cycle_does(world: SmallWorld) -> None:
    """The same cluster and request give the same answer."""
    world.quota("running_jobs", 2)
    for gpus in (0, 2, 3):
        promised = asked(world, gpu_count=gpus)
        job = world.job(gpus=gpus)
        world.plan()
        job.refresh_from_db()
        assert (promised.verdict == "starts_now") == (job.state == JobState.SCHEDULED)
        assert job.reason_code == promised.reason_code


def test_a_picture_that_took_long_is_shared_for_a_while_and_a_quick_one_is_not(
    world: SmallWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert asked(world, gpu_count=4).verdict == "starts_now"
    world.cluster.nodes.update(cordoned=True)
    assert asked(world, gpu_count=4).verdict == "would_wait"

    monkeypatch.setattr(shared_snapshot, "QUICK_SECONDS", 0.0)
    monkeypatch.setattr(shared_snapshot, "SHARE_SECONDS", 600.0)
    asked(world)
    world.cluster.nodes.update(cordoned=False)
    assert asked(world, gpu_count=4).verdict == "would_wait"
    monkeypatch.setattr(shared_snapshot, "SHARE_SECONDS", 0.0)
    assert asked(world, gpu_count=4).verdict == "starts_now"


# ------------------------------------------------------------------ why


def test_a_waiting_job_is_explained_node_by_node(world: SmallWorld) -> None:
    first = world.job("first", gpus=4)
    world.plan()
    ahead = world.job("ahead", gpus=4)
    job = world.job("mine", gpus=3)

    found = explain_job(job=job, by=world.person, nodes=True)

    assert (found.state, found.reason_code, found.category) == ("queued", "WaitingForResources", "wait")
    assert (found.position, found.ahead_jobs, found.ahead_gpus) == (2, 1, 4)
    assert [(line.number, line.name, line.gpus) for line in found.ahead] == [(ahead.number, "ahead", 4)]
    assert [(line.name, line.gate) for line in found.node_table] == [("n1", "gpus"), ("n2", "cordoned")]
    assert found.node_table[0].sentence == "needs 3 GPUs, has 0 GPUs free"
    assert found.node_table[1].sentence == "cordoned"
    assert found.details is not None
    assert found.details["needs"] == 3
    first.refresh_from_db()
    assert explain_job(job=first, by=world.person).headline == "The job is scheduled."


def test_jobs_ahead_that_one_may_not_see_have_no_name(world: SmallWorld) -> None:
    other = SmallWorld(cluster=world.cluster)
    other.queue.delete()
    secret = other.job("secret", queue=world.queue, gpus=4)
    world.cluster.nodes.update(cordoned=True)
    job = world.job(gpus=4)

    found = explain_job(job=job, by=world.person)

    assert [(line.number, line.name, line.project, line.gpus) for line in found.ahead] == [
        (None, None, None, 4)
    ]
    operator = OperatorFactory()
    assert [line.number for line in explain_job(job=job, by=operator).ahead] == [secret.number]


def test_all_blockers_are_listed_strongest_first(world: SmallWorld) -> None:
    world.quota("gpu_millis", 4000, used=3000)
    world.cluster.nodes.update(cordoned=True)
    job = world.job(gpus=2)

    found = explain_job(job=job, by=world.person)

    assert [blocker.code for blocker in found.blockers] == ["WaitingForQuota", "WaitingForResources"]
    assert found.headline == found.blockers[0].text


def test_a_job_that_starts_in_the_next_cycle_says_so(world: SmallWorld) -> None:
    job = world.job()

    assert explain_job(job=job, by=world.person).headline == (
        "Nothing blocks the job: the next cycle starts it on n1."
    )


@pytest.mark.parametrize(
    ("columns", "headline"),
    [
        (
            {"state": JobState.HELD, "reason_code": "HeldByUser", "reason_text": "Held by ann."},
            "Held by ann.",
        ),
        ({"state": JobState.BLOCKED, "reason_code": "Dependency"}, "Depends on other jobs."),
        ({"state": JobState.RUNNING}, "The job is running."),
        ({"state": JobState.FAILED, "end_text": "exit code 3"}, "exit code 3"),
        ({"state": JobState.COMPLETED}, "The job has completed."),
    ],
)
def test_a_job_in_any_state_has_an_answer(world: SmallWorld, columns: dict[str, Any], headline: str) -> None:
    job = world.job(completed_at=timezone.now(), **columns)

    assert explain_job(job=job, by=world.person, nodes=True).headline == headline


def test_strangers_are_not_told(world: SmallWorld) -> None:
    job = world.job()

    with pytest.raises(MusterError) as refusal:
        explain_job(job=job, by=UserFactory())
    assert refusal.value.status in (403, 404)


def test_the_smallest_change_that_starts_it_is_named_before_and_after_submitting(world: SmallWorld) -> None:
    world.job("first", gpus=1)
    world.plan()
    job = world.job("train", gpus=4)

    before = asked(world, gpu_count=4)
    after = explain_job(job=job, by=world.person)

    assert before.verdict == "would_wait"
    assert before.suggestion == "With 3 GPUs instead of 4 the job would start now, on n1."
    assert after.suggestion == before.suggestion
