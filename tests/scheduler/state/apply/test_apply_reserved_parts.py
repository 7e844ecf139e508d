"""A plan applied where parts of nodes are reserved: what other projects run there counts."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from scheduler.models import Attempt, JobRequest, Reservation
from tests.scheduler.state.apply.planned import a_lease, applied, refused, seen_and_planned
from tests.scheduler.state.small import SmallWorld
from tests.support.factories import ProjectFactory

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def world() -> SmallWorld:
    return SmallWorld()


def test_what_ends_before_a_part_is_reserved_is_free_then_also_when_applied(world: SmallWorld) -> None:
    node = world.node("n1", cpu_millis=8000)
    other = world.job("other", cpu_millis=4000, time_limit_seconds=600, project=ProjectFactory(slug="speech"))
    loaded, plan = seen_and_planned(world)
    lease = a_lease(world)
    assert applied(world, loaded, plan, lease).refused == ()
    Attempt.objects.filter(job=other).update(started_at=timezone.now())
    course = Reservation.objects.create(
        cluster=world.cluster, name="course", magnetic=False, project=world.project,
        starts_at=timezone.now() + timedelta(hours=1), ends_at=timezone.now() + timedelta(hours=2),
    )  # fmt: skip
    course.parts.create(node=node, cpu_millis=4000)
    long = world.job("long", cpu_millis=4000, time_limit_seconds=7200)
    late = world.job("late", cpu_millis=1000, time_limit_seconds=7200)

    loaded, plan = seen_and_planned(world)
    outcome = applied(world, loaded, plan, lease)

    assert [start.job_id for start in outcome.started] == [long.number]
    assert outcome.refused == ()
    assert late.number in plan.reasons


def test_a_part_reserved_after_the_snapshot_is_kept(world: SmallWorld) -> None:
    node, job = world.node("n1", cpu_millis=8000), world.job(cpu_millis=8000, time_limit_seconds=600)
    loaded, plan = seen_and_planned(world)
    course = Reservation.objects.create(
        cluster=world.cluster, name="course", magnetic=False, project=world.project, starts_at=timezone.now(),
        ends_at=timezone.now() + timedelta(hours=2),
    )  # fmt: skip
    course.parts.create(node=node, cpu_millis=1000, memory_mib=8192)

    outcome = applied(world, loaded, plan, a_lease(world))

    assert list(refused(outcome)) == [job.number]
    JobRequest.objects.filter(pk=job.pk).update(reservation=course, cpu_millis=1000)
    loaded, plan = seen_and_planned(world)
    assert [start.job_id for start in plan.starts] == [job.number]
