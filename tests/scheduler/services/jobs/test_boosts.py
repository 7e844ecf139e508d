"""Boosts: effective priority only, capped, for a time, by operators, in the audit trail; and ageing by class."""

from __future__ import annotations

from datetime import timedelta
from io import StringIO

import pytest
from django.core.management import call_command
from django.utils import timezone
from pytest_django.fixtures import Settings

from accounts.models import AuditEvent, User
from infra.errors import Conflict, InvalidInput, NotAllowed
from scheduler.models import Job, JobEvent, PriorityClass
from scheduler.services.jobs.boosts import boost_job
from scheduler.state.load.snapshots import load_snapshot
from tests.support.agents import World
from tests.support.factories import OperatorFactory
from tests.support.roles import had_asked

pytestmark = pytest.mark.django_db


@pytest.fixture
def world() -> World:
    return World.make()


@pytest.fixture
def operator() -> User:
    return OperatorFactory(username="olga")


def effective(world: World) -> dict[int, int]:
    pending = load_snapshot(cluster_id=world.cluster.pk).snapshot.pending
    return dict(zip(pending.id.tolist(), pending.priority.tolist(), strict=True))


def test_a_boost_counts_until_it_ends_and_the_job_keeps_its_own_priority(
    world: World, operator: User
) -> None:
    job, other = world.submit(priority=30), world.submit(priority=40)

    boost_job(job=job, by=operator, points=25, seconds=3600, reason="its node died twice")

    job.refresh_from_db()
    assert (job.priority, job.boost_now) == (30, 25)
    assert effective(world) == {job.number: 55, other.number: 40}
    said = JobEvent.objects.get(job=job, kind="job.boosted")
    assert said.because.startswith("boosted by 25 to 55 until ")
    assert said.because.endswith(" by olga: its node died twice")
    trail = AuditEvent.objects.get(action="job.boost")
    assert (trail.actor_name, trail.after["boost"], trail.reason) == ("olga", 25, "its node died twice")

    Job.objects.filter(pk=job.pk).update(boost_until_at=timezone.now())
    assert effective(world)[job.number] == 30
    job.refresh_from_db()
    assert job.boost_now == 0


def test_a_boost_is_taken_back_with_0(world: World, operator: User) -> None:
    job = world.submit(priority=30)
    boost_job(job=job, by=operator, points=25, reason="by mistake")

    boost_job(job=job, by=operator, points=0, reason="it was the other one")

    assert effective(world) == {job.number: 30}
    assert AuditEvent.objects.filter(action="job.boost").latest("id").before["boost"] == 25


def test_no_boost_leads_above_the_cap_and_who_asked_for_more_keeps_it(
    world: World, operator: User, settings: Settings
) -> None:
    settings.PRIORITY_BOOST_CAP = 60
    low, high = world.submit(priority=30), world.submit(priority=80)

    with pytest.raises(InvalidInput, match="from 0 to 30: a boost cannot raise the priority above 60"):
        boost_job(job=low, by=operator, points=31, reason="x")
    with pytest.raises(InvalidInput, match="from 0 to 0"):
        boost_job(job=high, by=operator, points=1, reason="x")
    with pytest.raises(InvalidInput, match="owners of jobs that are passed"):
        boost_job(job=low, by=operator, points=1, reason=" ")

    assert effective(world) == {low.number: 30, high.number: 80}


def test_nobody_boosts_their_own_job(world: World) -> None:
    job = world.submit(priority=30)

    with pytest.raises(NotAllowed):
        boost_job(job=job, by=world.user, points=10, reason="I am in a hurry")

    assert effective(world) == {job.number: 30}


def test_what_is_over_is_not_boosted(world: World, operator: User) -> None:
    job = world.submit(priority=30)
    Job.objects.filter(pk=job.pk).update(state="completed", completed_at=timezone.now())

    with pytest.raises(Conflict):
        boost_job(job=job, by=operator, points=10, reason="x")


def test_a_class_ages_by_the_hour_up_to_the_cap(world: World, settings: Settings) -> None:
    settings.PRIORITY_BOOST_CAP = 70
    jobs = [world.submit(priority=priority) for priority in (10, 30, 30)]
    before = timezone.now() - timedelta(hours=10)
    had_asked(jobs[0], jobs[1], created_at=before)
    Job.objects.filter(pk__in=[jobs[0].pk, jobs[1].pk]).update(eligible_at=before)
    assert list(effective(world).values()) == [10, 30, 30]  # unless a class says so, nobody ages

    PriorityClass.objects.filter(value=25).update(boost_per_hour="2.5")
    assert list(effective(world).values()) == [10, 55, 30]

    PriorityClass.objects.filter(value=25).update(boost_per_hour="9")
    assert list(effective(world).values()) == [10, 70, 30]


def test_from_the_command_line(world: World, operator: User) -> None:
    job, out = world.submit(priority=30), StringIO()

    call_command("boost_job", job.number, 20, "--hours", "2", "--reason", "x", "--by", "olga", stdout=out)

    assert out.getvalue().startswith(f"Job {job.number} counts as priority 50 until ")
    assert effective(world) == {job.number: 50}
