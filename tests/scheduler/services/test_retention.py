"""Retention: what is old goes, in batches, once; what is needed, proves or is paid for stays."""

from __future__ import annotations

import io
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import call_command
from django.utils import timezone

from accounts.models import AuditEvent
from accounts.services import audit
from infra.retention import Rule
from quotas.core.decay import Decay
from quotas.models import LedgerEntry, ShareUsage
from quotas.selectors.fair_share_source import Held, use_at
from quotas.services.shares import count_use, recount_shares
from scheduler.core.lifecycle import JobState
from scheduler.models import Allocation, Attempt, Cycle, Job, JobEvent, LogChunk, RetentionRun, Task
from scheduler.services import retention
from tests.scheduler.state.small import SmallWorld
from tests.support.factories import (
    AllocationFactory,
    AttemptFactory,
    CycleFactory,
    IdempotencyKeyFactory,
    JobDependencyFactory,
    JobEventFactory,
    JobFactory,
    LogChunkFactory,
    MembershipFactory,
    OperatorFactory,
    ProjectFactory,
    TaskFactory,
    UserFactory,
)

pytestmark = pytest.mark.django_db

LONG_AGO = timedelta(days=100)


def an_ended_job(*, ago: timedelta = LONG_AGO, **words) -> Job:
    """A job that has everything hanging on it."""
    then = timezone.now() - ago
    job = JobFactory(state=JobState.COMPLETED, epoch=1, completed_at=then, **words)
    attempt = AttemptFactory(job=job, state="succeeded", ended_at=then)
    task = TaskFactory(attempt=attempt)
    AllocationFactory(attempt=attempt, node=task.node, held_at=then - timedelta(hours=1), released_at=then)
    LogChunkFactory(task=task, received_at=then)
    JobEventFactory(job=job, at=then)
    return job


def test_jobs_are_kept_for_ever_until_a_setting_says_otherwise(settings) -> None:
    old, new = an_ended_job(), an_ended_job(ago=timedelta(days=1))
    waiting = JobFactory()
    assert retention.JOBS.carry_out(timezone.now()) == 0

    settings.MUSTER_KEEP_JOBS_DAYS = 60
    assert retention.JOBS.count(timezone.now()) == 1
    assert retention.JOBS.carry_out(timezone.now()) == 1

    assert set(Job.objects.all()) == {new, waiting}
    for model in (Attempt, Allocation, Task, LogChunk, JobEvent):
        assert model.objects.count() == 1, model
    assert not Job.objects.filter(pk=old.pk).exists()


def test_a_job_that_another_still_waits_for_stays(settings) -> None:
    settings.MUSTER_KEEP_JOBS_DAYS = 60
    first, done = an_ended_job(), an_ended_job()
    JobDependencyFactory(job=JobFactory(state=JobState.BLOCKED), on=first)
    JobDependencyFactory(job=done, on=first)

    assert retention.JOBS.carry_out(timezone.now()) == 1

    assert set(Job.objects.exclude(state=JobState.BLOCKED)) == {first}


def test_jobs_stay_as_long_as_fair_share_and_the_ledger_look_back(settings) -> None:
    settings.MUSTER_KEEP_JOBS_DAYS = 1
    an_ended_job(ago=timedelta(days=30))

    assert retention.JOBS.hours_kept == 36 * 24
    assert retention.JOBS.carry_out(timezone.now()) == 0


def test_events_of_ended_jobs_go_and_those_of_waiting_ones_stay(settings) -> None:
    settings.MUSTER_KEEP_EVENTS_DAYS = 30
    an_ended_job()
    kept = JobEventFactory(job=JobFactory(), at=timezone.now() - LONG_AGO)

    assert retention.EVENTS.carry_out(timezone.now()) == 1

    assert list(JobEvent.objects.all()) == [kept]


@pytest.mark.parametrize("rows", [1, 4, 5, 9])
def test_batches_take_all_of_it_and_each_row_once(rows: int) -> None:
    for _ in range(rows):
        CycleFactory(started_at=timezone.now() - LONG_AGO)

    assert replace(retention.CYCLES, batch=4).carry_out(timezone.now()) == rows
    assert retention.CYCLES.count(timezone.now()) == 0


def test_old_slices_of_use_are_added_up_and_no_sum_changes() -> None:
    project = ProjectFactory()
    user = MembershipFactory(project=project).user
    now = timezone.now().timestamp()
    for days in (1, 5, 50, 51, 90):
        end = now - days * 86_400
        count_use([Held(project.pk, user.pk, end - 7200, end, 2.0, 1.0, 4.0)])
    modes = [Decay(mode=mode) for mode in ("exponential", "window", "none")]
    before = [use_at(now, decay=decay) for decay in modes]
    slices = ShareUsage.objects.count()

    gone = retention.prune_all()["share_slices"]

    assert 3 <= gone <= 6
    assert ShareUsage.objects.count() == slices - gone + 1
    after = [use_at(now, decay=decay) for decay in modes]
    for was, became in zip(before, after, strict=True):
        assert became[project.pk, user.pk] == pytest.approx(was[project.pk, user.pk], rel=1e-12)
    assert retention.prune_all()["share_slices"] == 0


def test_a_recount_after_it_finds_nothing_of_what_was_added_up() -> None:
    job = an_ended_job(ago=timedelta(days=60))
    end = (timezone.now() - timedelta(days=60)).timestamp()
    count_use([Held(job.project_id, job.user_id, end - 3600, end, 1.0, 1.0, 1.0)])
    retention.prune_all()

    assert recount_shares() == 0


def test_the_audit_trail_and_the_ledger_stay_whole_until_a_setting_says_otherwise(settings) -> None:
    for name in ("JOBS", "EVENTS", "CYCLES", "LOGS", "SHARES", "ALERTS", "DRIFT"):
        setattr(settings, f"MUSTER_KEEP_{name}_DAYS", 1)
    job = an_ended_job()
    audit.record(by=OperatorFactory(), action="test", thing=job.project)
    then = timezone.now() - LONG_AGO
    entry = LedgerEntry.objects.create(
        kind="hold", project=job.project, user=job.user, job_number=job.number, cpu_millis=1, held_seconds=5,
        starts_at=then, ends_at=then + timedelta(seconds=5), at=then,
    )  # fmt: skip
    trail = AuditEvent.objects.count()

    retention.prune_all()

    assert not Job.objects.filter(pk=job.pk).exists()
    assert AuditEvent.objects.count() == trail
    assert LedgerEntry.objects.filter(pk=entry.pk).exists()


def test_a_dry_run_says_what_would_go_and_touches_nothing(settings) -> None:
    settings.MUSTER_KEEP_JOBS_DAYS = 60
    an_ended_job()
    said = io.StringIO()

    call_command("retention", "--dry-run", stdout=said)

    lines = [line.strip() for line in said.getvalue().splitlines()]
    assert any(line.startswith("1  Jobs that have ended") for line in lines)
    assert any(line.startswith("1  Output of attempts") for line in lines)
    assert any(line.startswith("0  Lines of the ledger; entries are summed by day") for line in lines)
    assert "60 days (MUSTER_KEEP_JOBS_DAYS)" in said.getvalue()
    assert Job.objects.count() == LogChunk.objects.count() == 1
    assert not RetentionRun.objects.exists()


def test_a_run_is_recorded_with_the_settings_it_ran_under(settings) -> None:
    settings.MUSTER_KEEP_JOBS_DAYS = 60
    an_ended_job()
    said = io.StringIO()

    call_command("retention", stdout=said)

    run = RetentionRun.objects.get()
    facts = {rule["name"]: rule for rule in run.rules}
    assert (facts["jobs"]["removed"], facts["jobs"]["hours"], run.problem) == (1, 60 * 24, "")
    assert (
        run.removed == sum(rule["removed"] for rule in run.rules) == 3
    )  # the job, before it its output, after it its name
    assert run.ended_at >= run.started_at


def test_a_rule_that_fails_is_named_and_what_went_before_stays_gone(monkeypatch) -> None:
    CycleFactory(started_at=timezone.now() - LONG_AGO)
    broken = replace(retention.RUNS, statement="SELECT 1 / 0")
    monkeypatch.setattr(retention, "rules", lambda: iter([retention.CYCLES, broken]))

    with pytest.raises(Exception, match="division by zero"):
        retention.prune_all()

    run = RetentionRun.objects.get()
    assert run.problem.startswith("retention_runs: division by zero")
    assert [rule["removed"] for rule in run.rules] == [1]


def test_what_a_rule_had_to_leave_is_said_and_the_others_go_on(monkeypatch, capsys) -> None:
    CycleFactory(started_at=timezone.now() - LONG_AGO)
    left = replace(retention.RUNS, left=["chain 3 does not check"])
    monkeypatch.setattr(retention, "rules", lambda: iter([left, retention.CYCLES]))

    call_command("retention")

    run = RetentionRun.objects.get()
    assert (run.problem, run.removed) == ("retention_runs: chain 3 does not check", 1)
    assert "chain 3 does not check" in capsys.readouterr().err


@pytest.mark.parametrize(("factory", "status"), [(OperatorFactory, 200), (UserFactory, 302)])
def test_operators_see_the_settings_and_the_last_run(client, factory, status: int) -> None:
    retention.prune_all()
    run = RetentionRun.objects.get()
    client.force_login(factory(), backend="accounts.backends.PasswordBackend")

    listed = client.get("/admin/scheduler/retentionrun/")
    shown = client.get(f"/admin/scheduler/retentionrun/{run.pk}/change/")

    assert (listed.status_code, shown.status_code) == (status, status)
    if status == 200:
        text = shown.content.decode()
        assert "30 days (MUSTER_KEEP_LOGS_DAYS)" in text
        assert "unlimited (MUSTER_KEEP_JOBS_DAYS)" in text
        assert "unlimited (MUSTER_KEEP_AUDIT_DAYS)" in text


# ------------------------------------------------------------------ cycles, logs and keys


@pytest.fixture
def world() -> SmallWorld:
    return SmallWorld()


def deleted(rule: Rule) -> int:
    return rule.carry_out(timezone.now())


def test_old_cycles_go_and_their_attempts_stay(world: SmallWorld, settings: Any) -> None:
    old = CycleFactory(cluster=world.cluster, started_at=timezone.now() - timedelta(days=3))
    new = CycleFactory(cluster=world.cluster)
    attempt = AttemptFactory(cycle_id=old.pk, state="succeeded", job__state=JobState.COMPLETED,
                             job__completed_at=timezone.now())  # fmt: skip

    settings.MUSTER_KEEP_CYCLES_DAYS = 2

    assert deleted(retention.CYCLES) == 1

    assert list(Cycle.objects.all()) == [new]
    attempt.refresh_from_db()
    assert attempt.cycle_id == old.pk


def test_recordings_are_stripped_by_number_and_by_size(world: SmallWorld) -> None:
    cycles_ = [
        CycleFactory(cluster=world.cluster, snapshot=b"s" * 1000, policy=b"p", plan=b"l" * 1000)
        for _ in range(5)
    ]

    assert deleted(retention.recordings(keep=4, keep_bytes=10**9)) == 1
    assert deleted(retention.recordings(keep=100, keep_bytes=4000)) == 2
    kept = Cycle.objects.filter(snapshot__isnull=False).values_list("id", flat=True)
    assert sorted(kept) == [cycles_[3].pk, cycles_[4].pk]


def test_the_newest_recording_is_kept_however_large(world: SmallWorld) -> None:
    CycleFactory(cluster=world.cluster, snapshot=b"s" * 1000, policy=b"p", plan=b"l")

    assert deleted(retention.recordings(keep=1, keep_bytes=10)) == 0


def test_idempotency_keys_go_after_a_day(world: SmallWorld) -> None:
    old, new = IdempotencyKeyFactory(), IdempotencyKeyFactory()
    type(old).objects.filter(pk=old.pk).update(created_at=timezone.now() - timedelta(hours=25))

    assert deleted(retention.IDEMPOTENCY_KEYS) == 1

    assert list(type(new).objects.all()) == [new]


def test_logs_of_attempts_that_ended_long_ago_go_and_those_of_live_ones_stay(
    world: SmallWorld, settings: Any
) -> None:
    long_ago = timezone.now() - timedelta(days=40)
    ended = AttemptFactory(state="succeeded", ended_at=long_ago, job__state=JobState.COMPLETED,
                           job__completed_at=long_ago)  # fmt: skip
    LogChunkFactory(task__attempt=ended, received_at=long_ago)
    live = LogChunkFactory(task__attempt__state="succeeded", task__attempt__job__state=JobState.FAILED,
                           task__attempt__job__completed_at=timezone.now(), received_at=long_ago,
                           task__attempt__ended_at=timezone.now())  # fmt: skip

    settings.MUSTER_KEEP_LOGS_DAYS = 0
    assert deleted(retention.LOG_CHUNKS) == 0
    settings.MUSTER_KEEP_LOGS_DAYS = 30
    assert deleted(retention.LOG_CHUNKS) == 1

    assert list(type(live).objects.all()) == [live]


def test_a_whole_snapshot_is_kept_for_every_recording_that_is_a_delta_on_it(world: SmallWorld) -> None:
    words = {"cluster": world.cluster, "snapshot": b"s" * 1000, "policy": b"p", "plan": b"l" * 1000}
    bases = [CycleFactory(**words), CycleFactory(**words)]
    first = [CycleFactory(**words, base_id=bases[0].pk) for _ in range(2)]
    second = [CycleFactory(**words, base_id=bases[1].pk) for _ in range(2)]

    def kept() -> list[int]:
        return sorted(Cycle.objects.filter(snapshot__isnull=False).values_list("id", flat=True))

    assert deleted(retention.recordings(keep=3, keep_bytes=10**9)) == 1
    assert kept() == [bases[0].pk, bases[1].pk, first[1].pk, second[0].pk, second[1].pk]
    assert deleted(retention.recordings(keep=2, keep_bytes=10**9)) == 2
    assert kept() == [bases[1].pk, second[0].pk, second[1].pk]


def test_an_old_cycle_stays_while_a_newer_recording_is_a_delta_on_it(
    world: SmallWorld, settings: Any
) -> None:
    ago = timezone.now() - timedelta(days=3)
    base, gone = (CycleFactory(cluster=world.cluster, started_at=ago) for _ in range(2))
    CycleFactory(cluster=world.cluster, base_id=base.pk)
    settings.MUSTER_KEEP_CYCLES_DAYS = 2

    assert deleted(retention.CYCLES) == 1

    assert not Cycle.objects.filter(pk=gone.pk).exists()
    assert Cycle.objects.filter(pk=base.pk).exists()
