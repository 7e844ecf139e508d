"""The ledger, usage and budgets over HTTP: who sees what, that figures open to lines, and exports."""

from __future__ import annotations

import csv
import io
import json
from datetime import UTC, date, datetime, timedelta

import pytest
from django.test import Client

from accounts.models import AuditEvent
from quotas.models import BudgetPeriod, LedgerEntry
from tests.support.factories import Cast, bearer, the_cast
from tests.support.ledgers import a_life

pytestmark = pytest.mark.django_db

MONDAY = datetime(2026, 11, 23, 23, 30, tzinfo=UTC)
LEDGER, USAGE, BUDGETS = "/api/v1/quotas/ledger", "/api/v1/quotas/usage", "/api/v1/quotas/budgets"


@pytest.fixture
def cast() -> Cast:
    cast = the_cast()
    a_life(cast.project, cast.owner, began=MONDAY, used=3000)  # half an hour today, the rest tomorrow
    a_life(cast.project, cast.colleague, began=MONDAY, used=600, gpus=2, model="H100")
    return cast


def get(client: Client, person, url: str, **query: object):
    return client.get(url, query, headers=bearer(person, "quota:read"))


def post(client: Client, person, url: str, body: object, method: str = "POST"):
    return client.generic(
        method, url, data=json.dumps(body), content_type="application/json",
        headers=bearer(person, "quota:write"),
    )  # fmt: skip


def test_members_see_their_projects_lines_and_strangers_none(client: Client, cast: Cast) -> None:
    seen = {
        name: len(get(client, person, LEDGER).json()["results"]) for name, person in cast.people().items()
    }

    everything = LedgerEntry.objects.count()
    assert seen == dict.fromkeys(seen, everything) | {"stranger": 0}
    assert get(client, cast.stranger, LEDGER, project="vision").status_code == 404
    assert client.get(LEDGER).status_code == 401


def test_every_sum_is_that_of_the_lines_it_opens_to(client: Client, cast: Cast) -> None:
    for group, names in (("user", ["owner", "colleague"]), ("gpu_model", ["A100", "H100"])):
        rows = {r["group"][group]: r for r in get(client, cast.owner, USAGE, group=group).json()["results"]}
        assert sorted(rows) == sorted(names)
        for name, row in rows.items():
            lines = get(client, cast.owner, LEDGER, **{group: name}).json()["results"]
            used = [e for e in lines if e["kind"] == "charge"]
            assert row["gpu_milli_seconds"] == sum(e["gpu_millis"] * e["charged_seconds"] for e in used)
            assert (
                row["held_gpu_milli_seconds"] == sum(e["gpu_millis"] * e["held_seconds"] for e in lines) == 0
            )


def test_usage_is_conserved_however_it_is_grouped(client: Client, cast: Cast) -> None:
    totals = set()
    for group in ("", "day", "user", "project", "gpu_model", "day,gpu_model,user"):
        rows = get(client, cast.owner, USAGE, group=group).json()["results"]
        totals.add(sum(row["gpu_milli_seconds"] for row in rows))

    assert totals == {3000 * 1000 + 600 * 2000}


def test_a_day_has_the_seconds_of_that_day(client: Client, cast: Cast) -> None:
    rows = get(client, cast.owner, USAGE, group="day", user="owner").json()["results"]

    assert {r["group"]["day"]: r["gpu_milli_seconds"] for r in rows} == {
        "2026-11-23": 1800 * 1000,
        "2026-11-24": 1200 * 1000,
    }
    row = get(client, cast.owner, USAGE, user="owner").json()["results"][0]
    assert row["efficiency_percent"] == round(100 * 3000 / 3600, 1)


def test_filters_that_do_not_exist_or_cannot_be_read_are_named(client: Client, cast: Cast) -> None:
    for query in (
        {"knid": "hold"},
        {"kind": "hodl"},
        {"since": "yesterday"},
        {"job": "x"},
        {"export": "xls"},
    ):
        response = get(client, cast.owner, LEDGER, **query)
        assert response.status_code == 400, query
        assert next(iter(query)) in response.content.decode()
    assert get(client, cast.owner, LEDGER, user="stranger").json()["results"] == []


def test_pages_go_through_every_line_once(client: Client, cast: Cast) -> None:
    seen, url = [], LEDGER + "?limit=3"
    while url:
        body = client.get(url, headers=bearer(cast.owner, "quota:read")).json()
        seen += [entry["id"] for entry in body["results"]]
        url = body["next"]

    assert seen == sorted(LedgerEntry.objects.values_list("pk", flat=True), reverse=True)


@pytest.mark.parametrize("export", ["csv", "json"])
def test_an_export_streams_the_lines_one_may_see(client: Client, cast: Cast, export: str) -> None:
    LedgerEntry.objects.create(
        kind="adjust", project=cast.project, gpu_millis=1000, charged_seconds=-5, starts_at=MONDAY,
        ends_at=MONDAY, at=MONDAY, reason="=HYPERLINK(1)",
    )  # fmt: skip

    response = get(client, cast.owner, LEDGER, export=export)

    assert response.streaming
    text = b"".join(response.streaming_content).decode()
    rows = list(csv.DictReader(io.StringIO(text))) if export == "csv" else json.loads(text)
    assert [int(row["id"]) for row in rows] == list(
        LedgerEntry.objects.order_by("id").values_list("pk", flat=True)
    )
    assert rows[0]["starts_at"] == "2026-11-23T23:30:00Z"
    if export == "csv":
        assert rows[-1]["reason"] == "'=HYPERLINK(1)"
    empty = b"".join(get(client, cast.stranger, LEDGER, export=export).streaming_content).decode()
    assert "vision" not in empty


def test_only_operators_correct_the_ledger_and_it_is_audited(client: Client, cast: Cast) -> None:
    body = {
        "project": "vision",
        "resource": "gpu_milli_seconds",
        "amount": -600_000,
        "reason": "broken driver",
    }
    answers = {name: post(client, person, LEDGER, body).status_code for name, person in cast.people().items()}

    assert answers == {
        "owner": 403, "colleague": 403, "lead": 403, "viewer": 403, "stranger": 404, "auditor": 403,
        "operator": 201, "admin": 201,
    }  # fmt: skip
    entry = LedgerEntry.objects.filter(kind="adjust").first()
    assert (entry.gpu_millis, entry.charged_seconds, entry.reason) == (1000, -600, "broken driver")
    assert AuditEvent.objects.filter(action="ledger.adjust").count() == 2


# ------------------------------------------------------------------ budgets

TODAY = datetime.now(UTC).date()


def a_budget(client: Client, cast: Cast, **words: object):
    body = {
        "project": "vision", "name": "Autumn", "resource": "gpu_milli_seconds", "amount": 10_000_000,
        "period": "month", "starts_at": "2026-11-01T00:00:00Z", "reason": "granted",
    } | words  # fmt: skip
    return post(client, cast.operator, BUDGETS, body)


def test_a_budget_counts_what_was_used_before_it_was_made(client: Client, cast: Cast) -> None:
    response = a_budget(
        client, cast, starts_at="2026-01-01T00:00:00Z", period="window", ends_at="2099-12-31T00:00:00Z"
    )

    assert response.status_code == 201, response.content
    body = response.json()
    assert (body["held"], body["charged"], body["left"]) == (0, 4_200_000, 5_800_000)
    assert AuditEvent.objects.get(action="budget.make").reason == "granted"


@pytest.mark.parametrize(
    ("starts_at", "ends_at"),
    [
        (TODAY + timedelta(days=20), None),  # its period is opened already
        (TODAY + timedelta(days=400), None),
        (TODAY - timedelta(days=90), TODAY - timedelta(days=30)),
    ],
    ids=["soon", "later", "over"],
)
def test_a_budget_of_another_time_is_made_and_shown(
    client: Client, cast: Cast, starts_at: date, ends_at: date | None
) -> None:
    words = {"starts_at": f"{starts_at}T00:00:00Z", "ends_at": ends_at and f"{ends_at}T00:00:00Z"}

    made = a_budget(client, cast, **words)

    assert made.status_code == 201, made.content
    assert made.json()["period_starts_at"] == words["starts_at"]
    path = f"{BUDGETS}/{made.json()['id']}"
    assert get(client, cast.operator, path).json()["amount"] == 10_000_000
    changed = post(client, cast.operator, path, {"name": "Spring", "reason": "moved"}, "PATCH")
    assert (changed.status_code, changed.json()["name"]) == (200, "Spring")


def test_those_who_live_under_a_budget_see_it_and_only_operators_change_it(
    client: Client, cast: Cast
) -> None:
    made = a_budget(client, cast)
    number = made.json()["id"]

    seen = {name: len(get(client, p, BUDGETS).json()["results"]) for name, p in cast.people().items()}
    changed = {
        name: post(client, p, f"{BUDGETS}/{number}", {"amount": 5, "reason": "less"}, "PATCH").status_code
        for name, p in cast.people().items()
    }

    assert seen == dict.fromkeys(seen, 1) | {"stranger": 0}
    assert changed == {
        "owner": 403, "colleague": 403, "lead": 403, "viewer": 403, "stranger": 404, "auditor": 403,
        "operator": 200, "admin": 200,
    }  # fmt: skip
    assert set(BudgetPeriod.objects.values_list("amount", flat=True)) == {5}


def test_a_budget_says_at_once_what_is_wrong_with_it(client: Client, cast: Cast) -> None:
    response = a_budget(client, cast, name=" ", period="window", starts_at="2026-11-01T10:00:00Z", reason=" ")

    assert response.status_code == 422
    fields = {problem["field"] for problem in response.json()["errors"]}
    assert fields >= {"reason"} or fields >= {"name", "starts_at", "ends_at"}


def test_lists_cost_as_many_queries_for_many_lines_as_for_one(
    client: Client, cast: Cast, django_assert_max_num_queries
) -> None:
    headers = bearer(cast.owner, "quota:read")
    for url in (LEDGER, USAGE + "?group=user"):
        with django_assert_max_num_queries(6):
            assert client.get(url, headers=headers).status_code == 200
