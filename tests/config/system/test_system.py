"""The page and the API about the system: what fails outside, for operators alone; and the way to try again."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from accounts.models import AuditEvent
from config import metrics
from infra.circuits.shared import SharedCircuit
from infra.models import Circuit, System
from notifications.models import Notification
from notifications.services.findings import look
from tests.support.factories import Cast, bearer, the_cast

pytestmark = pytest.mark.django_db


@pytest.fixture
def cast() -> Cast:
    return the_cast()


@pytest.fixture
def storage_away(settings: Any) -> str:
    settings.MUSTER_STORAGE = "s3://artefacts/muster?endpoint=https://s3.example.org"
    for _ in range(3):
        SharedCircuit(System.STORAGE, "artefacts", "bucket artefacts").failed("Connect timeout <b>")
    return "storage:artefacts"


def signed_in(person: Any) -> Client:
    client = Client()
    client.force_login(person)
    return client


def test_the_page_shows_operators_what_is_not_called_why_and_until_when(
    cast: Cast, storage_away: str
) -> None:
    page = signed_in(cast.operator).get("/system/").content.decode()

    assert "not called" in page
    assert "Connect timeout &lt;b&gt;" in page
    assert "3 failures in a row" in page


@pytest.mark.parametrize("who", ["owner", "stranger", "auditor"])
def test_nobody_else_sees_or_changes_it(cast: Cast, storage_away: str, who: str) -> None:
    person = getattr(cast, who)
    client = signed_in(person)

    assert client.get("/system/").status_code == 403
    assert client.post("/system/try/", {"name": storage_away}).status_code == 403
    assert client.post("/system/support-bundle/").status_code == 403
    assert client.get("/api/v1/system", headers=bearer(person, "nodes:read")).status_code == 403
    assert Circuit.objects.exists()


def test_the_api_lists_configured_systems_whether_they_failed_or_not(
    cast: Cast, storage_away: str, settings: Any
) -> None:
    settings.MUSTER_ALERT_MAIL_FROM = "muster@example.org"

    answer = Client().get("/api/v1/system", headers=bearer(cast.operator, "nodes:read")).json()

    states = {one["name"]: (one["state"], one["failures"]) for one in answer["outside"]}
    assert states == {"storage:artefacts": ("open", 3), "mail": ("closed", 0)}
    outside = next(check for check in answer["checks"] if check["name"] == "outside")
    assert not outside["ok"]
    assert not outside["needed"]
    assert "bucket artefacts failed 3 times" in outside["text"]


def test_readyz_is_degraded_and_the_metric_counts_it(cast: Cast, storage_away: str) -> None:
    answer = Client().get("/readyz")

    assert answer.status_code == 200
    assert "outside" in answer.json()["degraded"]
    (gauge,) = metrics.circuits()
    assert {one.labels["system"]: one.value for one in gauge.samples} == {
        "storage": 1, "mail": 0, "quota": 0, "webhook": 0, "inventory": 0
    }  # fmt: skip


def test_after_the_pause_it_says_that_the_next_call_tries(cast: Cast, storage_away: str) -> None:
    Circuit.objects.update(open_until="2026-01-01T00:00:00Z")

    page = signed_in(cast.operator).get("/system/").content.decode()

    assert "tried again with the next call" in page
    assert "tried with the next call" in page


def test_a_receiver_of_webhooks_that_is_away_is_no_trouble_of_the_site(cast: Cast) -> None:
    for _ in range(3):
        SharedCircuit(System.WEBHOOK, "7", "hooks.example.org").failed("No answer within 15 s.")

    assert "outside" not in Client().get("/readyz").json()["degraded"]
    assert "hooks.example.org" in signed_in(cast.operator).get("/system/").content.decode()


def test_an_operator_lets_the_next_call_go_out_and_the_trail_says_so(cast: Cast, storage_away: str) -> None:
    client = signed_in(cast.operator)

    client.post("/system/try/", {"name": storage_away})

    assert not Circuit.objects.exists()
    row = AuditEvent.objects.get(action="circuit.close")
    assert (row.actor, row.before["failures"]) == (cast.operator, 3)
    assert client.post("/system/try/", {"name": storage_away}).status_code == 404


def test_operators_are_notified_once_when_it_lasts(cast: Cast, storage_away: str) -> None:
    look()
    assert not Notification.objects.exists(), "it may be back in a moment"

    Circuit.objects.update(opened_at="2026-01-01T00:00:00Z")
    look()
    look()

    found = Notification.objects.filter(kind="system.unreachable")
    assert {row.user for row in found} == {cast.operator, cast.admin}
    assert "Connect timeout" in found[0].text
