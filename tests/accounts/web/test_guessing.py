"""Guessing passwords through the sign-in page: slowed by name, by address and by both, and nobody is locked out."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db.models import F
from django.http import HttpResponse
from django.test import Client
from django.urls import reverse

from accounts.models import AuditEvent, SignInCount
from accounts.services import signin_attempts
from accounts.services.signin_delays import Bound
from tests.support.factories import PASSWORD, UserFactory

pytestmark = pytest.mark.django_db

HOME = "192.0.2.7"


def sign_in(
    name: str, password: str, address: str = HOME, client: Client | None = None, **headers: str
) -> HttpResponse:
    return (client or Client()).post(
        reverse("signin"), {"username": name, "password": password}, REMOTE_ADDR=address, headers=headers
    )


def guess(times: int, name: Any = "alice", address: Any = HOME, **headers: str) -> list[int]:
    """What so many wrong passwords are answered; `name` and `address` may be made of the number of the try."""
    return [
        sign_in(
            name(n) if callable(name) else name,
            "wrong",
            address(n) if callable(address) else address,
            **headers,
        ).status_code
        for n in range(times)
    ]


def time_passes(seconds: float) -> None:
    """As if it were so much later, for all that is counted."""
    ago = timedelta(seconds=seconds)
    SignInCount.objects.update(last_at=F("last_at") - ago, open_at=F("open_at") - ago)


def elsewhere(n: int) -> str:
    return f"198.51.{n // 250}.{n % 250}"


@pytest.fixture(autouse=True)
def alice(settings: Any) -> Any:
    """Waits are long enough that none ends while a busy machine works on a test."""
    settings.MUSTER_SIGN_IN_DELAY_SECONDS = 100.0
    return UserFactory(username="alice")


def test_the_numbers_are_those_of_the_guide() -> None:
    known = signin_attempts.bounds()

    assert {kind: (bound.free, bound.most_seconds) for kind, bound in known.items()} == {
        "both": (5, 900.0), "device": (5, 900.0), "address": (20, 900.0), "name": (15, 60.0),
    }  # fmt: skip
    assert [Bound(5, 1.0, 900.0).delay(n) for n in (0, 5, 6, 7, 8, 15, 16, 10**9)] == [
        0.0, 0.0, 1.0, 2.0, 4.0, 512.0, 900.0, 900.0,
    ]  # fmt: skip


def test_a_name_at_an_address_is_slowed_after_five_and_the_page_says_how_long() -> None:
    assert guess(7) == [401] * 6 + [429]
    answer = sign_in("alice", PASSWORD)
    assert (answer.status_code, 90 < int(answer["Retry-After"]) <= 100) == (429, True)
    assert f"Wait {answer['Retry-After']} seconds and try again" in answer.content.decode()
    time_passes(100)
    assert sign_in("alice", PASSWORD).status_code == 302


def test_the_wait_doubles_with_each_wrong_password_up_to_a_quarter_of_an_hour() -> None:
    waits = []
    for _ in range(12):
        assert guess(1) == [401]
        row = SignInCount.objects.get(key__startswith="both:")
        waits.append((row.open_at - row.last_at).total_seconds())
        time_passes(waits[-1])

    assert waits == [0, 0, 0, 0, 0, 100, 200, 400, 800, 900, 900, 900]


def test_tries_during_the_wait_neither_count_nor_lengthen_it() -> None:
    guess(6)
    before = list(SignInCount.objects.order_by("key").values())

    assert guess(50) == [429] * 50
    assert list(SignInCount.objects.order_by("key").values()) == before


def test_one_address_that_tries_many_names_is_slowed() -> None:
    answers = guess(40, name=lambda n: f"person{n}")

    assert answers == [401] * 21 + [429] * 19
    assert sign_in("bob", PASSWORD, elsewhere(1)).status_code == 401


def test_an_account_of_ones_own_makes_no_more_tries_free() -> None:
    UserFactory(username="mallory")
    answers = []
    for n in range(30):
        sign_in("mallory", PASSWORD)
        answers += guess(1, name=f"person{n}")

    assert answers.count(401) == 21


def test_a_name_that_many_addresses_try_is_slowed_by_a_minute_at_most() -> None:
    answers = guess(40, address=elsewhere)
    assert answers == [401] * 16 + [429] * 24
    for n in range(12):
        time_passes(60)
        assert guess(1, address=f"203.0.113.{n}") == [401]

    assert int(sign_in("alice", PASSWORD)["Retry-After"]) <= 60
    time_passes(60)
    assert sign_in("alice", PASSWORD).status_code == 302


def test_who_is_attacked_signs_in_at_once_from_an_address_they_have_used() -> None:
    assert sign_in("alice", PASSWORD).status_code == 302
    assert 429 in guess(40, address=elsewhere)

    assert sign_in("alice", PASSWORD).status_code == 302
    assert sign_in("alice", PASSWORD, "192.0.2.8").status_code == 429


def test_who_is_attacked_from_their_own_address_signs_in_with_the_browser_they_have_used() -> None:
    browser = Client()
    assert sign_in("alice", PASSWORD, client=browser).status_code == 302
    browser.post(reverse("signout"))
    assert guess(40)[-1] == 429

    assert sign_in("alice", PASSWORD).status_code == 429
    assert sign_in("alice", PASSWORD, client=browser).status_code == 302


def test_a_known_browser_is_slowed_for_its_own_wrong_passwords_and_helps_with_no_other_name() -> None:
    UserFactory(username="bob")
    browser = Client()
    sign_in("alice", PASSWORD, client=browser)
    kept = browser.cookies["muster_device"].value
    assert browser.cookies["muster_device"]["httponly"]
    assert "alice" not in kept

    def with_it(name: str) -> int:
        client = Client()
        client.cookies["muster_device"] = kept
        return sign_in(name, "wrong", client=client).status_code

    assert [with_it("alice") for _ in range(8)] == [401] * 6 + [429] * 2
    guess(6, name="bob")
    assert with_it("bob") == 429


@pytest.mark.parametrize("kept", ["", "x", "WzEsMV0:1abcde:forged", "\u00e9", "a" * 4000])
def test_a_forged_browser_is_no_known_one(kept: str) -> None:
    client = Client()
    client.cookies["muster_device"] = kept
    guess(6)

    assert sign_in("alice", PASSWORD, client=client).status_code == 429


def test_what_was_long_ago_is_forgotten() -> None:
    guess(12)
    time_passes(3601)

    assert guess(6) == [401] * 6


@pytest.mark.parametrize("peer", ["127.0.0.1", "::1", "203.0.113.9"])
def test_a_forged_header_gives_no_try_a_new_address(peer: str) -> None:
    answers = [
        sign_in(f"person{n}", "wrong", peer, **{"X-Forwarded-For": elsewhere(n)}).status_code
        for n in range(30)
    ]

    assert answers == [401] * 21 + [429] * 9
    assert set(AuditEvent.objects.values_list("address", flat=True)) == {peer}


def test_behind_a_trusted_proxy_each_caller_is_counted_alone(settings: Any) -> None:
    settings.MUSTER_TRUSTED_PROXIES = ["10.1.0.0/16"]

    def through(n: int, forwarded: str) -> int:
        return sign_in(f"person{n}", "wrong", "10.1.0.5", **{"X-Forwarded-For": forwarded}).status_code

    assert {through(n, elsewhere(n)) for n in range(30)} == {401}
    assert [through(n, f"{elsewhere(n)}, 203.0.113.9") for n in range(30)].count(429) == 9


def test_one_household_of_ipv6_is_one_address() -> None:
    assert guess(30, name=lambda n: f"person{n}", address=lambda n: f"2001:db8:1:2::{n:x}").count(429) == 9


def test_small_and_capital_letters_are_one_name() -> None:
    assert guess(8, name=lambda n: "alice" if n % 2 else "ALICE")[-1] == 429


def test_names_are_kept_as_digests_only() -> None:
    guess(1, name="hunter2-my-password")

    assert not SignInCount.objects.filter(key__contains="hunter2").exists()


def test_without_redis_all_is_counted_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    from django.core.cache import cache

    def away(*_: Any, **__: Any) -> Any:
        raise AssertionError("delays ask the cache")

    monkeypatch.setattr(cache, "get", away)
    monkeypatch.setattr(cache, "incr", away)
    monkeypatch.setattr(cache, "add", lambda *_, **__: False)

    assert guess(7)[-1] == 429


def test_the_old_password_on_the_page_of_settings_is_no_way_around(client: Client, alice: Any) -> None:
    client.force_login(alice, backend="accounts.backends.PasswordBackend")
    new = {"new_password1": "a long new password 1", "new_password2": "a long new password 1"}
    for _ in range(6):
        client.post(reverse("password"), {"old_password": "wrong", **new})

    page = client.post(reverse("password"), {"old_password": PASSWORD, **new})

    assert (page.status_code, "Too many failed attempts" in page.content.decode()) == (422, True)
    alice.refresh_from_db()
    assert alice.check_password(PASSWORD)


def test_the_delay_is_the_same_for_names_that_nobody_has() -> None:
    assert guess(8, name="nobody-at-all") == guess(8, address="192.0.2.99")


def test_a_try_counts_before_its_password_is_looked_at() -> None:
    let_in = [signin_attempts.begin(username="alice", address=HOME) for _ in range(20)]

    assert sum(isinstance(one, signin_attempts.Attempt) for one in let_in) == 6
