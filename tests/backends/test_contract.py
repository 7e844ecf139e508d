"""What every backend promises, whatever runs behind it."""

from __future__ import annotations

import pytest
from django.utils import timezone

from quotas.models import QuotaResource
from scheduler.models import Attempt, Job, SchedulerProfile
from scheduler.services.jobs.verbs import cancel_job
from scheduler.state.settle.settle import end_attempt
from tests.backends.conftest import Bench
from tests.support.agents import wait_for
from tests.support.factories import QuotaFactory

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_job_runs_and_completes_and_gives_everything_back(bench: Bench) -> None:
    for resource in QuotaResource.counted():
        QuotaFactory(project=bench.world.project, resource=resource, hard=10**6)
    job = bench.start(gpu_count=1)
    bench.settle(job, "running")
    assert job.started_at is not None
    assert sorted(q.used for q in bench.world.project.quotas.all()) == [0, 1, 64, 1000, 1000]

    bench.finish(job)
    bench.settle(job, "completed")

    attempt = job.attempts.get()
    assert (job.exit_code, job.exit_signal, attempt.state, attempt.epoch) == (0, None, "succeeded", 1)
    assert job.scheduled_at <= job.started_at <= job.completed_at
    bench.world.assert_nothing_is_held()


def test_an_exit_code_fails_the_job(bench: Bench) -> None:
    job = bench.settle(bench.start(), "running")

    bench.finish(job, exit_code=3)
    bench.settle(job, "failed")

    assert (job.exit_code, job.exit_signal, job.end_text) == (3, None, "Ended with exit code 3.")
    bench.world.assert_nothing_is_held()


def test_a_signal_is_no_exit_code(bench: Bench) -> None:
    job = bench.settle(bench.start(), "running")

    bench.kill(job)
    bench.settle(job, "failed")

    assert (job.exit_code, job.exit_signal) == (None, 9)
    assert job.end_text == "Ended by signal 9 (SIGKILL)."


def test_a_running_job_is_cancelled(bench: Bench) -> None:
    job = bench.settle(bench.start(), "running")

    cancel_job(job=job, by=bench.world.user, reason="not needed")
    bench.settle(job, "cancelled")

    assert job.attempts.get().state == "stopped"
    bench.world.assert_nothing_is_held()


def test_a_gang_fails_as_a_whole(bench: Bench) -> None:
    job = bench.start(tasks=2, cpu_cores=5)
    bench.settle(job, "running")

    bench.finish(job, exit_code=4, rank=1)
    bench.settle(job, "failed")

    tasks = list(job.attempts.get().tasks.order_by("rank"))
    assert [task.state for task in tasks] == ["stopped", "failed"]
    assert len({task.node_id for task in tasks}) == 2
    assert job.exit_code == 4
    assert job.end_text.startswith("Task 1 on n")
    bench.world.assert_nothing_is_held()


def test_a_failed_job_is_tried_again_after_a_while_when_it_wants_to(bench: Bench) -> None:
    job = bench.settle(bench.start(restart_policy="on_failure"), "running")
    bench.finish(job, exit_code=1)
    bench.settle(job, "queued")
    assert job.reason_code == "Backoff"
    assert job.eligible_at > timezone.now()

    Job.objects.filter(pk=job.pk).update(eligible_at=timezone.now())
    wait_for(lambda: bench.step() or job.attempts.count() > 1)  # it may fail again before anybody looks

    job.refresh_from_db()
    assert job.epoch == 2
    assert [a.state for a in job.attempts.order_by("epoch")][0] == "failed"


def test_a_lost_attempt_starts_again_and_its_late_end_changes_nothing(bench: Bench) -> None:
    job = bench.settle(bench.start(), "running")
    first = job.attempts.get()

    assert (
        end_attempt(attempt_id=first.pk, epoch=first.epoch, lost_text="Node n1 stopped responding.")
        is not None
    )
    assert end_attempt(attempt_id=first.pk, epoch=first.epoch, lost_text="Again.") is None
    job.refresh_from_db()
    assert (job.state, job.epoch) == ("queued", 1)
    bench.world.assert_nothing_is_held()
    Job.objects.filter(pk=job.pk).update(eligible_at=timezone.now())
    bench.settle(job, "running")
    bench.finish(job)
    bench.settle(job, "completed")

    assert job.epoch == 2
    assert [(a.epoch, a.state) for a in job.attempts.order_by("epoch")] == [(1, "lost"), (2, "succeeded")]
    assert Attempt.objects.filter(job=job, tasks__state="running").count() == 0
    bench.world.assert_nothing_is_held()


def test_a_job_that_waits_for_another_starts_after_it(bench: Bench) -> None:
    first = bench.settle(bench.start(), "running")
    second = bench.start(depends_on=[first.number])
    assert second.state == "blocked"

    bench.finish(first)
    bench.settle(second, "running")

    first.refresh_from_db()
    assert first.state == "completed"


def test_a_job_is_stopped_for_one_of_higher_standing_and_runs_again_after_it(bench: Bench) -> None:
    SchedulerProfile.objects.update(
        preemption_enabled=True, preemption={"protected_seconds": 0, "grace_seconds": 5}
    )
    low = [bench.settle(bench.start(priority=10, cpu_cores=8), "running") for _ in range(2)]

    urgent = bench.settle(bench.start(priority=90, cpu_cores=8), "running")

    for job in low:
        job.refresh_from_db()
    assert sorted(job.state for job in low) == ["queued", "running"]
    victim = next(job for job in low if job.state == "queued")
    bench.finish(urgent)
    bench.settle(urgent, "completed")
    victim = bench.settle(victim, "running")
    assert victim.epoch == 2
    for job in low:
        bench.finish(job)
        bench.settle(job, "completed")
    bench.world.assert_nothing_is_held()
