"""Signing in: who may, from where, how often, and that each try is written down."""

from __future__ import annotations

import pytest

from accounts.models import AuditEvent, AuditOutcome
from accounts.services.signin import SignInRefused, sign_in, sign_out
from infra import request_context
from tests.support.factories import PASSWORD, UserFactory

pytestmark = pytest.mark.django_db


@pytest.fixture
def here() -> object:
    with request_context.acting(address="127.0.0.1", request_id="r-1") as known:
        yield known


def test_the_right_password_signs_in_and_is_audited(here: object) -> None:
    alice = UserFactory(username="alice")

    assert sign_in(username=" alice ", password=PASSWORD) == alice

    event = AuditEvent.objects.get()
    assert (event.action, event.outcome, event.actor) == ("session.sign_in", AuditOutcome.DONE, alice)
    assert (event.address, event.request_id) == ("127.0.0.1", "r-1")


def test_a_wrong_password_and_an_unknown_name_look_alike(here: object) -> None:
    UserFactory(username="alice")

    messages = set()
    for username in ("alice", "hunter2"):
        with pytest.raises(SignInRefused) as refused:
            sign_in(username=username, password="wrong")
        messages.add((str(refused.value), refused.value.code, refused.value.status))

    assert len(messages) == 1
    labels = list(AuditEvent.objects.order_by("id").values_list("outcome", "object_label", "reason"))
    # The unknown name may be a password in the wrong field: it is not kept.
    assert labels == [
        ("denied", "alice", "sign-in-failed"),
        ("denied", "a name that nobody has", "sign-in-failed"),
    ]


def test_a_disabled_account_does_not_sign_in(here: object) -> None:
    UserFactory(username="alice", is_active=False)

    with pytest.raises(SignInRefused) as refused:
        sign_in(username="alice", password=PASSWORD)

    assert refused.value.code == "sign-in-failed"


@pytest.mark.parametrize(
    ("username", "password"), [("al\x00ice", PASSWORD), ("alice", "\x00"), ("", ""), ("🦆", "🦆")]
)
def test_odd_input_is_refused_and_nothing_breaks(here: object, username: str, password: str) -> None:
    UserFactory(username="alice")

    with pytest.raises(SignInRefused):
        sign_in(username=username, password=password)


@pytest.mark.parametrize("address", ["127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1"])
def test_a_demo_account_opens_from_this_machine(address: str) -> None:
    alice = UserFactory(username="alice", is_demo=True)

    with request_context.acting(address=address):
        assert sign_in(username="alice", password=PASSWORD) == alice


@pytest.mark.parametrize(
    "known",
    [
        {"address": "10.0.0.5"},
        {"address": "::ffff:10.0.0.5"},
        {"address": "127.0.0.1.example.org"},
        {"address": ""},
        {"address": "127.0.0.1", "proxied": True},
    ],
    ids=lambda known: ",".join(f"{k}={v}" for k, v in known.items()),
)
def test_a_demo_account_opens_from_nowhere_else(known: dict) -> None:
    UserFactory(username="alice", is_demo=True)

    with request_context.acting(**known), pytest.raises(SignInRefused) as refused:
        sign_in(username="alice", password=PASSWORD)

    assert (refused.value.code, refused.value.status) == ("demo-elsewhere", 403)
    assert AuditEvent.objects.get().reason == "demo-elsewhere"


def test_a_demo_account_never_opens_where_settings_say_no(here: object, settings) -> None:
    settings.DEMO_LOGINS_ALLOWED = False
    UserFactory(username="alice", is_demo=True)

    with pytest.raises(SignInRefused) as refused:
        sign_in(username="alice", password=PASSWORD)

    assert refused.value.code == "demo-elsewhere"


def test_failures_slow_the_name_at_that_address_and_only_there(here: object) -> None:
    alice = UserFactory(username="alice")
    for _ in range(6):
        with pytest.raises(SignInRefused):
            sign_in(username="alice", password="wrong")

    with pytest.raises(SignInRefused) as refused:
        sign_in(username="alice", password=PASSWORD)
    assert (refused.value.code, refused.value.status) == ("locked-out", 429)
    assert "Wait" in refused.value.way_out

    with request_context.acting(address="10.0.0.7"):
        assert sign_in(username="alice", password=PASSWORD) == alice


def test_those_who_keep_trying_while_they_have_to_wait_fill_no_trail(here: object) -> None:
    UserFactory(username="alice")
    for _ in range(30):
        with pytest.raises(SignInRefused):
            sign_in(username="alice", password="wrong")

    reasons = list(AuditEvent.objects.order_by("id").values_list("reason", flat=True))
    assert reasons.count("locked-out") == 1
    assert len(reasons) <= 7


def test_signing_out_is_audited() -> None:
    alice = UserFactory()

    sign_out(user=alice)

    assert AuditEvent.objects.get().action == "session.sign_out"
