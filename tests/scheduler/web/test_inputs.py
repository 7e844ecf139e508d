"""No value that somebody types or puts into an address is an error of ours."""

from __future__ import annotations

import pytest
from django.test import Client
from django.urls import reverse

from tests.scheduler.portal import Portal, a_portal

pytestmark = pytest.mark.django_db

LONG = "9" * 400


@pytest.fixture
def portal() -> Portal:
    return a_portal()


@pytest.fixture
def owner(client: Client, portal: Portal) -> Client:
    client.force_login(portal.cast.owner, backend="accounts.backends.PasswordBackend")
    return client


ODD: list[dict[str, str]] = [
    {"tasks": LONG, "gpu_count": "1", "time_limit": "1h"},
    {"gpu_share": "nan", "tasks": LONG, "time_limit": "1h"},
    {"gpu_share": "inf", "time_limit": "1h"},
    {"memory": f"{LONG}Gi"},
    {"time_limit": f"{LONG}d"},
    {"begin_at": "0001-01-01T00:00+14:00"},
    {"begin_at": "9999-12-31T23:59-14:00"},
    {"array": f"0-{LONG}"},
    {"depends_on": LONG, "depends_need": LONG},
    {"name": "a\0b"},
]


def test_no_field_of_the_form_breaks_its_preview_or_the_submission(owner: Client) -> None:
    for odd in ODD:
        form = {"what": "true", "project": "vision"} | odd
        assert owner.post(reverse("submit-preview"), form).status_code in (200, 422), odd
        assert owner.post(reverse("submit"), form).status_code in (302, 409, 422), odd


def test_no_parameter_of_a_page_breaks_it(owner: Client) -> None:
    names = {
        "usage": ("user", "since"),
        "ledger": ("project", "organization", "user", "until", "of_model", "gpu_model", "job", "page"),
        "efficiency": ("user", "since", "sort"),
        "jobs": ("state", "queue", "project", "q", "before"),
        "shares": ("half_life", "window"),
        "submit": ("copy",),
    }
    for page, words in names.items():
        for word in words:
            for odd in ("\0", LONG, "0001-01-01"):
                assert owner.get(reverse(page), {word: odd}).status_code < 500, (page, word)
