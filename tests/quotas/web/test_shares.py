"""The page of shares, and its form."""

from __future__ import annotations

import pytest
from django.test import Client
from django.urls import reverse

from accounts.models import AuditEvent, Membership
from quotas.selectors.fair_share_report import ordinal, span
from tests.quotas.sharing import a_shared_site

pytestmark = pytest.mark.django_db


@pytest.fixture
def site():
    return a_shared_site()


def sign_in(client: Client, user) -> Client:
    client.force_login(user, backend="accounts.backends.PasswordBackend")
    return client


@pytest.mark.parametrize("person", ["owner", "lead", "viewer", "stranger", "operator", "auditor", "admin"])
def test_everybody_gets_the_page_and_members_no_names_of_others(client: Client, site, person: str) -> None:
    response = sign_in(client, getattr(site.cast, person)).get(reverse("shares"))

    assert response.status_code == 200
    assert ("Secret" in response.content.decode()) is (person in ("operator", "auditor", "admin"))


def test_the_figure_has_a_table_that_says_the_same(client: Client, site) -> None:
    page = sign_in(client, site.cast.owner).get(reverse("shares")).content.decode()

    assert 'aria-label="Vision: 33 % of the share, 75 % of the usage"' in page
    assert "Used 2.2 times the share over the last 7 days" in page
    assert "about 6th of 6" in page


def test_a_preview_says_that_it_is_one(client: Client, site) -> None:
    page = sign_in(client, site.cast.owner).get(reverse("shares"), {"half_life": "1"}).content.decode()

    assert "Preview" in page
    assert "with a half-life of 1 hour" in page


def test_an_operator_changes_a_share_and_says_why(client: Client, site) -> None:
    url = reverse("share-edit", args=["project", site.secret.pk])
    form = {"share_weight": "7", "share_soft_percent": "", "share_hard_percent": "40", "seen_share_weight": "2",
            "seen_share_soft_percent": "", "seen_share_hard_percent": "", "reason": "their grant began"}  # fmt: skip

    assert sign_in(client, site.cast.operator).get(url).status_code == 200
    assert client.post(url, form | {"reason": ""}).status_code == 422
    response = client.post(url, form)
    site.secret.refresh_from_db()
    assert response.status_code == 302
    assert (site.secret.share_weight, site.secret.share_hard_percent) == (7, 40)
    assert AuditEvent.objects.get(action="share.set").reason == "their grant began"

    late = client.post(url, form | {"share_weight": "9"})
    site.secret.refresh_from_db()
    assert late.status_code == 422
    assert "The share of Secret" in late.content.decode()
    assert site.secret.share_weight == 7


def test_a_lead_weighs_their_own_people_and_nobody_else_may(client: Client, site) -> None:
    member = Membership.objects.get(project=site.cast.project, user=site.cast.colleague)
    url = reverse("share-edit", args=["member", member.pk])

    assert sign_in(client, site.cast.colleague).get(url).status_code == 403
    assert sign_in(client, site.cast.stranger).get(url).status_code == 404
    response = sign_in(client, site.cast.lead).post(
        url, {"share_weight": "3", "seen_share_weight": "1", "reason": "runs the nightly work"}
    )

    member.refresh_from_db()
    assert (response.status_code, member.share_weight) == (302, 3)


def test_words_for_numbers() -> None:
    assert [ordinal(number) for number in (1, 2, 3, 4, 11, 12, 13, 21, 112, 1041)] == [
        "1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "112th", "1,041st"
    ]  # fmt: skip
    assert [span(seconds) for seconds in (7 * 86_400, 12 * 3600, 86_400, 90 * 60, 36 * 3600)] == [
        "7 days", "12 hours", "1 day", "90 minutes", "36 hours"
    ]  # fmt: skip
