"""No value that somebody types or puts into an address is an error of ours."""

from __future__ import annotations

import re

import pytest
from django.test import Client
from django.urls import reverse

from scheduler.models import Job
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


def test_the_same_page_sent_twice_is_one_job_and_an_edited_one_another(owner: Client) -> None:
    page = re.search(r'name="page" value="([^"]+)"', owner.get(reverse("submit")).content.decode())
    assert page is not None
    form = {"what": "true", "project": "vision", "page": page[1]}

    first, again = owner.post(reverse("submit"), form), owner.post(reverse("submit"), form, follow=True)
    edited = owner.post(reverse("submit"), form | {"what": "false"})
    afresh = owner.post(reverse("submit"), form | {"page": "another"})

    assert Job.objects.count() == 3
    assert again.redirect_chain == [(first["Location"], 302)]
    assert "This form was already submitted" in again.content.decode()
    assert len({first["Location"], edited["Location"], afresh["Location"]}) == 3


def test_a_page_that_was_refused_is_sent_again_with_its_fields_named(owner: Client) -> None:
    form = {"what": "true", "project": "vision", "page": "p", "queue": "nowhere", "gpu_count": "x", "pack": "moon",
            "restart_policy": "perhaps", "depends_on": "0", "numa": "two"}  # fmt: skip

    refused = owner.post(reverse("submit"), form)
    page = refused.content.decode()

    assert refused.status_code == 422
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    wrong = re.findall(r'name="(\w+)"[^>]*aria-invalid="true" aria-describedby="([^"]+)"', page)
    assert {name for name, _ in wrong} >= {"queue", "gpu_count", "pack", "restart_policy", "numa"}
    assert {described for _, described in wrong} <= set(ids)
    assert (
        owner.post(reverse("submit"), {"what": "true", "project": "vision", "page": "p"}).status_code == 302
    )


def test_who_asks_for_the_head_of_a_page_gets_it(owner: Client) -> None:
    """As monitors and link checkers do."""
    for page in ("jobs", "settings"):
        answer = owner.head(reverse(page))
        assert (answer.status_code, answer.content) == (200, b""), page
    assert Client().head(reverse("signin")).status_code == 200
    assert Client().head(reverse("jobs"))["Location"].endswith(f"?next={reverse('jobs')}")


ODD: list[dict[str, str]] = [
    {"tasks": LONG, "gpu_count": "1", "time_limit": "1h"},
    {"gpu_share": "inf", "time_limit": "1h"},
    {"begin_at": "0001-01-01T00:00+14:00"},
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
        "usage": ("since",), "ledger": ("user", "until", "page"), "jobs": ("q", "before"), "shares": ("half_life",),
        "submit": ("copy",),
    }  # fmt: skip
    for page, words in names.items():
        for word in words:
            for odd in ("\0", LONG) if word != "since" else ("0001-01-01",):
                assert owner.get(reverse(page), {word: odd}).status_code < 500, (page, word)
