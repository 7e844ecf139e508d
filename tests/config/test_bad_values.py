"""Whatever stands in an address, a page answers: a value that nothing can be called is no error of ours."""

from __future__ import annotations

import pytest
from django.contrib import admin
from django.test import Client
from django.urls import reverse

from accounts.models import AuditEvent, User
from tests.support.factories import PASSWORD, Cast, the_cast

pytestmark = pytest.mark.django_db

LONG = "9" * 5000
#: As they stand in a path: NUL, half a surrogate pair, below the first number, another script's 3, too long.
IN_PATHS = ("a%00b", "%ED%A0%80", "-1", "%D9%A3", LONG)
#: Lists of the admin with the filters and searches that their values reach the database by.
LISTS = {
    "accounts_membership": ("role__exact",),
    "quotas_pricerow": ("gpu_model",),
    "scheduler_cycle": ("started_at__gte",),
    "scheduler_job": ("submitted_via", "public_state", "queue__id__exact"),
}


@pytest.fixture
def cast() -> Cast:
    return the_cast()


def enter(person: User) -> Client:
    client = Client()
    client.force_login(person, backend="accounts.backends.PasswordBackend")
    return client


def test_no_row_of_the_admin_can_be_called_so_that_it_breaks(cast: Cast) -> None:
    client = enter(cast.admin)
    for model in admin.site._registry:
        opts = model._meta
        for odd in IN_PATHS if opts.label == "quotas.ProviderState" else IN_PATHS[:1]:
            answer = client.get(f"/admin/{opts.app_label}/{opts.model_name}/{odd}/change/")
            assert answer.status_code < 500, (opts.label, odd)


def test_no_filter_or_search_of_the_admin_breaks(cast: Cast) -> None:
    client = enter(cast.operator)
    for name, words in LISTS.items():
        for word in words:
            for odd in ("\0", LONG):
                answer = client.get(reverse(f"admin:{name}_changelist"), {word: odd})
                assert answer.status_code < 500, (name, word)


def test_other_addresses_of_the_admin_do_not_break(cast: Cast) -> None:
    client = enter(cast.admin)
    for odd in IN_PATHS:
        for url in (
            f"/admin/scheduler/cycle/{odd}/replay/",
            f"/admin/infra/circuit/{odd}/history/",
            f"/admin/quotas/providerstate/1/do/{odd}/",
            f"/admin/scheduler/node/do/drain/?ids={odd}",
            f"/admin/scheduler/node/do/{odd}/?ids=1",
        ):
            assert client.get(url).status_code < 500, url


@pytest.mark.parametrize(
    ("app", "model", "field"),
    [
        ("quotas", "quota", "project"), ("quotas", "quota", "organization"), ("scheduler", "queue", "cluster"),
        ("scheduler", "queue", "partitions"),
    ],
)  # fmt: skip
def test_what_is_typed_into_a_choice_finds_rows_in_one_order(
    cast: Cast, app: str, model: str, field: str
) -> None:
    """Page by page: without an order, rows would be left out or come twice (the paginator warns of it)."""
    words = {"app_label": app, "model_name": model, "field_name": field}
    url = reverse("admin:autocomplete")

    assert enter(cast.operator).get(url, words | {"term": "v"}).status_code == 200
    assert enter(cast.operator).get(url, words | {"term": "a\0"}).status_code < 500


def test_the_page_says_what_is_wrong_with_the_value(cast: Cast) -> None:
    answer = enter(cast.operator).get("/admin/infra/circuit/a%00b/change/")

    assert answer.status_code == 422
    assert "contains an invalid value" in answer.content.decode()


def test_no_row_of_any_table_is_found_by_its_number(cast: Cast) -> None:
    for number in ("1", "9999", "%00"):
        assert enter(cast.admin).get(f"/admin/r/{number}/{cast.owner.pk}/").status_code == 404


@pytest.mark.parametrize(
    "target", ["NaN", "metrics", "signout", "\0", "a.b", "http:evil", "/\\evil.example", LONG]
)
def test_nobody_is_led_to_what_is_no_path_of_this_site(cast: Cast, target: str) -> None:
    signed_in = enter(cast.operator)
    form = {"username": "operator", "password": PASSWORD, "next": target}

    assert signed_in.get(reverse("signin"), {"next": target})["Location"] == reverse("home")
    assert Client().post(reverse("signin"), form)["Location"] == reverse("home")
    assert signed_in.get("/admin/login/", {"next": target})["Location"] == "/admin/"


def test_a_password_is_changed_at_one_door_that_writes_it_down(cast: Cast) -> None:
    form = {
        "old_password": PASSWORD,
        "new_password1": "a-whole-new-one-77",
        "new_password2": "a-whole-new-one-77",
    }

    answer = enter(cast.operator).post("/admin/password_change/", form)

    assert (answer.status_code, answer["Location"]) == (302, reverse("settings"))
    assert User.objects.get(pk=cast.operator.pk).check_password(PASSWORD)
    assert not AuditEvent.objects.filter(action="user.password").exists()
