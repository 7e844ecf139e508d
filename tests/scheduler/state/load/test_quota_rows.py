"""Lines of every subject on real rows: what a start counts on, what it waits for, and what an end gives back."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from accounts.models import Organization
from infra.errors import Conflict, InvalidInput, NotAllowed, TooMany
from quotas.models import Quota
from quotas.services.quota_lines import Subject, drifting_lines, remove_line, set_line, sync_lines
from scheduler.models import Allocation, Attempt, Device, Job
from scheduler.services.jobs.submit import submit_job
from scheduler.services.planning.cycles import run_cycle
from scheduler.state.settle.settle import end_attempt
from tests.scheduler.state.small import a_queue
from tests.support.factories import (
    ClusterFactory,
    MembershipFactory,
    NodeFactory,
    OperatorFactory,
    OrganizationFactory,
    ProjectFactory,
    UserFactory,
)

pytestmark = pytest.mark.django_db


class Site:
    """A university with two labs, a project in each, one person, and eight GPUs of two models."""

    def __init__(self) -> None:
        self.root = OrganizationFactory(slug="university")
        self.lab = OrganizationFactory(slug="lab", parent=self.root)
        self.other = OrganizationFactory(slug="other", parent=self.root)
        self.vision = ProjectFactory(slug="vision", organization=self.lab)
        self.speech = ProjectFactory(slug="speech", organization=self.other)
        self.mia = UserFactory(username="mia")
        for project in (self.vision, self.speech):
            MembershipFactory(user=self.mia, project=project, role="member")
        self.operator = OperatorFactory()
        self.cluster = ClusterFactory()
        self.queue = a_queue(self.cluster, "main")
        for name, model in (("n1", "NVIDIA H100"), ("n2", "NVIDIA A100")):
            NodeFactory(cluster=self.cluster, name=name, gpus=4, gpus__model=model)

    def line(self, resource: str = "gpu_millis", *, model: str = "", kind: str = "", **words: Any) -> Quota:
        names = ("organization", "project", "user")
        subject = Subject(**{name: words.pop(name) for name in names if name in words})
        return set_line(
            subject=subject, resource=resource, gpu_model=model, job_type=kind, changes=words,
            by=self.operator, reason="as agreed",
        )  # fmt: skip

    def submit(self, project: Any = None, **words: Any) -> Job:
        asked = {"command": "sleep 1", "queue": self.queue.slug, "gpu_count": 1} | words
        return submit_job(payload=asked | {"project": (project or self.vision).slug}, by=self.mia)

    def cycle(self) -> None:
        run_cycle(cluster_id=self.cluster.pk, trigger="test")

    def running(self) -> int:
        return Attempt.objects.live().count()

    def end(self, job: Job) -> None:
        attempt = Attempt.objects.live().get(job=job)
        end_attempt(attempt_id=attempt.pk, epoch=attempt.epoch, lost_text="gone")


@pytest.fixture
def site() -> Site:
    return Site()


def used(*lines: Quota) -> list[int]:
    return [Quota.objects.get(pk=line.pk).used for line in lines]


def reason(job: Job) -> str:
    job.refresh_from_db()
    return job.reason_text


def test_a_job_counts_on_every_line_up_to_the_root_and_on_none_beside(site: Site) -> None:
    lines = [
        site.line(project=site.vision, user=site.mia),
        site.line(project=site.vision),
        site.line(organization=site.lab),
        site.line(organization=site.root),
        site.line(user=site.mia),
        site.line("running_jobs", organization=site.root),
        site.line("cpu_millis", organization=site.lab),
    ]
    beside = [
        site.line(project=site.vision, user=UserFactory()),
        site.line(project=site.speech),
        site.line(organization=site.other),
        site.line(project=site.vision, kind="notebook"),
    ]
    job = site.submit(gpu_count=2)
    site.cycle()

    cpus = Allocation.objects.get().cpu_millis
    assert used(*lines) == [2000] * 5 + [1, cpus]
    assert used(*beside) == [0] * 4

    site.end(job)

    assert used(*lines, *beside) == [0] * 11


def test_a_full_organization_names_itself_and_the_place_of_the_project(site: Site) -> None:
    site.line(organization=site.root, nominal=4000)
    site.line(project=site.vision, nominal=1000)
    site.line(project=site.speech, nominal=3000)
    for _ in range(2):
        site.submit(gpu_count=2)
    last = site.submit(gpu_count=1)
    site.cycle()

    assert site.running() == 2
    assert reason(last) == (
        "Needs 1 GPU; organization university uses 4 of 4; project vision uses 4 of nominal 1 "
        "and may borrow 0 more."
    )


def test_what_is_kept_back_is_there_for_its_owner(site: Site) -> None:
    site.line(organization=site.root, nominal=4000)
    site.line(project=site.vision, nominal=2000)
    site.line(project=site.speech, nominal=2000, lending_limit=500)  # keeps 1.5
    for _ in range(3):
        site.submit()
    site.cycle()
    assert site.running() == 2

    site.submit(site.speech)
    site.cycle()

    assert site.running() == 3


def test_a_request_without_a_model_does_not_get_past_the_line_of_a_model(site: Site) -> None:
    capped = site.line(organization=site.lab, model="H100", hard=1000)
    for _ in range(8):
        site.submit()
    site.cycle()

    assert site.running() == 5  # one H100 and the four A100
    assert used(capped) == [1000]
    assert Device.objects.filter(model="NVIDIA H100", used_millis__gt=0).count() == 1
    waiting = Job.objects.pending().first()
    assert waiting is not None
    assert "H100 GPU; organization lab uses 1 of 1" in waiting.reason_text


def test_a_line_for_a_model_is_given_back_what_its_devices_counted(site: Site) -> None:
    capped = site.line(organization=site.lab, model="H100", hard=4000)
    job = site.submit(gpu_type="H100", gpu_count=3)
    site.cycle()
    assert used(capped) == [3000]

    site.end(job)

    assert used(capped) == [0]


def test_a_job_type_has_lines_of_its_own(site: Site) -> None:
    notebooks = site.line("running_jobs", project=site.vision, kind="notebook", hard=1)
    for _ in range(2):
        site.submit(job_type="notebook")
        site.submit(job_type="batch")
    site.cycle()

    assert site.running() == 3
    assert used(notebooks) == [1]


def test_a_person_is_held_to_a_count_in_every_project(site: Site) -> None:
    site.line("running_jobs", user=site.mia, hard=1)
    site.submit()
    second = site.submit(site.speech)
    site.cycle()

    assert site.running() == 1
    assert reason(second) == "Needs 1 running job; user mia uses 1 of 1."


def test_more_jobs_than_may_wait_are_refused_with_a_way_out(site: Site) -> None:
    site.line("pending_jobs", project=site.vision, user=site.mia, hard=2)
    site.submit()
    site.submit()

    with pytest.raises(TooMany) as refused:
        site.submit()

    assert refused.value.code == "too-many-pending"
    assert "2 jobs of mia in project vision are pending already" in refused.value.message
    site.submit(site.speech)


def test_what_no_line_on_the_way_up_can_ever_hold_is_refused_at_once(site: Site) -> None:
    site.line(organization=site.root, nominal=2000)

    with pytest.raises(InvalidInput) as refused:
        site.submit(gpu_count=3)

    assert refused.value.problems[0].code == "exceeds-quota"
    assert "the limit of organization university is 2" in refused.value.problems[0].message


def test_a_recount_finds_what_every_line_should_say(site: Site) -> None:
    lines = [
        site.line(organization=site.root),
        site.line(organization=site.lab, model="H100"),
        site.line("running_jobs", user=site.mia),
        site.line(project=site.vision, kind="batch"),
    ]
    site.submit(gpu_type="H100", gpu_count=2)
    site.cycle()
    right = used(*lines)
    assert drifting_lines() == []

    Quota.objects.update(used=7)
    assert sync_lines(drifting_lines()) == len(lines)

    assert right == [2000, 2000, 1, 2000]
    assert used(*lines) == right


def test_an_edit_of_a_line_that_somebody_else_changed_is_turned_down(site: Site) -> None:
    line = site.line(organization=site.root, hard=4000)
    words = {"subject": Subject(organization=site.root), "resource": "gpu_millis", "by": site.operator}
    set_line(**words, changes={"hard": 5000}, reason="more came", expected_generation=line.generation)

    with pytest.raises(Conflict) as stale:
        set_line(**words, changes={"hard": 1}, reason="less", expected_generation=line.generation)

    assert stale.value.extra["current"]["hard"] == 5000


def test_a_cut_below_use_is_marked_with_its_time_until_it_is_kept_again(site: Site) -> None:
    line = site.line(organization=site.lab)
    job = site.submit(gpu_count=2)
    site.cycle()
    before = timezone.now()

    cut = site.line(organization=site.lab, hard=1000)
    assert cut.over_since is not None
    assert cut.over_since >= before - timedelta(seconds=1)
    assert site.running() == 1
    again = site.line(organization=site.lab, hard=1500)
    assert again.over_since == cut.over_since
    assert site.line(organization=site.lab, hard=2000).over_since is None

    site.end(job)
    remove_line(line=line, by=site.operator, reason="not needed")
    assert not Quota.objects.filter(pk=line.pk).exists()


@pytest.mark.parametrize(
    ("words", "field"),
    [
        ({"resource": "cpu_millis", "gpu_model": "H100"}, "gpu_model"),
        ({"changes": {"borrowing_limit": 1}}, "borrowing_limit"),
        ({"changes": {"soft": 2, "hard": 1}}, "soft"),
        ({"changes": {"hard": -1}}, "hard"),
        ({"changes": {"used": 1}}, "used"),
        ({"subject": Subject()}, "subject"),
        ({"reason": " "}, "reason"),
    ],
)
def test_a_line_that_makes_no_sense_is_refused_by_its_field(site: Site, words: Any, field: str) -> None:
    asked = {
        "subject": Subject(organization=site.root), "resource": "gpu_millis", "changes": {"hard": 1},
        "reason": "x",
    } | words  # fmt: skip

    with pytest.raises(InvalidInput) as refused:
        set_line(**asked, by=site.operator)

    assert [problem.field for problem in refused.value.problems] == [field]
    assert not Quota.objects.exists()


def test_only_operators_set_lines(site: Site) -> None:
    with pytest.raises(NotAllowed):
        set_line(
            subject=Subject(organization=site.root), resource="gpu_millis", changes={"hard": 1},
            by=site.mia, reason="more",
        )  # fmt: skip


def test_organizations_in_a_circle_stop_nobody(site: Site) -> None:
    site.line(organization=site.lab, hard=4000)
    Organization.objects.filter(pk=site.root.pk).update(parent=site.lab)
    site.submit()
    site.cycle()

    assert site.running() == 1
