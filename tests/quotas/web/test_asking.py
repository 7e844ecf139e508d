"""Asking for more: without a project one chooses, and what was typed stays where it was refused."""

from __future__ import annotations

import pytest
from django.test import Client
from django.urls import reverse

from accounts.models import ProjectRole
from quotas.models import Grant
from tests.support.factories import Cast, MembershipFactory, ProjectFactory, QuotaFactory, the_cast

pytestmark = pytest.mark.django_db

ASK = reverse("grant-ask")


@pytest.fixture
def cast() -> Cast:
    cast = the_cast()
    QuotaFactory(project=cast.project, resource="gpu_millis", hard=8000)
    return cast


def enter(client: Client, person: object) -> Client:
    client.force_login(person, backend="accounts.backends.PasswordBackend")
    return client


def form(**changes: str) -> dict[str, str]:
    return {
        "project": "vision", "resource": "gpu_millis", "amount": "2", "reason": "the long run of spring",
    } | changes  # fmt: skip


def test_without_a_project_a_lead_of_several_chooses_among_them(client: Client, cast: Cast) -> None:
    mine = ProjectFactory(slug="speech", name="Speech")
    MembershipFactory(user=cast.lead, project=mine, role=ProjectRole.LEAD)
    MembershipFactory(
        user=cast.lead, project=ProjectFactory(slug="robots", name="Robots"), role=ProjectRole.MEMBER
    )
    MembershipFactory(
        user=cast.lead,
        project=ProjectFactory(slug="closed", name="Closed one", active=False),
        role=ProjectRole.LEAD,
    )
    ProjectFactory(slug="secret", name="Secret")

    answer = enter(client, cast.lead).get(ASK)
    page = answer.content.decode()

    assert answer.status_code == 200
    assert f'href="{ASK}?project=speech"' in page
    assert f'href="{ASK}?project=vision"' in page
    assert not any(name in page for name in ("Robots", "Closed one", "Secret"))


def test_without_a_project_the_only_one_is_taken(client: Client, cast: Cast) -> None:
    page = enter(client, cast.lead).get(ASK).content.decode()

    assert 'name="amount"' in page
    assert 'value="vision"' in page


@pytest.mark.parametrize("who", ["owner", "viewer", "stranger", "auditor"])
def test_who_leads_nothing_is_told_who_asks(client: Client, cast: Cast, who: str) -> None:
    answer = enter(client, getattr(cast, who)).get(ASK)
    page = answer.content.decode()

    assert answer.status_code == 200
    assert "Only project leads can request quota" in page
    assert 'name="amount"' not in page


def test_a_request_that_is_there_already_leaves_what_was_typed(client: Client, cast: Cast) -> None:
    enter(client, cast.lead)
    assert client.post(ASK, form()).status_code == 302

    again = client.post(ASK, form(amount="3"))
    page = again.content.decode()

    assert again.status_code == 409
    assert "already requests more" in page
    assert "the long run of spring" in page
    assert 'value="3"' in page
    assert Grant.objects.count() == 1


@pytest.mark.parametrize("day", ["0001-01-01", "9999-12-31", "2026-02-30", "10000-01-01", "1.1.2030"])
@pytest.mark.parametrize("field", ["starts", "ends"])
def test_no_day_is_too_odd(client: Client, cast: Cast, field: str, day: str) -> None:
    assert enter(client, cast.lead).post(ASK, form(**{field: day})).status_code in (302, 422)


def test_a_decision_that_is_refused_leaves_what_was_typed(client: Client, cast: Cast) -> None:
    enter(client, cast.lead).post(ASK, form())
    grant = Grant.objects.get()
    decide = {
        "granted": "99",
        "ends": "2031-05-04",
        "reason": "as agreed on Monday",
        "generation": grant.generation,
    }

    answer = enter(client, cast.operator).post(reverse("grant-decide", args=[grant.pk, "approve"]), decide)
    page = answer.content.decode()

    assert answer.status_code == 422
    assert 'value="99"' in page
    assert 'value="2031-05-04"' in page
    assert "as agreed on Monday" in page


def test_a_request_is_withdrawn_only_as_it_was_seen(client: Client, cast: Cast) -> None:
    """Somebody approved it meanwhile: to withdraw would now give back what is in force."""
    enter(client, cast.lead).post(ASK, form())
    grant = Grant.objects.get()
    approved = {"granted": "2", "reason": "fine", "generation": str(grant.generation)}
    enter(client, cast.operator).post(reverse("grant-decide", args=[grant.pk, "approve"]), approved)

    answer = enter(client, cast.lead).post(
        reverse("grant-decide", args=[grant.pk, "withdraw"]), {"generation": str(grant.generation)}
    )

    assert answer.status_code == 412
    grant.refresh_from_db()
    assert grant.state == "active"


def test_the_notice_of_a_request_on_home_leads_to_the_request(client: Client, cast: Cast) -> None:
    enter(client, cast.lead).post(ASK, form())

    home = enter(client, cast.operator).get("/").content.decode()

    assert f'<a href="{reverse("grant", args=[Grant.objects.get().pk])}">Quota request</a>' in home
