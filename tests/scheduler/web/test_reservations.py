"""The pages of reservations, for a lead, a member, a stranger and an operator."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from accounts.models import User
from scheduler.models import Reservation
from scheduler.services.reservations.use import state_of
from tests.scheduler.portal import Portal, a_portal

pytestmark = pytest.mark.django_db


@pytest.fixture
def portal(db: None) -> Portal:
    return a_portal()


def signed_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def terms() -> dict[str, str]:
    starts_at = timezone.localtime() + timedelta(hours=1)
    return {
        "name": "course", "project": "vision", "node_count": "1", "gpus_per_node": "2", "hours": "2",
        "starts_at": starts_at.strftime("%Y-%m-%dT%H:%M"), "reason": "course <b>of 20</b>",
    }  # fmt: skip


def test_a_lead_asks_and_an_operator_sees_the_cost_and_approves(portal: Portal) -> None:
    lead, operator = signed_in(portal.cast.lead), signed_in(portal.cast.operator)
    assert lead.get(reverse("reservation-ask")).status_code == 200
    wrong = lead.post(reverse("reservation-ask"), terms() | {"node_count": "1", "nodes": "n1"})
    assert (wrong.status_code, "one of the two" in wrong.content.decode()) == (422, True)

    lead.post(reverse("reservation-ask"), terms())

    row = Reservation.objects.get()
    page = reverse("reservation", args=[row.uuid])
    assert state_of(row) == "requested"
    seen = operator.get(page).content.decode()
    assert "No waiting job would start later" in seen
    assert "course &lt;b&gt;of 20&lt;/b&gt;" in seen
    assert "Requests to decide" in operator.get(reverse("reservations")).content.decode()
    assert "Decide" not in lead.get(page).content.decode()
    assert lead.post(reverse("reservation-act", args=[row.uuid, "approve"])).status_code == 403
    operator.post(reverse("reservation-act", args=[row.uuid, "approve"]), {"reason": "fine"})
    row.refresh_from_db()
    assert state_of(row) == "planned"
    assert "GPU 2, 3" in lead.get(page).content.decode()
    assert "2 GPUs on n2" in lead.get(reverse("reservations")).content.decode()
    assert "course" in operator.get(reverse("node", args=[portal.n2.pk])).content.decode()


def test_who_sees_and_asks(portal: Portal) -> None:
    signed_in(portal.cast.lead).post(reverse("reservation-ask"), terms())
    row = Reservation.objects.get()
    page, act = reverse("reservation", args=[row.uuid]), reverse("reservation-act", args=[row.uuid, "cancel"])

    member, stranger = signed_in(portal.cast.owner), signed_in(portal.cast.stranger)
    assert (member.get(page).status_code, stranger.get(page).status_code) == (200, 404)
    assert (member.post(act).status_code, stranger.post(act).status_code) == (403, 404)
    assert "course" not in stranger.get(reverse("reservations")).content.decode()
    assert member.get(reverse("reservation-ask")).status_code == 403
    row.refresh_from_db()
    assert state_of(row) == "requested"
