"""Failures on demand: what happens above a backend that misbehaves."""

from __future__ import annotations

import pytest

from scheduler.services import reconcile
from scheduler.services.jobs import cancel_job
from tests.backends.conftest import FakeBench
from tests.support.agents import World

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def fake(transactional_db: None) -> FakeBench:
    return FakeBench(World.make())


def test_a_backend_that_is_down_holds_nothing_else_up(fake: FakeBench) -> None:
    job = fake.start()
    fake.world.plan()
    fake.backend.down = True

    reconcile.reconcile_all()
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

    reconcile.reconcile_all()

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
    type(job).objects.filter(pk=job.pk).update(max_restarts=0)
    fake.settle(job, "running")

    fake.backend.forget()
    fake.settle(job, "failed")

    assert job.end_text == "Lost 1 times. The machine was reinstalled."
