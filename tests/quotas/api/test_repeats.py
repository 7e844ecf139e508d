"""What is sent twice is done once, what was seen is what is changed, and no question is half understood."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.test import Client

from accounts.models import ApiToken, AuditEvent, Membership
from quotas.models import Budget, Grant, LedgerEntry
from tests.support.factories import Cast, QuotaFactory, bearer, the_cast

pytestmark = pytest.mark.django_db

BUDGETS = "/api/v1/quotas/budgets"


@pytest.fixture
def cast() -> Cast:
    return the_cast()


def send(client: Client, method: str, url: str, person: Any, body: object = None, **headers: str) -> Any:
    scopes = ("quota:write", "projects:write", "tokens:write", "audit:read", "jobs:read")
    return client.generic(
        method, url, data="" if body is None else json.dumps(body), content_type="application/json",
        headers=bearer(person, *scopes) | headers,
    )  # fmt: skip


def a_budget(client: Client, cast: Cast, **headers: str) -> Any:
    body = {
        "project": "vision", "name": "Autumn", "resource": "gpu_milli_seconds", "amount": 10_000_000,
        "period": "month", "starts_at": "2026-11-01T00:00:00Z", "reason": "granted",
    }  # fmt: skip
    return send(client, "POST", BUDGETS, cast.operator, body, **headers)


def test_every_post_that_takes_a_key_is_done_once(client: Client, cast: Cast) -> None:
    QuotaFactory(project=cast.project, resource="gpu_millis", hard=8000)
    correction = {
        "project": "vision",
        "resource": "gpu_milli_seconds",
        "amount": -600_000,
        "reason": "a broken driver",
    }
    asked = {"project": "vision", "resource": "gpu_millis", "amount": 1000, "reason": "spring"}
    limit = {"project": "vision", "user": "owner", "resource": "running_jobs", "hard": 2, "reason": "fair"}
    wanted = [
        (cast.operator, "quotas/ledger", correction, LedgerEntry),
        (cast.lead, "quotas/requests", asked, Grant),
        (cast.lead, "quotas/lines", limit, None),
        (cast.lead, "projects/vision/members", {"user": "stranger"}, Membership),
    ]
    for person, path, body, model in wanted:
        before = model.objects.count() if model else 0
        first, again = (
            send(client, "POST", f"/api/v1/{path}", person, body, **{"Idempotency-Key": f"key-of-{path}"})
            for _ in range(2)
        )

        assert first.status_code == 201, first.content
        assert (again.status_code, again.json()) == (201, first.json()), path
        assert again["Idempotent-Replayed"] == "true"
        assert model is None or model.objects.count() == before + 1, path
    other = send(
        client, "POST", "/api/v1/quotas/ledger", cast.operator, correction | {"amount": -1000},
        **{"Idempotency-Key": "key-of-quotas/ledger"},
    )  # fmt: skip
    assert (other.status_code, other.json()["code"]) == (422, "idempotency-key-reused")


def test_a_token_is_made_without_a_key_or_not_at_all(client: Client, cast: Cast) -> None:
    before = ApiToken.objects.count()

    answer = send(
        client, "POST", "/api/v1/tokens", cast.owner, {"name": "n", "scopes": ["jobs:read"]},
        **{"Idempotency-Key": "once"},
    )  # fmt: skip

    assert (answer.status_code, answer.json()["code"]) == (400, "idempotency-key-bad")
    assert ApiToken.objects.filter(name="n").count() == 0 <= before


def test_a_budget_is_changed_and_ended_only_as_it_was_seen(client: Client, cast: Cast) -> None:
    made = a_budget(client, cast)
    url, seen = f"{BUDGETS}/{made.json()['id']}", made["ETag"]
    more = {"amount": 20_000_000, "reason": "more"}

    changed = send(client, "PATCH", url, cast.operator, more, **{"If-Match": seen})
    assert changed.status_code == 200
    assert changed["ETag"] != seen
    assert changed["ETag"] == send(client, "GET", url, cast.operator)["ETag"]

    less = {"amount": 5, "reason": "less"}
    for answer in (
        send(client, "PATCH", url, cast.operator, less, **{"If-Match": seen}),
        send(client, "PATCH", url, cast.operator, less | {"generation": made.json()["generation"]}),
        send(client, "DELETE", url, cast.operator, **{"If-Match": seen}),
    ):
        assert (answer.status_code, answer.json()["code"]) == (412, "stale")
        assert answer.json()["current"]["amount"] == 20_000_000
    for odd in ("x", '"line-1-1"', 'W/"budget"', '"budget-999999-1"'):
        assert send(client, "PATCH", url, cast.operator, less, **{"If-Match": odd}).status_code == 400, odd
    assert Budget.objects.get().amount == 20_000_000
    assert AuditEvent.objects.filter(action="budget.change").count() == 1

    assert send(client, "DELETE", url, cast.operator, **{"If-Match": changed["ETag"]}).status_code == 200


def test_a_filter_that_is_none_is_refused_and_shows_nothing(client: Client, cast: Cast) -> None:
    for path in (
        "quotas/requests?stat=asked", "quotas/requests?state=askd", "quotas/lines?projct=vision",
        "quotas/lines?resource=gpus", "quotas/budgets?project=vision", "quotas/drift?kind=x", "projects?slug=vision",
        "audit?actr=alice", "tokens?user=x", "queues?project=vision", "datasets?project=vision",
    ):  # fmt: skip
        answer = send(client, "GET", f"/api/v1/{path}", cast.admin)
        assert answer.status_code == 400, path
        assert answer.json()["errors"], path
        assert answer.json()["way_out"], path


def test_what_a_verb_has_no_use_for_is_refused(client: Client, cast: Cast) -> None:
    QuotaFactory(project=cast.project, resource="gpu_millis", hard=8000)
    asked = {"project": "vision", "resource": "gpu_millis", "amount": 1000, "reason": "spring"}
    made = send(client, "POST", "/api/v1/quotas/requests", cast.lead, asked).json()
    url = f"/api/v1/quotas/requests/{made['id']}"

    declined = send(client, "POST", f"{url}/decline", cast.operator, {"reason": "no", "granted": 500})
    stale = send(client, "POST", f"{url}/withdraw", cast.lead, {"generation": 99})

    assert (declined.status_code, declined.json()["errors"][0]["field"]) == (422, "granted")
    assert stale.status_code == 412
    assert Grant.objects.get().state == "asked"


def test_a_project_is_changed_only_as_it_was_seen(client: Client, cast: Cast) -> None:
    url = "/api/v1/projects/vision"
    seen = send(client, "GET", url, cast.lead)["ETag"]

    first = send(client, "PATCH", url, cast.lead, {"description": "ours"}, **{"If-Match": seen})
    second = send(client, "PATCH", url, cast.lead, {"description": "mine"}, **{"If-Match": seen})

    assert (first.status_code, second.status_code) == (200, 412)
    assert second.json()["current"]["description"] == "ours"
    again = send(client, "PATCH", url, cast.lead, {"description": "mine"}, **{"If-Match": first["ETag"]})
    assert again.status_code == 200
