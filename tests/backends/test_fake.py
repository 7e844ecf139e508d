"""Failures on demand: what happens above a backend that misbehaves."""

from __future__ import annotations

import pytest

from scheduler.services.execution import driving
from scheduler.services.jobs.verbs import cancel_job
from tests.backends.conftest import FakeBench
from tests.support.agents import World
from tests.support.roles import had_asked

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def fake(transactional_db: None) -> FakeBench:
    return FakeBench(World.make())


def test_a_backend_that_is_down_holds_nothing_else_up(fake: FakeBench) -> None:
    job = fake.start()
    fake.world.plan()
    fake.backend.down = True

    driving.Driver().round()
    job.refresh_from_db()
    assert job.state == "scheduled"

    fake.backend.down = False
    fake.settle(job, "running")


def test_repeated_reports_change_nothing(fake: FakeBench) -> None:
    fake.backend.repeats = True
    job = fake.settle(fake.start(), "running")
    events = job.events.count()

    fake.step()
    fake.step()
    assert job.events.count() == events
    fake.finish(job)
    fake.settle(job, "completed")
    events = job.events.count()
    fake.step()

    assert job.events.count() == events
    fake.world.assert_nothing_is_held()


def test_a_job_that_ignores_stops_holds_its_nodes_until_it_is_gone(fake: FakeBench) -> None:
    fake.backend.ignores_stops = True
    job = fake.settle(fake.start(), "running")
    cancel_job(job=job, by=fake.world.user)

    fake.step()
    job.refresh_from_db()
    assert job.state == "stopping"
    assert fake.world.task(job).node.used_cpu_millis == 1000

    fake.backend.ignores_stops = False
    fake.settle(job, "cancelled")
    fake.world.assert_nothing_is_held()


def test_a_job_cancelled_before_anybody_took_it_is_over_at_once(fake: FakeBench) -> None:
    job = fake.start()
    fake.world.plan()
    cancel_job(job=job, by=fake.world.user)

    driving.Driver().round()

    job.refresh_from_db()
    assert job.state == "cancelled"
    assert fake.backend.tasks == {}
    fake.world.assert_nothing_is_held()


def test_a_reinstalled_machine_says_what_it_has_lost(fake: FakeBench) -> None:
    job = fake.settle(fake.start(), "running")

    fake.backend.forget()
    fake.settle(job, "queued")

    assert job.attempts.get().state == "lost"
    assert job.reason_code == "Backoff"
    fake.world.assert_nothing_is_held()


def test_after_enough_losses_the_job_fails(fake: FakeBench) -> None:
    job = fake.start()
    had_asked(job, max_restarts=0)
    fake.settle(job, "running")

    fake.backend.forget()
    fake.settle(job, "failed")

    assert job.end_text == "Lost 1 times. The machine was reinstalled."


def test_a_job_that_a_quota_there_refuses_is_queued_again_with_the_reason(fake: FakeBench) -> None:
    """The provider's word is the last one; the others of the same call start."""
    refused, other = fake.start(name="large"), fake.start(name="small")
    fake.backend.refuses = {"large": "Kubernetes: exceeded quota project-7, requested 8 GPUs, used 2 of 4."}
    fake.world.plan()
    fake.step()

    refused.refresh_from_db()
    other.refresh_from_db()
    assert other.state != "queued"
    assert refused.state == "queued"
    assert refused.reason_code == "Backoff"
    assert "exceeded quota project-7" in refused.reason_text
    attempt = refused.attempts.get()
    assert (attempt.state, attempt.stop_reason) == ("stopped", "quota_refused")
    assert refused.eligible_at is not None
    first_wait = refused.eligible_at - attempt.ended_at

    # Refused again it waits longer, however few restarts its owner allows, and it starts once it is let in.
    had_asked(refused, max_restarts=0)
    type(refused).objects.filter(pk=refused.pk).update(eligible_at=attempt.ended_at)
    fake.world.plan()
    fake.step()
    refused.refresh_from_db()
    assert refused.state == "queued"
    last = refused.attempts.latest("epoch")
    assert refused.eligible_at - last.ended_at > first_wait
    type(refused).objects.filter(pk=refused.pk).update(eligible_at=last.ended_at)
    fake.backend.refuses.clear()
    fake.settle(refused, "running")
    fake.finish(refused)
    fake.finish(other)
    fake.settle(refused, "completed")
    fake.settle(other, "completed")
    fake.world.assert_nothing_is_held()


def test_a_gang_of_which_one_task_is_refused_comes_back_whole(fake: FakeBench) -> None:
    gang = fake.start(name="gang", tasks=2, nodes=2, tasks_per_node=1)
    fake.backend.refuses = {"gang": "exceeded quota"}
    fake.world.plan()
    for _ in range(3):
        fake.step()

    gang.refresh_from_db()
    assert gang.state == "queued"
    fake.world.assert_nothing_is_held()
