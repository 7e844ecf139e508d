"""Requests for reservations: who asks, who decides, what is held then, and which jobs run inside."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import IntegrityError, transaction
from django.utils import timezone

from accounts.models import AuditEvent
from infra.errors import Conflict, InvalidInput, MusterError, NotAllowed, NotFound
from scheduler.core.cycle import plan_cycle
from scheduler.models import Device, Node, Reservation, ReservationPart
from scheduler.services.reservations.cost import cost_of
from scheduler.services.reservations.decide import (
    approve_reservation,
    change_reservation,
    decline_reservation,
    request_reservation,
)
from scheduler.services.reservations.reserve import cancel_reservation, reserve
from scheduler.services.reservations.use import gpu_time, state_of
from scheduler.state.load.snapshots import load_snapshot
from tests.scheduler.portal import Portal, a_portal, problems
from tests.support.factories import ProjectFactory

pytestmark = pytest.mark.django_db


@pytest.fixture
def portal(db: None) -> Portal:
    return a_portal()


def terms(hours: float = 0, **more: Any) -> dict[str, Any]:
    """Two hours for vision, from now or in `hours`."""
    starts_at = timezone.now() + timedelta(hours=hours)
    window = {"starts_at": starts_at.isoformat(), "seconds": 7200} if hours else {"seconds": 7200}
    return {"name": "course", "project": "vision", "reason": "course of 20 people", **window, **more}


def booked(portal: Portal, hours: float = 0, **more: Any) -> Reservation:
    return reserve(payload=terms(hours, **more), by=portal.cast.operator)


def started(portal: Portal) -> set[int]:
    loaded = load_snapshot(cluster_id=portal.cluster.pk)
    return {start.job_id for start in plan_cycle(loaded.snapshot, loaded.policy).starts}


def test_a_lead_asks_and_an_operator_approves_with_a_change(portal: Portal) -> None:
    asked = request_reservation(payload=terms(1, node_count=1, gpus_per_node=2), by=portal.cast.lead)
    assert (state_of(asked), asked.parts.count()) == ("requested", 0)

    approve_reservation(
        reservation=asked, by=portal.cast.operator, changes={"gpus_per_node": 1}, reason="one is free"
    )

    asked.refresh_from_db()
    (part,) = asked.parts.all()
    assert (state_of(asked), part.node.name, len(part.device_ids)) == ("planned", "n2", 1)
    assert (part.cpu_millis, part.memory_mib) == (part.node.cpu_millis // 4, part.node.memory_mib // 4)
    actions = AuditEvent.objects.filter(action__startswith="reservation").order_by("id")
    assert [event.action for event in actions] == ["reservation.request", "reservation.approve"]
    with pytest.raises(Conflict, match="is approved"):
        decline_reservation(reservation=asked, by=portal.cast.operator, reason="late")


def test_who_may_ask_decide_and_withdraw(portal: Portal) -> None:
    cast = portal.cast
    for who in (cast.owner, cast.stranger):
        with pytest.raises((NotAllowed, InvalidInput)):
            request_reservation(payload=terms(1, node_count=1), by=who)
    asked = request_reservation(payload=terms(1, node_count=1), by=cast.lead)
    for who in (cast.lead, cast.owner, cast.stranger):
        with pytest.raises(NotAllowed):
            approve_reservation(reservation=asked, by=who, changes={})
        with pytest.raises(NotAllowed):
            decline_reservation(reservation=asked, by=who, reason="no")
    for who in (cast.owner, cast.stranger):
        with pytest.raises((NotAllowed, NotFound)):
            cancel_reservation(reservation=asked, by=who)
        with pytest.raises((NotAllowed, NotFound)):
            change_reservation(reservation=asked, changes={"name": "mine"}, by=who)
    change_reservation(reservation=asked, changes={"seconds": 3600}, by=cast.lead)
    asked.refresh_from_db()
    assert asked.ends_at - asked.starts_at == timedelta(hours=1)
    cancel_reservation(reservation=asked, by=cast.lead)
    asked.refresh_from_db()
    assert state_of(asked) == "cancelled"


def test_a_declined_request_says_why_and_holds_nothing(portal: Portal) -> None:
    asked = request_reservation(payload=terms(1, nodes=["n2"]), by=portal.cast.lead)
    with pytest.raises(InvalidInput):
        decline_reservation(reservation=asked, by=portal.cast.operator, reason="")

    decline_reservation(reservation=asked, by=portal.cast.operator, reason="the conference needs them")

    asked.refresh_from_db()
    assert (state_of(asked), asked.decision_reason) == ("declined", "the conference needs them")
    booked(portal, 1, nodes=["n2"])  # the nodes are free


def test_a_part_keeps_others_out_and_its_jobs_inside(portal: Portal) -> None:
    course = booked(portal, nodes=["n2"], gpus_per_node=2, cpus_per_node=4, memory_per_node="8Gi")
    many = portal.submit(gpu_count=3, time_limit=600)
    few = portal.submit(gpu_count=2, time_limit=600)
    inside = portal.submit(gpu_count=2, time_limit=600, reservation="course")

    loaded = load_snapshot(cluster_id=portal.cluster.pk)
    plan = plan_cycle(loaded.snapshot, loaded.policy)

    given = {start.job_id: set(start.placements[0].device_ids) for start in plan.starts}
    assert given.keys() == {few.number, inside.number}
    assert given[inside.number] == set(course.parts.get().device_ids)
    assert not given[few.number] & given[inside.number]
    assert many.number in plan.reasons


def test_a_job_that_ends_before_a_reservation_begins_uses_all_of_it(portal: Portal) -> None:
    booked(portal, 1, nodes=["n2"], gpus_per_node=2)
    short, long = (portal.submit(gpu_count=4, time_limit=limit) for limit in (1800, 7200))

    assert started(portal) == {short.number}
    assert long.number not in started(portal)


def test_a_job_is_refused_where_its_reservation_could_not_hold_it(portal: Portal) -> None:
    course = booked(portal, nodes=["n2"], gpus_per_node=2)
    request_reservation(payload=terms(1, node_count=1) | {"name": "asked"}, by=portal.cast.lead)
    ProjectFactory(slug="speech", name="Speech")
    reserve(payload=terms(nodes=["n1"], project="speech") | {"name": "theirs"}, by=portal.cast.operator)

    def refused(**payload: Any) -> dict[str, str]:
        return problems(portal, **{"reservation": "course", "time_limit": 600, "gpu_count": 1, **payload})

    assert refused(reservation="nothing") == {"reservation": "not-found"}
    assert refused(reservation="theirs") == {"reservation": "not-found"}  # names are not for strangers
    assert refused(reservation="asked") == {"reservation": "reservation-not-approved"}
    assert refused(time_limit=9000) == {"time_limit": "reservation-too-short"}
    assert refused(time_limit=None) == {"time_limit": "required"}
    assert refused(gpu_count=3) == {"reservation": "can-never-fit"}
    cancel_reservation(reservation=course, by=portal.cast.operator)
    assert refused() == {"reservation": "reservation-over"}


def test_the_database_refuses_to_reserve_the_same_twice(portal: Portal) -> None:
    course = booked(portal, 1, nodes=["n2"], gpus_per_node=2, cpus_per_node=10)
    part = course.parts.get()
    other = Reservation.objects.create(
        cluster=portal.cluster, name="other", starts_at=course.starts_at, ends_at=course.ends_at
    )

    def add(**amounts: Any) -> None:
        with transaction.atomic():
            ReservationPart.objects.create(reservation=other, node=part.node, **amounts)

    with pytest.raises(IntegrityError, match="reserved twice"):
        add(device_ids=part.device_ids[:1])
    with pytest.raises(IntegrityError, match="more of node n2 is reserved"):
        add(cpu_millis=part.node.cpu_millis_capacity - 9_000)
    with pytest.raises(IntegrityError, match="reserved twice"), transaction.atomic():
        other.nodes.add(part.node)
    add(cpu_millis=1000)
    Reservation.objects.filter(pk=course.pk).update(cancelled_at=timezone.now())
    with transaction.atomic():
        other.parts.update(device_ids=part.device_ids)
    with pytest.raises(IntegrityError), transaction.atomic():
        Reservation.objects.filter(pk=course.pk).update(cancelled_at=None)


def test_parts_are_chosen_beside_those_of_others(portal: Portal) -> None:
    first = booked(portal, 1, node_count=1, gpus_per_node=2).parts.get()
    second = booked(portal, 1, node_count=1, gpus_per_node=2).parts.get()

    assert not set(first.device_ids) & set(second.device_ids)
    with pytest.raises(Conflict) as refused:
        booked(portal, 2, node_count=1, gpus_per_node=1)
    assert refused.value.code == "not-enough-free"
    booked(portal, 4, node_count=1, gpus_per_node=4)


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"nodes": ["n1"], "node_count": 1}, "node_count"), ({}, "nodes"),
        ({"nodes": ["n2"], "gpus_per_node": 1, "magnetic": True}, "magnetic"),
        ({"node_count": 1, "partition": "none"}, "partition"), ({"node_count": 1, "users": ["nobody"]}, "users/0"),
        ({"node_count": 1, "recurrence": "daily"}, "recurrence"), ({"node_count": 1, "flags": ["DAILY"]}, "flags"),
        ({"nodes": ["n1"], "labels": {"ssd": "yes"}}, "labels"),
    ],
)  # fmt: skip
def test_terms_that_do_nothing_are_refused(portal: Portal, more: dict[str, Any], field: str) -> None:
    with pytest.raises(MusterError) as refused:
        booked(portal, 1, **more)
    assert field in {problem.field for problem in refused.value.problems}
    assert not Reservation.objects.exists()


def test_the_cost_of_a_request_is_the_jobs_it_delays(portal: Portal) -> None:
    waiting = portal.submit(gpu_count=4, time_limit=7200, name="train")
    asked = request_reservation(payload=terms(1, nodes=["n2"]), by=portal.cast.lead)

    found = cost_of(reservation=asked, by=portal.cast.operator)

    assert [(job.number, job.name) for job in found.jobs] == [(waiting.number, "train")] or found.delayed == 0
    assert [node.name for node in found.held.nodes] == ["n2"]
    assert state_of(asked) == "requested"


def test_gpu_time_counts_what_is_unused(portal: Portal) -> None:
    course = booked(portal, nodes=["n2"], gpus_per_node=2)
    Reservation.objects.filter(pk=course.pk).update(starts_at=timezone.now() - timedelta(seconds=100))
    course.refresh_from_db()

    found = gpu_time(course)

    assert found.gpus == 2
    assert 200 <= found.reserved_seconds <= 210
    assert (found.used_seconds, found.unused_seconds) == (0, found.reserved_seconds)
    assert Device.objects.count() == 4
    assert Node.objects.count() == 2
