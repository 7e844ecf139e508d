"""Suspension in rows: a victim is suspended, keeps its memory, gives its CPUs back, and goes on."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import transaction
from django.utils import timezone

from accounts.models import AuditEvent
from quotas.models import LedgerEntry, Quota
from scheduler import metrics
from scheduler.core.lifecycle import JobState
from scheduler.core.plan import Resume
from scheduler.models import Allocation, Attempt, Job, JobEvent, Node, SchedulerProfile, Suspension
from scheduler.services.execution.reconcile import reconcile_all
from scheduler.services.jobs.verbs import cancel_job, requeue_job
from scheduler.services.planning.explain import explain_job
from scheduler.state.apply import apply_suspension, suspension
from scheduler.state.apply.refusals import CANNOT_RESUME
from scheduler.state.lease import leases
from scheduler.state.load.share_usage import HeldShares
from tests.backends.conftest import FakeBench
from tests.support.agents import World
from tests.support.factories import ProjectFactory
from tests.support.roles import as_owner, had_asked


@pytest.fixture
def bench(transactional_db: None) -> FakeBench:
    bench = FakeBench(World.make())
    with as_owner():
        bench.world.cluster.nodes.get(name="n2").devices.all().delete()
        bench.world.cluster.nodes.get(name="n2").delete()
    SchedulerProfile.objects.update(
        preemption_enabled=True, preemption={"protected_seconds": 0, "grace_seconds": 7, "mode": "suspend"}
    )
    return bench


def all_cpus(bench: FakeBench) -> dict[str, int]:
    return {"cpu_cores": bench.world.cluster.nodes.get().cpu_millis_capacity // 1000}


def a_victim(bench: FakeBench, **fields: object) -> Job:
    """A job of low priority that has been running for an hour on all CPUs."""
    job = bench.settle(bench.start(priority=10, **all_cpus(bench) | fields), "running")
    Attempt.objects.filter(job=job).update(started_at=timezone.now() - timedelta(hours=1))
    Allocation.objects.filter(attempt__job=job).update(held_at=timezone.now() - timedelta(hours=1))
    return job


def suspended(bench: FakeBench) -> tuple[Job, Job]:
    """A victim that is suspended, and the job it does so for, which runs."""
    victim = a_victim(bench)
    urgent = bench.world.submit(priority=90, **all_cpus(bench))
    bench.world.plan()
    bench.step()
    bench.step()
    victim.refresh_from_db()
    assert victim.state == JobState.SUSPENDED
    bench.world.plan()
    return victim, bench.settle(urgent, "running")


def broken() -> list[str]:
    return [name for name in metrics.INVARIANTS if metrics.count_violations(name)]


def test_a_victim_stands_still_with_its_memory_and_goes_on_where_it_was(bench: FakeBench) -> None:
    world = bench.world
    line = Quota.objects.create(project=world.project, resource="cpu_millis", hard=10**9)
    victim = a_victim(bench, time_limit="2h")
    line.used = victim.cpu_millis
    line.save()
    urgent = world.submit(priority=90, **all_cpus(bench))

    world.plan()
    victim.refresh_from_db()
    assert victim.state == JobState.PREEMPTING
    attempt = victim.attempts.get()
    assert (attempt.stop_asked_at, attempt.suspend_asked_at is None) == (None, False)
    urgent.refresh_from_db()
    assert urgent.reason_text == f"Job {victim.number} is being suspended for this job."
    told = JobEvent.objects.get(job=victim, kind="job.preempting").because
    assert told == (
        f"suspended for job {urgent.number} of project vision: its priority is 90, this job's 10; "
        "the job resumes on the same nodes when enough CPUs are free"
    )
    world.plan()  # nobody more is told while this one is at it
    assert Suspension.objects.count() == 1

    bench.step()
    bench.step()
    victim.refresh_from_db()
    assert (victim.state, victim.public_state) == (JobState.SUSPENDED, "preempted")
    node = Node.objects.get()
    assert (node.used_cpu_millis, node.used_memory_mib) == (0, 64)
    line.refresh_from_db()
    assert line.used == 0
    assert broken() == []

    world.plan()
    urgent = bench.settle(urgent, "running")
    bench.step()
    world.plan()
    victim.refresh_from_db()
    assert victim.state == JobState.SUSPENDED  # no room yet
    said = explain_job(job=victim, by=world.user).headline
    assert said.startswith(f"Suspended for job {urgent.number} since ")
    assert f"resumes when {node.name} has" in said

    bench.finish(urgent)
    bench.settle(urgent, "completed")
    Suspension.objects.update(starts_at=timezone.now() - timedelta(minutes=30))
    Attempt.objects.filter(job=victim).update(suspended_at=timezone.now() - timedelta(minutes=30))
    world.plan()
    victim.refresh_from_db()
    assert (victim.state, victim.epoch) == (JobState.RUNNING, 1)
    attempt.refresh_from_db()
    assert 1_800_000 <= attempt.suspended_ms < 1_860_000
    line.refresh_from_db()
    assert line.used == victim.cpu_millis
    assert JobEvent.objects.filter(job=victim).latest("id").because == "resumed after 30 min"
    bench.step()
    bench.step()
    assert not any(task.suspended for task in bench.backend.tasks.values() if task.state == "running")
    assert broken() == []

    bench.finish(victim)
    bench.settle(victim, "completed")
    assert broken() == []
    back = LedgerEntry.objects.get(job_number=victim.number, reason__contains="was suspended")
    assert (back.cpu_millis, back.memory_mib) == (victim.cpu_millis, 0)
    assert -1860 < back.charged_seconds <= -1800


def test_its_time_limit_does_not_run_while_it_stands_still(bench: FakeBench) -> None:
    victim, _ = suspended(bench)
    had_asked(victim, time_limit_seconds=60)

    reconcile_all()
    assert victim.attempts.get().stop_asked_at is None

    Attempt.objects.filter(job=victim).update(suspended_at=None, suspend_asked_at=None, suspended_ms=0)
    reconcile_all()
    assert victim.attempts.get().stop_reason == "time_limit"


@pytest.mark.parametrize("verb", [cancel_job, requeue_job], ids=["cancelled", "requeued"])
def test_one_that_stands_still_can_be_ended(bench: FakeBench, verb: object) -> None:
    victim, urgent = suspended(bench)

    verb(job=victim, by=bench.world.user)  # type: ignore[operator]
    bench.step()
    bench.step()

    victim.refresh_from_db()
    assert victim.state == (JobState.CANCELLED if verb is cancel_job else JobState.QUEUED)
    assert not Suspension.objects.filter(starts_at__isnull=False, ends_at=None).exists()
    assert Node.objects.get().used_cpu_millis == urgent.cpu_millis
    assert broken() == []


def test_whoever_is_killed_in_between_loses_nothing(
    bench: FakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = a_victim(bench)
    bench.world.submit(priority=90, **all_cpus(bench))
    bench.world.plan()
    with monkeypatch.context() as patch:
        patch.setattr(suspension, "suspend_attempts", lambda *given, **words: 0)
        bench.step()
        bench.step()
    victim.refresh_from_db()
    assert victim.state == JobState.PREEMPTING

    reconcile_all()

    victim.refresh_from_db()
    assert victim.state == JobState.SUSPENDED
    assert broken() == []


def test_one_that_does_not_stand_still_in_time_is_stopped_after_all(bench: FakeBench) -> None:
    victim = a_victim(bench)
    urgent = bench.world.submit(priority=90, **all_cpus(bench))
    bench.world.plan()
    Attempt.objects.filter(job=victim).update(suspend_asked_at=timezone.now() - timedelta(minutes=2))

    reconcile_all()

    attempt = victim.attempts.get()
    assert (attempt.stop_reason, attempt.stopped_for) == ("preempted", urgent.number)
    bench.step()  # stops it
    bench.step()  # reports that
    victim.refresh_from_db()
    assert victim.state == JobState.QUEUED


def test_a_backend_that_cannot_says_so_and_requeues(
    bench: FakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dataclasses import replace

    monkeypatch.setattr(bench.backend, "capabilities", replace(bench.backend.capabilities, suspends=False))
    victim = a_victim(bench)
    bench.world.submit(priority=90, **all_cpus(bench))

    bench.world.plan()

    assert victim.attempts.get().stop_reason == "preempted"
    told = JobEvent.objects.get(job=victim, kind="job.preempting")
    assert told.because.endswith("(not suspended: the backend fake cannot suspend jobs)")


def test_fair_share_does_not_count_cpus_that_were_given_back(bench: FakeBench) -> None:
    from quotas.selectors.fair_share_source import share_rules

    victim, _ = suspended(bench)
    now = timezone.now().timestamp()
    half = timezone.now() - timedelta(minutes=30)
    Suspension.objects.update(starts_at=half, asked_at=half)
    Allocation.objects.exclude(attempt__job=victim).update(held_at=timezone.now(), released_at=timezone.now())
    decay, _ = share_rules()

    _, cores, _ = HeldShares().used(decay=decay, at=now, running_only=True)[victim.project_id, victim.user_id]

    assert cores == pytest.approx(victim.cpu_millis / 1000 * 1800, rel=0.05)


def test_one_that_is_about_to_stand_still_can_be_requeued(bench: FakeBench) -> None:
    victim = a_victim(bench)
    urgent = bench.world.submit(priority=90, **all_cpus(bench))
    bench.world.plan()
    victim.refresh_from_db()

    requeue_job(job=victim, by=bench.world.user, reason="wrong data")

    attempt = victim.attempts.get()
    assert (attempt.stop_reason, attempt.stopped_for) == ("preempted", urgent.number)
    told = JobEvent.objects.filter(job=victim).latest("id")
    assert told.because == f"requeued by {bench.world.user.username}: wrong data"
    bench.settle(victim, "queued")
    assert AuditEvent.objects.filter(action="job.requeue", object_id=str(victim.number)).exists()


@pytest.mark.parametrize("kept_back", [False, True])
def test_none_goes_on_past_what_a_pool_has_left_when_another_cluster_was_faster(
    bench: FakeBench, kept_back: bool
) -> None:
    world = bench.world
    victim, urgent = suspended(bench)
    bench.finish(urgent)
    bench.settle(urgent, "completed")
    above = {"organization": world.project.organization, "resource": "cpu_millis", "gpu_model": ""}
    pool = Quota.objects.create(**above, nominal=victim.cpu_millis + 1000, used=0)
    if kept_back:  # by a project that uses nothing now
        other = ProjectFactory(organization=world.project.organization)
        Quota.objects.create(project=other, resource="cpu_millis", nominal=2000, lending_limit=0)
    else:  # planned when the pool was free, and then a plan of another cluster starts something
        Quota.objects.filter(pk=pool.pk).update(used=1001)
    resumes = [Resume(victim.number, victim.attempts.get().pk)]
    lease = leases.acquire(leases.cluster_scope(world.cluster.pk), holder="us", seconds=60)
    assert lease is not None

    assert apply_suspension.apply_resumes(resumes, lease=lease, at=timezone.now()) == 0
    Quota.objects.exclude(pk=pool.pk).delete()
    Quota.objects.filter(pk=pool.pk).update(used=1000)
    assert apply_suspension.apply_resumes(resumes, lease=lease, at=timezone.now()) == 1
    pool.refresh_from_db()
    assert pool.used == pool.nominal


def test_a_job_resumes_only_where_its_cpus_are_free_and_while_it_is_suspended(bench: FakeBench) -> None:
    victim, urgent = suspended(bench)
    resumes = [Resume(victim.number, victim.attempts.get().pk)]

    def refusals() -> list[tuple[int, str, str]]:
        with transaction.atomic():
            found = apply_suspension.check_resumes(resumes)
        return [(one.job, one.code, one.message) for one in found.refused]

    why = f"Job {victim.number} cannot resume: "
    assert refusals() == [(victim.number, CANNOT_RESUME, why + "its CPUs are in use.")]
    bench.finish(urgent)
    bench.settle(urgent, "completed")
    assert refusals() == []
    requeue_job(job=Job.objects.get(pk=victim.pk), by=bench.world.user)
    assert refusals() == [(victim.number, CANNOT_RESUME, why + "it is no longer suspended.")]
