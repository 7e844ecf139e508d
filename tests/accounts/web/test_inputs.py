"""What a form was given is taken whole or refused: half of it would mean something else."""

from __future__ import annotations

import pytest
from django.test import Client
from django.urls import reverse

from accounts.models import ApiToken, Membership
from tests.support.factories import Cast, ProjectFactory, the_cast

pytestmark = pytest.mark.django_db


@pytest.fixture
def cast() -> Cast:
    return the_cast()


@pytest.fixture
def lead(client: Client, cast: Cast) -> Client:
    client.force_login(cast.lead, backend="accounts.backends.PasswordBackend")
    return client


@pytest.mark.parametrize("until", ["31.12.2030", "2030-02-31", "tomorrow", "9999-12-32"])
def test_a_membership_whose_end_cannot_be_read_is_not_made_without_end(
    lead: Client, cast: Cast, until: str
) -> None:
    answer = lead.post(
        reverse("member-add", args=["vision"]),
        {"username": cast.stranger.username, "role": "member", "until": until},
        follow=True,
    )

    assert not Membership.objects.filter(user=cast.stranger, project=cast.project).exists()
    assert "Enter a date" in answer.content.decode()


def test_a_token_for_a_project_that_one_cannot_see_is_not_made_for_all(lead: Client, cast: Cast) -> None:
    ProjectFactory(slug="secret")
    form = {"name": "nightly", "scopes": ["jobs:read"], "days": "30"}

    for project in ("secret", "nowhere", "vis\0ion"):
        answer = lead.post(reverse("tokens"), form | {"project": project})
        assert answer.status_code == 422
        assert 'value="nightly"' in answer.content.decode()
    assert not ApiToken.objects.filter(name="nightly").exists()


@pytest.mark.parametrize("project", ["999999", "x", "٣"])
def test_a_default_project_that_is_none_is_not_taken_for_no_default(
    lead: Client, cast: Cast, project: str
) -> None:
    cast.lead.default_project = cast.project
    cast.lead.save()

    answer = lead.post(reverse("settings"), {"theme": "dark", "time_zone": "UTC", "default_project": project})

    assert answer.status_code == 422
    cast.lead.refresh_from_db()
    assert cast.lead.default_project == cast.project
