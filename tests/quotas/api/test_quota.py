"""The quota of a project over HTTP: its fields, who may, and edits that cross."""

from __future__ import annotations

import json

import pytest
from django.test import Client

from accounts.models import AuditEvent
from quotas.models import Quota
from tests.support.factories import (
    AllocationFactory,
    AttemptFactory,
    Cast,
    JobFactory,
    QuotaFactory,
    bearer,
    the_cast,
)

pytestmark = pytest.mark.django_db

WHO = ("owner", "colleague", "lead", "viewer", "stranger", "operator", "auditor", "admin")
URL = "/api/v1/queues/quota/vision"


@pytest.fixture
def cast() -> Cast:
    cast = the_cast()
    for resource, hard, used in [
        ("cpu_millis", 100_000, 75_000),
        ("memory_mib", 500 * 1024, 125 * 1024),
        ("gpu_millis", 10_000, 2_500),
        ("storage_mib", None, 0),
        ("running_jobs", 20, 3),
    ]:
        QuotaFactory(project=cast.project, resource=resource, hard=hard, used=used)
    return cast


def send(client: Client, method: str, person, body: object = None, url: str = URL, **headers: str):
    return client.generic(
        method,
        url,
        data="" if body is None else json.dumps(body),
        content_type="application/json",
        headers=bearer(person, "quota:write") | headers,
    )


def test_the_fields_of_the_register_and_exact_lines(client: Client, cast: Cast) -> None:
    response = send(client, "GET", cast.viewer)

    assert response.status_code == 200
    assert response["ETag"] == f'"quota-{cast.project.pk}-5"'
    body = response.json()
    lines = body.pop("lines")
    assert body == {
        "project_id": cast.project.pk,
        "project": "vision",
        "cpu_quota": 100.0,
        "memory_quota": 500.0,
        "gpu_quota": 10,
        "storage_quota": None,
        "enforce_quota": True,
        "used_cpu": 75.0,
        "available_cpu": 25.0,
        "cpu_usage_percent": 75.0,
        "used_memory": 125.0,
        "available_memory": 375.0,
        "memory_usage_percent": 25.0,
        "used_gpu": 2.5,
        "available_gpu": 7.5,
        "gpu_usage_percent": 25.0,
        "used_storage": 0.0,
        "available_storage": None,
        "storage_usage_percent": None,
        "provider": "local",
        "provider_state": None,
        "synced_at": None,
        "generation": 5,
    }
    assert lines[0] == {
        "resource": "cpu_millis",
        "nominal": 100_000,
        "soft": None,
        "hard": 100_000,
        "enforce": True,
        "used": 75_000,
        "available": 25_000,
        "usage_percent": 75.0,
        "over": False,
        "generation": 1,
    }
    assert [line["resource"] for line in lines] == [
        "cpu_millis", "memory_mib", "gpu_millis", "storage_mib", "running_jobs",
    ]  # fmt: skip


@pytest.mark.parametrize("ref", ["vision", "{id}"])
def test_a_project_is_named_by_slug_or_id(client: Client, cast: Cast, ref: str) -> None:
    response = send(client, "GET", cast.owner, url=f"/api/v1/queues/quota/{ref.format(id=cast.project.pk)}")

    assert response.json()["project_id"] == cast.project.pk


CHANGE = {"cpu_quota": 50, "reason": "the new grant"}


@pytest.mark.parametrize("who", WHO)
@pytest.mark.parametrize(
    ("method", "path", "body", "statuses"),
    [
        ("GET", "", None, "200 200 200 200 404 200 200 200"),
        ("PATCH", "", CHANGE, "403 403 403 403 404 200 403 200"),
        ("POST", "/sync", None, "403 403 403 403 404 200 403 200"),
    ],
    ids=["read", "change", "sync"],
)
def test_who_gets_what(
    client: Client, cast: Cast, who: str, method: str, path: str, body, statuses: str
) -> None:
    expected = int(statuses.split()[WHO.index(who)])

    response = send(client, method, cast.people()[who], body, url=URL + path)

    assert response.status_code == expected, response.content
    if expected == 403:
        assert AuditEvent.objects.get(outcome="denied").action == "project.edit_quota"


@pytest.mark.parametrize(("method", "path"), [("GET", ""), ("PATCH", ""), ("POST", "/sync")])
def test_nobody_and_tokens_without_the_scope_get_nothing(
    client: Client, cast: Cast, method: str, path: str
) -> None:
    assert client.generic(method, URL + path).status_code == 401
    response = client.generic(method, URL + path, headers=bearer(cast.operator, "jobs:write"))
    assert (response.status_code, response.json()["code"]) == (403, "scope-missing")


def test_reading_needs_only_the_reading_scope(client: Client, cast: Cast) -> None:
    headers = bearer(cast.operator, "quota:read")

    assert client.get(URL, headers=headers).status_code == 200
    assert client.patch(URL, CHANGE, content_type="application/json", headers=headers).status_code == 403


def test_a_change_answers_with_what_is_now_and_is_audited(client: Client, cast: Cast) -> None:
    response = send(
        client, "PATCH", cast.operator,
        {"cpu_quota": 80, "memory_quota": "1Ti", "gpu_quota": 2.5, "storage_quota": 100, "reason": "the new grant"},
    )  # fmt: skip

    body = response.json()
    assert response.status_code == 200
    assert (body["cpu_quota"], body["memory_quota"], body["gpu_quota"], body["storage_quota"]) == (
        80,
        1024,
        2.5,
        100,
    )
    assert (body["used_cpu"], body["cpu_usage_percent"]) == (75, 93.8)
    line = Quota.objects.get(project=cast.project, resource="cpu_millis")
    assert (line.nominal, line.hard) == (80_000, 80_000)
    event = AuditEvent.objects.get(action="quota.set")
    assert (event.actor, event.reason) == (cast.operator, "the new grant")
    assert event.before["gpu_millis"] == {"hard": 10_000, "nominal": 10_000}
    assert event.request_id == response["X-Request-ID"]


def test_lines_set_each_bound_by_itself_and_null_takes_one_away(client: Client, cast: Cast) -> None:
    change = {
        "lines": [{"resource": "cpu_millis", "soft": 60_000}, {"resource": "running_jobs", "hard": None}],
        "reason": "x",
    }

    lines = {line["resource"]: line for line in send(client, "PATCH", cast.operator, change).json()["lines"]}

    assert (lines["cpu_millis"]["soft"], lines["cpu_millis"]["hard"]) == (60_000, 100_000)
    assert lines["running_jobs"]["hard"] is None


def test_not_enforcing_reports_only(client: Client, cast: Cast) -> None:
    body = send(client, "PATCH", cast.operator, {"enforce_quota": False, "reason": "a rush week"}).json()

    assert body["enforce_quota"] is False
    assert {line["enforce"] for line in body["lines"]} == {False}


def test_of_two_edits_from_one_etag_the_second_is_412_with_what_is_there(client: Client, cast: Cast) -> None:
    etag = send(client, "GET", cast.operator)["ETag"]

    first = send(client, "PATCH", cast.operator, {"cpu_quota": 80, "reason": "first"}, **{"If-Match": etag})
    second = send(client, "PATCH", cast.admin, {"cpu_quota": 90, "reason": "second"}, **{"If-Match": etag})
    third = send(
        client, "PATCH", cast.admin, {"cpu_quota": 90, "reason": "again"}, **{"If-Match": first["ETag"]}
    )

    assert (first.status_code, second.status_code, third.status_code) == (200, 412, 200)
    assert second.json()["code"] == "stale"
    assert second.json()["current"]["cpu_millis"]["hard"] == 80_000


def test_finding_42_a_body_without_a_reason_changes_the_quota(client: Client, cast: Cast) -> None:
    assert send(client, "PATCH", cast.operator, {"cpu_quota": 60}).json()["cpu_quota"] == 60

    assert AuditEvent.objects.get(action="quota.set").reason == "changed over the API"


def test_usage_moves_without_the_etag(client: Client, cast: Cast) -> None:
    before = send(client, "GET", cast.operator)["ETag"]
    Quota.objects.filter(project=cast.project, resource="cpu_millis").update(used=1)

    assert send(client, "GET", cast.operator)["ETag"] == before


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"cpu_quota": 50, "reason": " "}, "reason"),
        ({"cpu_quota": -1, "reason": "x"}, "cpu_quota"),
        ({"cpu_quota": "many", "reason": "x"}, "cpu_quota"),
        ({"cpu_quota": 1e300, "reason": "x"}, "cpu_quota"),
        ({"cpu_quota": 0.0001, "reason": "x"}, "cpu_quota"),
        ({"cpu_quota": True, "reason": "x"}, "cpu_quota"),
        ({"memory_quota": -5, "reason": "x"}, "memory_quota"),
        ({"memory_quota": "5 bananas", "reason": "x"}, "memory_quota"),
        ({"memory_quota": 1e300, "reason": "x"}, "memory_quota"),
        ({"memory_quota": [], "reason": "x"}, "memory_quota"),
        ({"memroy_quota": 5, "reason": "x"}, "memroy_quota"),
        ({"provider": "slurm", "reason": "x"}, "provider"),
        ({"provider": "magic", "reason": "x"}, "provider"),
        ({"lines": [{"resource": "bananas", "hard": 1}], "reason": "x"}, "lines/0/resource"),
        ({"lines": [{"resource": "cpu_millis", "used": 1}], "reason": "x"}, "lines/0/used"),
        ({"lines": [{"resource": "cpu_millis", "soft": 100_001}], "reason": "x"}, "cpu_millis/soft"),
        (
            {"cpu_quota": 1, "lines": [{"resource": "cpu_millis", "hard": 1}], "reason": "x"},
            "lines/0/resource",
        ),
        ({"reason": "x"}, ""),
    ],
)
def test_a_wrong_change_is_422_and_writes_nothing(
    client: Client, cast: Cast, body: dict, field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")  # no sacctmgr there
    response = send(client, "PATCH", cast.operator, body)

    assert response.status_code == 422, response.content
    assert [error["field"] for error in response.json()["errors"]] == [field]
    assert not AuditEvent.objects.filter(action="quota.set").exists()


@pytest.mark.parametrize("etag", ["nonsense", '"quota-1"', '"quota-0-1"', "*x"])
def test_an_etag_of_something_else_is_400(client: Client, cast: Cast, etag: str) -> None:
    assert send(client, "PATCH", cast.operator, CHANGE, **{"If-Match": etag}).status_code == 400


def test_a_sync_repairs_and_says_what_was_wrong(client: Client, cast: Cast) -> None:
    attempt = AttemptFactory(job=JobFactory(project=cast.project, user=cast.owner, state="running", epoch=1))
    AllocationFactory(attempt=attempt, cpu_millis=4000, memory_mib=1024, gpu_millis=1000)

    body = send(client, "POST", cast.operator, url=f"{URL}/sync").json()

    assert (body["used_cpu"], body["used_memory"], body["used_gpu"]) == (4.0, 1.0, 1)
    assert body["synced_at"].endswith("Z")
    assert body["drift"] == [
        {"resource": "cpu_millis", "was": 75_000, "found": 4000},
        {"resource": "memory_mib", "was": 125 * 1024, "found": 1024},
        {"resource": "gpu_millis", "was": 2500, "found": 1000},
        {"resource": "running_jobs", "was": 3, "found": 1},
    ]
    assert AuditEvent.objects.get(action="quota.repair").actor == cast.operator


@pytest.mark.parametrize("ref", ["%00", "🦆", "9" * 40, "elsewhere"])
def test_what_is_not_there_is_404(client: Client, cast: Cast, ref: str) -> None:
    assert send(client, "GET", cast.owner, url=f"/api/v1/queues/quota/{ref}").status_code == 404


def test_reading_takes_five_queries(client: Client, cast: Cast, django_assert_num_queries) -> None:
    headers = bearer(cast.owner, "quota:read")
    client.get(URL, headers=headers)

    with django_assert_num_queries(5):  # token; project; role; provider; lines
        client.get(URL, headers=headers)
