"""Limits: compare and set with a reason, and the recount that repairs counters."""

from __future__ import annotations

import threading
import time
from functools import partial

import pgtrigger
import pytest
from django.db import DatabaseError, IntegrityError, connection, transaction
from django.db.models import F
from django.utils import timezone

from accounts.models import AuditEvent
from infra.errors import Conflict, InvalidInput, NotAllowed, NotFound
from quotas import tasks
from quotas.core.resources import Resources
from quotas.models import Quota, QuotaResource
from quotas.providers.registry import provider, quota_sheet
from quotas.services.project_quota import drifting_projects, set_quota, sync_quota
from tests.support.at_once import at_once
from tests.support.factories import (
    AllocationFactory,
    AttemptFactory,
    JobFactory,
    NodeFactory,
    OperatorFactory,
    OrganizationFactory,
    ProjectFactory,
    QuotaFactory,
    UserFactory,
    the_cast,
)

pytestmark = pytest.mark.django_db


@pytest.fixture
def wakeups(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Who was asked: planners, or Celery tasks by name; the broker is not what is tested here."""
    from celery import current_app

    from infra import notifications

    sent: list[str] = []
    monkeypatch.setattr(notifications, "publish_wake", lambda cluster, trigger: sent.append("planners"))
    monkeypatch.setattr(current_app, "send_task", lambda name, **_: sent.append(name))
    return sent


def holds(project, *, cpu_millis: int = 1000, gpu_millis: int = 0, jobs: int = 1) -> None:
    """Running jobs of the project, each with one allocation."""
    for _ in range(jobs):
        attempt = AttemptFactory(job=JobFactory(project=project, state="running", epoch=1))
        AllocationFactory(attempt=attempt, cpu_millis=cpu_millis, memory_mib=512, gpu_millis=gpu_millis)


# ---------------------------------------------------------------- setting


def test_an_edit_changes_the_line_and_says_why(
    wakeups: list[str], django_capture_on_commit_callbacks
) -> None:
    operator, line = OperatorFactory(), QuotaFactory(hard=10_000)

    with django_capture_on_commit_callbacks(execute=True):
        set_quota(
            project=line.project,
            changes={"cpu_millis": {"hard": 20_000, "soft": 15_000}},
            by=operator,
            reason="thesis",
        )

    line.refresh_from_db()
    assert (line.hard, line.soft, line.nominal, line.generation) == (20_000, 15_000, 10_000, 2)
    event = AuditEvent.objects.get()
    assert (event.action, event.actor, event.project, event.reason) == (
        "quota.set",
        operator,
        line.project,
        "thesis",
    )
    assert event.before == {"cpu_millis": {"hard": 10_000, "soft": None}}
    assert event.after == {"cpu_millis": {"hard": 20_000, "soft": 15_000}}
    assert wakeups == ["planners", "quotas.tasks.sync_project"]


def test_every_edit_is_in_the_row_history() -> None:
    line = QuotaFactory(hard=10_000)

    set_quota(project=line.project, changes={"cpu_millis": {"hard": 1}}, by=OperatorFactory(), reason="x")

    assert list(line.events.order_by("pgh_id").values_list("hard", flat=True)) == [10_000, 1]


def test_nothing_changes_without_a_reason() -> None:
    line = QuotaFactory(hard=10_000)

    with pytest.raises(InvalidInput) as wrong:
        set_quota(
            project=line.project, changes={"cpu_millis": {"hard": 1}}, by=OperatorFactory(), reason="  "
        )

    assert [p.field for p in wrong.value.problems] == ["reason"]
    line.refresh_from_db()
    assert line.hard == 10_000


def test_an_edit_that_changes_nothing_leaves_no_row(
    wakeups: list[str], django_capture_on_commit_callbacks
) -> None:
    line = QuotaFactory(hard=10_000)

    with django_capture_on_commit_callbacks(execute=True):
        set_quota(
            project=line.project, changes={"cpu_millis": {"hard": 10_000}}, by=OperatorFactory(), reason="x"
        )

    assert not AuditEvent.objects.exists()
    assert wakeups == []


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"bananas": {"hard": 1}}, "bananas"),
        ({"cpu_millis": {"hard": -1}}, "cpu_millis/hard"),
        ({"cpu_millis": {"hard": 1.5}}, "cpu_millis/hard"),
        ({"cpu_millis": {"hard": True}}, "cpu_millis/hard"),
        ({"cpu_millis": {"hard": 2**63}}, "cpu_millis/hard"),
        ({"cpu_millis": {"used": 0}}, "cpu_millis/used"),
        ({"cpu_millis": {"enforce": "no"}}, "cpu_millis/enforce"),
        ({"cpu_millis": {"soft": 10_001}}, "cpu_millis/soft"),
        ({"cpu_millis": {"provider": "slurm"}}, "provider"),
        ({"cpu_millis": {"provider": "magic"}}, "provider"),
        ({}, ""),
    ],
)
def test_a_wrong_change_names_its_field_and_writes_nothing(
    changes: dict, field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")  # no sacctmgr there
    line = QuotaFactory(hard=10_000)

    with pytest.raises(InvalidInput) as wrong:
        set_quota(project=line.project, changes=changes, by=OperatorFactory(), reason="x")

    assert [p.field for p in wrong.value.problems] == [field]
    line.refresh_from_db()
    assert (line.hard, line.generation) == (10_000, 1)


def test_only_operators_edit() -> None:
    cast = the_cast()

    for name, person in cast.people().items():
        if name in ("operator", "admin"):
            continue
        with pytest.raises(NotFound if name == "stranger" else NotAllowed):
            set_quota(project=cast.project, changes={"cpu_millis": {"hard": 1}}, by=person, reason="x")
    set_quota(project=cast.project, changes={"cpu_millis": {"hard": 1}}, by=cast.admin, reason="x")


def test_the_second_of_two_editors_is_told_what_is_there_now() -> None:
    operator, line = OperatorFactory(), QuotaFactory(hard=10_000)
    seen = quota_sheet(line.project).generation
    set_quota(project=line.project, changes={"cpu_millis": {"hard": 1}}, by=operator, reason="first")

    with pytest.raises(Conflict) as stale:
        set_quota(
            project=line.project,
            changes={"memory_mib": {"hard": 2}},
            by=operator,
            reason="second",
            expected_generation=seen,
        )

    assert (stale.value.status, stale.value.code) == (412, "stale")
    assert stale.value.extra["current"]["cpu_millis"]["hard"] == 1
    assert Quota.objects.get(project=line.project, resource="memory_mib").hard is None


@pytest.mark.django_db(transaction=True)
def test_of_many_editors_who_saw_the_same_exactly_one_wins() -> None:
    operator, project = OperatorFactory(), ProjectFactory()
    seen = quota_sheet(project).generation

    def edit(hard: int) -> int:
        set_quota(
            project=project,
            changes={"cpu_millis": {"hard": hard}},
            by=operator,
            reason="race",
            expected_generation=seen,
        )
        return hard

    outcomes = at_once(*[partial(edit, number + 1) for number in range(6)], refusals=Conflict)

    winners = [hard for hard in outcomes if isinstance(hard, int)]
    assert len(outcomes) == 6
    assert len(winners) == 1
    assert Quota.objects.get(project=project, resource="cpu_millis").hard == winners[0]
    assert AuditEvent.objects.filter(action="quota.set").count() == 1


def test_the_first_edit_counts_what_the_project_already_holds() -> None:
    project = ProjectFactory()
    holds(project, cpu_millis=3000, gpu_millis=1000, jobs=2)

    sheet = set_quota(
        project=project, changes={"cpu_millis": {"hard": 4000}}, by=OperatorFactory(), reason="they grew"
    )

    assert {line.resource: line.used for line in sheet.lines} == {
        "cpu_millis": 6000,
        "memory_mib": 1024,
        "gpu_millis": 2000,
        "storage_mib": 0,
        "running_jobs": 2,
    }
    assert sheet.line("cpu_millis").over
    assert Quota.objects.filter(project=project).count() == len(QuotaResource.counted())


# ---------------------------------------------------------------- what the database refuses


def test_the_database_refuses_to_pass_an_enforced_bound() -> None:
    line = QuotaFactory(hard=1000)

    with pytest.raises(IntegrityError, match="quota passed: cpu_millis"), transaction.atomic():
        Quota.objects.filter(pk=line.pk).update(used=1001)

    Quota.objects.filter(pk=line.pk).update(used=1000)


def test_a_bound_that_only_reports_may_be_passed_and_one_cut_below_use_may_be_left() -> None:
    reports, cut = QuotaFactory(hard=1000, enforce=False), QuotaFactory(hard=1000, used=900)

    Quota.objects.filter(pk=reports.pk).update(used=5000)
    Quota.objects.filter(pk=cut.pk).update(hard=10)
    Quota.objects.filter(pk=cut.pk).update(used=800)

    with pytest.raises(DatabaseError), transaction.atomic():
        Quota.objects.filter(pk=cut.pk).update(used=F("used") + 1)
    with pytest.raises(IntegrityError), transaction.atomic():
        Quota.objects.filter(pk=cut.pk).update(used=-1)


# ---------------------------------------------------------------- the local provider


def test_a_check_says_what_is_short_now_and_what_could_never_be() -> None:
    project = ProjectFactory()
    QuotaFactory(project=project, resource="gpu_millis", hard=4000, soft=2000, used=3000)
    QuotaFactory(project=project, resource="cpu_millis", hard=8000)
    local = provider("local")

    fits = local.check_quota(project.pk, Resources(cpu_millis=1000, gpus=1))
    short = local.check_quota(project.pk, Resources(gpus=2))
    never = local.check_quota(project.pk, Resources(cpu_millis=3000), tasks=3)

    assert (fits.allowed, fits.possible, fits.soft_passed) == (True, True, ("gpu_millis",))
    assert (short.allowed, short.possible) == (False, True)
    assert [(s.resource, s.needed, s.hard, s.used) for s in short.shortfalls] == [
        ("gpu_millis", 2000, 4000, 3000)
    ]
    assert (never.allowed, never.possible) == (False, False)


def test_allocating_counts_every_line_or_none_and_releasing_gives_back() -> None:
    project = ProjectFactory()
    for resource, hard in (("cpu_millis", 4000), ("gpu_millis", 1000), ("running_jobs", 5)):
        QuotaFactory(project=project, resource=resource, hard=hard)
    local = provider("local")
    request = Resources(cpu_millis=1000, gpus=1, gpu_millis=500)

    def used() -> dict[str, int]:
        return dict(Quota.objects.filter(project=project).values_list("resource", "used"))

    local.allocate_quota(project.pk, request, tasks=2)
    assert used() == {"cpu_millis": 2000, "gpu_millis": 1000, "running_jobs": 1}
    with pytest.raises(
        Conflict, match=r"gpu_millis of project .* is used up: 1000 of 1000 in use, 500 needed"
    ):
        local.allocate_quota(project.pk, request)
    assert used() == {"cpu_millis": 2000, "gpu_millis": 1000, "running_jobs": 1}
    local.release_quota(project.pk, request, tasks=2)
    assert used() == {"cpu_millis": 0, "gpu_millis": 0, "running_jobs": 0}


def test_a_start_is_checked_and_counted_on_every_line_up_to_the_root() -> None:
    root = OrganizationFactory(slug="university")
    project = ProjectFactory(slug="vision", organization=OrganizationFactory(parent=root))
    person = UserFactory(username="mia")
    words = {"project": None, "resource": "gpu_millis", "nominal": None}
    of_root = QuotaFactory(organization=root, hard=4000, used=2000, **words)
    own = QuotaFactory(**words | {"project": project, "hard": 9000})
    of_model = QuotaFactory(**words | {"project": project, "gpu_model": "H100", "hard": 1000})
    of_type = QuotaFactory(**words | {"project": project, "job_type": "interactive", "hard": 0})
    of_mia = QuotaFactory(user=person, hard=1000, **words)
    local = provider("local")

    def short(gpus: int, kind: str = "batch", **more) -> list[tuple[str, int]]:
        check = local.check_quota(project.pk, Resources(gpus=gpus), kind, **more)
        assert check.allowed == (not check.shortfalls)
        return [(found.owner, found.hard) for found in check.shortfalls]

    assert short(2) == []
    assert short(3) == [("organization university", 4000)]
    assert short(2, user_id=person.pk) == [("user mia", 1000)]
    assert short(2, devices={"NVIDIA H100": 2000}) == [("project vision", 1000)]
    assert short(1, "interactive") == [("project vision", 0)]
    words = {"user_id": person.pk, "devices": {"NVIDIA H100": 1000}}
    local.allocate_quota(project.pk, Resources(gpus=1), **words)
    lines = (of_root, own, of_model, of_type, of_mia)
    assert [Quota.objects.get(pk=line.pk).used for line in lines] == [3000, 1000, 1000, 0, 1000]
    with pytest.raises(Conflict, match="of user mia is used up"):
        local.allocate_quota(project.pk, Resources(gpus=1), user_id=person.pk)
    local.release_quota(project.pk, Resources(gpus=1), **words)
    assert [Quota.objects.get(pk=line.pk).used for line in lines] == [2000, 0, 0, 0, 0]


def test_what_is_kept_back_for_others_is_not_given_away() -> None:
    lab = OrganizationFactory(slug="lab")
    words = {"resource": "gpu_millis", "hard": None}
    QuotaFactory(project=None, organization=lab, nominal=4000, **words)
    project = ProjectFactory(organization=lab)
    QuotaFactory(project=project, nominal=1000, **words)
    QuotaFactory(project=ProjectFactory(organization=lab), nominal=3000, lending_limit=0, **words)

    assert provider("local").check_quota(project.pk, Resources(gpus=1)).allowed
    check = provider("local").check_quota(project.pk, Resources(gpus=2))

    assert (check.allowed, check.shortfalls[0].owner, check.shortfalls[0].hard) == (
        False,
        "organization lab",
        1000,
    )


@pytest.mark.django_db(transaction=True)
def test_at_the_edge_of_a_quota_exactly_as_many_start_as_fit() -> None:
    project = ProjectFactory()
    line = QuotaFactory(project=project, resource="gpu_millis", hard=5000)

    def start() -> None:
        provider("local").allocate_quota(project.pk, Resources(gpus=1))

    outcomes = at_once(*[start] * 12, refusals=Conflict)

    line.refresh_from_db()
    assert (outcomes.count(None), line.used) == (5, 5000)


def test_a_provider_that_is_not_there_is_named_with_those_that_are() -> None:
    with pytest.raises(InvalidInput, match="'magic' is not") as wrong:
        provider("magic")

    assert "local" in wrong.value.way_out


# ---------------------------------------------------------------- the recount


def test_drift_is_repaired_and_audited_even_past_the_bound() -> None:
    project = ProjectFactory()
    cpu = QuotaFactory(project=project, resource="cpu_millis", hard=1000)
    gpu = QuotaFactory(project=project, resource="gpu_millis", hard=9000, used=7000)
    jobs = QuotaFactory(project=project, resource="running_jobs", hard=9, used=1)
    holds(project, cpu_millis=2500)
    operator = OperatorFactory()

    drifts = sync_quota(project=project, by=operator)

    assert [(d.resource, d.was, d.found) for d in drifts] == [
        ("cpu_millis", 0, 2500),
        ("gpu_millis", 7000, 0),
    ]
    for line in (cpu, gpu, jobs):
        line.refresh_from_db()
    assert (cpu.used, gpu.used, jobs.used) == (2500, 0, 1)
    assert timezone.now() - jobs.synced_at < timezone.timedelta(minutes=1)
    event = AuditEvent.objects.get()
    assert (event.action, event.before, event.after) == (
        "quota.repair",
        {"cpu_millis": 0, "gpu_millis": 7000},
        {"cpu_millis": 2500, "gpu_millis": 0},
    )


def test_drift_that_leaves_too_much_in_use_begins_the_time_until_it_is_kept() -> None:
    project = ProjectFactory()
    long_ago = timezone.now() - timezone.timedelta(days=30)
    cpu = QuotaFactory(  # it was over once, and kept since
        project=project, resource="cpu_millis", hard=1000, converge_after_seconds=60, over_since=long_ago
    )
    gpu = QuotaFactory(
        project=project,
        resource="gpu_millis",
        hard=1000,
        used=7000,
        converge_after_seconds=60,
        over_since=long_ago,
    )
    holds(project, cpu_millis=2500)

    tasks.sync_all()

    for line in (cpu, gpu):
        line.refresh_from_db()
    assert timezone.now() - cpu.over_since < timezone.timedelta(minutes=1)
    assert (gpu.used, gpu.over_since) == (0, None)


def test_counters_that_are_right_leave_no_row() -> None:
    project = ProjectFactory()
    QuotaFactory(project=project, resource="cpu_millis", hard=9000, used=1000)
    holds(project)

    assert sync_quota(project=project, by=OperatorFactory()) == ()

    assert not AuditEvent.objects.exists()


def test_what_has_ended_is_not_counted() -> None:
    project = ProjectFactory()
    QuotaFactory(project=project, resource="cpu_millis", hard=9000)
    QuotaFactory(project=project, resource="running_jobs", hard=9)
    attempt = AttemptFactory(job=JobFactory(project=project), state="succeeded")
    allocation = AllocationFactory(attempt=attempt)
    allocation.released_at = allocation.held_at
    allocation.save()

    assert sync_quota(project=project, by=OperatorFactory()) == ()


@pytest.mark.django_db(transaction=True)
def test_a_recount_waits_for_a_start_that_is_half_way() -> None:
    project = ProjectFactory()
    line = QuotaFactory(project=project, hard=9000)
    attempt = AttemptFactory(job=JobFactory(project=project, state="running", epoch=1))
    node = NodeFactory()
    half_way = threading.Event()

    def start() -> None:
        with transaction.atomic():
            Quota.objects.filter(pk=line.pk).update(used=F("used") + 1000)
            half_way.set()
            time.sleep(0.3)
            AllocationFactory(attempt=attempt, node=node, cpu_millis=1000)
        connection.close()

    thread = threading.Thread(target=start)
    thread.start()
    half_way.wait(10)
    drifts = sync_quota(project=project, by=None)
    thread.join()

    line.refresh_from_db()
    assert (drifts, line.used) == ((), 1000)


def test_only_operators_ask_for_a_recount() -> None:
    cast = the_cast()

    with pytest.raises(NotAllowed):
        sync_quota(project=cast.project, by=cast.lead)


def test_the_clock_finds_and_repairs_drift_by_itself() -> None:
    right, wrong = ProjectFactory(), ProjectFactory()
    QuotaFactory(project=right, hard=9000, used=1000)
    line = QuotaFactory(project=wrong, hard=9000, used=5000)
    holds(right)

    assert drifting_projects() == [wrong.pk]
    tasks.sync_all()

    line.refresh_from_db()
    assert line.used == 0
    assert drifting_projects() == []
    event = AuditEvent.objects.get()
    assert (event.action, event.actor, event.project) == ("quota.repair", None, wrong)


def test_the_trigger_is_back_after_a_repair() -> None:
    line = QuotaFactory(hard=1000)
    sync_quota(project=line.project, by=OperatorFactory())

    with pytest.raises(IntegrityError), transaction.atomic():
        Quota.objects.filter(pk=line.pk).update(used=1001)
    with pgtrigger.ignore("quotas.Quota:quota_never_passed"):
        Quota.objects.filter(pk=line.pk).update(used=1001)


# ---------------------------------------------------------------- reading


def test_percent_and_what_is_left() -> None:
    project = ProjectFactory()
    QuotaFactory(project=project, resource="cpu_millis", hard=100_000, used=75_000)
    QuotaFactory(project=project, resource="gpu_millis", hard=0, nominal=0)

    sheet = quota_sheet(project)

    cpu, gpu, memory = sheet.line("cpu_millis"), sheet.line("gpu_millis"), sheet.line("memory_mib")
    assert (cpu.available, cpu.usage_percent, cpu.over) == (25_000, 75.0, False)
    assert (gpu.available, gpu.usage_percent) == (0, 0.0)
    assert (memory.available, memory.usage_percent, memory.used) == (None, None, 0)
