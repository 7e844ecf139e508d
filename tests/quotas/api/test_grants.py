"""Quota requests over HTTP: who may ask, see and decide."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from quotas.models import Grant, Quota
from quotas.services.budgets import make_budget
from quotas.services.grants import ask_for_quota
from tests.support.factories import Cast, QuotaFactory, bearer, the_cast
from tests.support.roles import as_owner

pytestmark = pytest.mark.django_db

WHO = ("owner", "colleague", "lead", "viewer", "stranger", "operator", "auditor", "admin")
NEW = {"project": "vision", "resource": "gpu_millis", "amount": 4000, "reason": "a paper"}
URL = "/api/v1/quotas/requests"


@pytest.fixture
def cast() -> Cast:
    cast = the_cast()
    QuotaFactory(project=cast.project, resource="gpu_millis", hard=8_000, used=6_000)
    return cast


@pytest.fixture
def grant(cast: Cast) -> Grant:
    return ask_for_quota(
        project=cast.project, resource="gpu_millis", amount=4_000, reason="a paper", by=cast.lead
    )


def send(client: Client, method: str, url: str, person: Any, body: object = None) -> Any:
    return client.generic(
        method, url, data="" if body is None else json.dumps(body), content_type="application/json",
        headers=bearer(person, "quota:write"),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("method", "path", "body", "statuses"),
    [
        ("POST", "", NEW, "403 403 201 403 404 403 403 201"),
        ("GET", "/{id}", None, "200 200 200 200 404 200 200 200"),
        ("POST", "/{id}/approve", {"reason": "ok", "granted": 2000}, "403 403 403 403 404 200 403 200"),
        ("POST", "/{id}/decline", {"reason": "no"}, "403 403 403 403 404 200 403 200"),
        ("POST", "/{id}/withdraw", {}, "403 403 200 403 404 403 403 200"),
        ("POST", "/{id}/second", {"reason": "ok"}, "403 403 403 403 404 409 403 409"),
        ("POST", "/{id}/praise", {"reason": "ok"}, "404 404 404 404 404 404 404 404"),
    ],
)
def test_who_gets_what(client: Client, cast: Cast, method: str, path: str, body: Any, statuses: str) -> None:
    for who, status in zip(WHO, statuses.split(), strict=True):
        with as_owner():
            Grant.objects.all().delete()
        given = "" if path == "" else path.format(
            id=ask_for_quota(
                project=cast.project, resource="gpu_millis", amount=4_000, reason="a paper", by=cast.lead
            ).pk
        )  # fmt: skip
        answer = send(client, method, URL + given, cast.people()[who], body)
        assert answer.status_code == int(status), (who, answer.content)


def test_the_list_holds_what_one_may_see_and_a_decision_shows(
    client: Client, cast: Cast, grant: Grant
) -> None:
    assert send(client, "GET", URL, cast.stranger).json()["results"] == []
    done = send(
        client, "POST", f"{URL}/{grant.pk}/approve", cast.operator, {"reason": "half", "granted": 2000}
    )
    assert (done.status_code, done.json()["state"], done.json()["granted"]) == (200, "active", 2000)

    (seen,) = send(client, "GET", f"{URL}?project=vision&state=active", cast.viewer).json()["results"]
    assert (seen["id"], seen["decided_by"], seen["decision"]) == (grant.pk, "operator", "half")
    assert Quota.objects.get(resource="gpu_millis").hard == 10_000


def test_an_impact_is_for_operators(client: Client, cast: Cast) -> None:
    url = "/api/v1/quotas/impact/vision?resource=gpu_millis&hard=4000"

    assert send(client, "GET", url, cast.lead).status_code == 403
    assert send(client, "GET", url, cast.stranger).status_code == 404
    body = send(client, "GET", url, cast.operator).json()
    assert (body["bound_before"], body["bound_after"], body["over_by_cut"]) == (8_000, 4_000, 2_000)
    assert "running jobs continue" in body["sentences"][1]
    assert send(client, "GET", url.replace("4000", "many"), cast.operator).status_code in (400, 422)


def test_pages_ask_show_and_decide(client: Client, cast: Cast) -> None:
    client.force_login(cast.lead, backend="accounts.backends.PasswordBackend")
    assert "6 of 8 in use now" in client.get(reverse("grant-ask"), {"project": "vision"}).content.decode()
    bad = client.post(reverse("grant-ask"), {"project": "vision", "resource": "gpu_millis", "amount": "x"})
    assert (bad.status_code, "number above 0" in bad.content.decode()) == (422, True)
    sent = client.post(
        reverse("grant-ask"),
        {"project": "vision", "resource": "gpu_millis", "amount": "4", "reason": "<i>now</i>"},
    )
    grant = Grant.objects.get()
    assert (sent.status_code, grant.amount) == (302, 4000)
    assert "Impact" not in client.get(sent.headers["Location"]).content.decode()

    client.force_login(cast.operator, backend="accounts.backends.PasswordBackend")
    page = client.get(reverse("grant", args=[grant.pk])).content.decode()
    assert "Impact" in page
    assert "&lt;i&gt;now&lt;/i&gt;" in page
    assert f"Request {grant.pk}" in client.get(reverse("grants")).content.decode()
    refused = client.post(reverse("grant-decide", args=[grant.pk, "approve"]), {"granted": "2", "reason": ""})
    assert (refused.status_code, "Give a reason" in refused.content.decode()) == (422, True)
    client.post(reverse("grant-decide", args=[grant.pk, "approve"]), {"granted": "2", "reason": "half"})
    grant.refresh_from_db()
    assert (grant.state, grant.granted) == ("active", 2000)

    client.force_login(cast.stranger, backend="accounts.backends.PasswordBackend")
    assert client.get(reverse("grant", args=[grant.pk])).status_code == 404
    assert client.get(reverse("grant-ask"), {"project": "vision"}).status_code == 404


def test_the_form_refuses_what_is_no_text_and_no_number(client: Client, cast: Cast) -> None:
    client.force_login(cast.lead, backend="accounts.backends.PasswordBackend")
    form = {"project": "vision", "resource": "gpu_millis", "amount": "4", "reason": "a paper"}

    for bad in ({"reason": "a\0b"}, {"gpu_model": "H\0"}, {"renews": "9" * 5000}):
        answer = client.post(reverse("grant-ask"), form | bad)
        assert answer.status_code in (302, 404, 422), bad
    assert not Grant.objects.exists()


def test_more_of_a_budget_is_asked_for_by_its_number_and_by_its_name(client: Client, cast: Cast) -> None:
    budget = make_budget(
        subject=cast.project, name="Autumn", resource="gpu_milli_seconds", amount=360_000_000, period="month",
        by=cast.admin, reason="the year",
    )  # fmt: skip
    new = {"project": "vision", "budget": budget.pk, "amount": 180_000_000, "reason": "a paper"}

    for who, status in zip(WHO, (403, 403, 201, 403, 404, 403, 403, 409), strict=True):
        assert send(client, "POST", URL, getattr(cast, who), new).status_code == status, who
    grant = Grant.objects.get()
    body = send(client, "GET", f"{URL}/{grant.pk}", cast.lead).json()
    assert (body["budget"], body["resource"], body["amount"]) == (budget.pk, "gpu_milli_seconds", 180_000_000)
    assert send(client, "POST", URL, cast.lead, new | {"budget": budget.pk + 1}).status_code == 404
    unnamed = {name: value for name, value in new.items() if name != "budget"}
    assert send(client, "POST", URL, cast.lead, unnamed).status_code == 422
    done = send(client, "POST", f"{URL}/{grant.pk}/approve", cast.operator, {"reason": "ok"})
    assert (done.status_code, done.json()["state"]) == (200, "active")
    budget.refresh_from_db()
    assert budget.amount == 540_000_000


def test_pages_ask_for_more_of_a_budget(client: Client, cast: Cast) -> None:
    budget = make_budget(
        subject=cast.project, name="<b>Autumn", resource="gpu_milli_seconds", amount=360_000_000, period="month",
        by=cast.admin, reason="the year",
    )  # fmt: skip
    client.force_login(cast.lead, backend="accounts.backends.PasswordBackend")
    form = client.get(
        reverse("grant-ask"), {"project": "vision", "resource": f"budget-{budget.pk}"}
    ).content.decode()
    assert f'<option value="budget-{budget.pk}" selected>GPU-hours of the budget &lt;b&gt;Autumn' in form
    assert "100.0 GPU-hours of 100.0 GPU-hours are left" in form

    sent = client.post(
        reverse("grant-ask"),
        {"project": "vision", "resource": f"budget-{budget.pk}", "amount": "50", "reason": "a paper"},
    )

    grant = Grant.objects.get()
    assert (sent.status_code, grant.budget, grant.amount) == (302, budget, 180_000_000)
    page = client.get(reverse("grant", args=[grant.pk])).content.decode()
    assert "requests more of the budget &lt;b&gt;Autumn: 50.0 GPU-hours in addition" in page
    client.force_login(cast.operator, backend="accounts.backends.PasswordBackend")
    page = client.get(reverse("grant", args=[grant.pk])).content.decode()
    assert "The budget goes from <b>100.0 GPU-hours</b> to <b>150.0 GPU-hours</b> a month." in page
    client.post(reverse("grant-decide", args=[grant.pk, "approve"]), {"granted": "25", "reason": "half"})
    budget.refresh_from_db()
    assert budget.amount == 450_000_000
    assert "<b>Autumn" not in client.get(reverse("grants")).content.decode()
