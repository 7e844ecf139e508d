"""Errors: one shape everywhere, the field and the way out named, nothing leaked, denials written down."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from django.conf import settings
from django.test import override_settings
from django.utils import timezone
from rest_framework.test import APIClient

from accounts.models import ApiToken, AuditEvent
from scheduler.models import Job
from tests.scheduler.api.conftest import Api
from tests.scheduler.portal import Portal
from tests.support.factories import Cast, a_token

JOBS = "/api/v1/jobs"


def problem_of(answer: Any) -> dict[str, Any]:
    """The body of a problem, once its shape was looked at."""
    assert answer["Content-Type"] == "application/problem+json", answer.content
    body = json.loads(answer.content)
    assert {"type", "title", "status", "detail", "code", "errors", "way_out", "request_id"} <= set(body)
    assert body["status"] == answer.status_code
    assert body["type"] == f"/docs/errors/{body['code']}"
    assert body["request_id"] == answer["X-Request-ID"] != ""
    return body


def test_a_wrong_field_is_named_with_its_pointer_and_the_way_out(api: Api, cast: Cast) -> None:
    body = problem_of(api(cast.owner).post(JOBS, {"command": "true", "cpu_cores": -1, "gpus": 1}))

    assert (body["status"], body["title"], body["code"]) == (422, "Unprocessable Entity", "invalid")
    assert {(item["pointer"], item["code"]) for item in body["errors"]} == {
        ("/cpu_cores", "unreadable"),
        ("/gpus", "unknown-field"),
    }
    assert "nothing was written" in body["way_out"]


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{", 400, "malformed-json"), (b"", 422, "invalid"), (b"[]", 422, "not-an-object"),
        (b"7", 422, "not-an-object"), (b'"x"', 422, "not-an-object"), (b"null", 422, "not-an-object"),
        (b"\xff\xfe", 400, "malformed-json"), (b'{"command": NaN}', 400, "malformed-json"),
        (b'{"command": "a\\u0000b"}', 422, "bad-text"), (b'{"command": "\\ud800"}', 422, "bad-text"),
        (b'{"\\u0000": 1}', 422, "bad-text"), (b'{"env": {"A": ["\\u0000"]}}', 422, "bad-text"),
        (b"[" * 100_000, 400, "malformed-json"), (b'{"a":' * 40 + b"1" + b"}" * 40, 400, "malformed-json"),
        (b'{"priority": ' + b"9" * 5000 + b"}", 400, "malformed-json"),
    ],
    ids=lambda value: repr(value)[:24],
)  # fmt: skip
def test_a_body_that_cannot_be_read_is_refused(
    api: Api, cast: Cast, body: bytes, status: int, code: str
) -> None:
    answer = api(cast.owner).generic("POST", JOBS, body, content_type="application/json")

    assert (answer.status_code, problem_of(answer)["code"]) == (status, code)
    assert Job.objects.count() == 0


@pytest.mark.parametrize(
    "path", [JOBS, f"{JOBS}:bulk", f"{JOBS}/preview", "/api/v1/slurm/sbatch", "/api/v1/reservations"]
)
def test_ten_megabytes_are_too_much(api: Api, cast: Cast, path: str) -> None:
    answer = api(cast.operator).generic(
        "POST", path, b'{"command": "' + b"x" * 10_000_000 + b'"}', content_type="application/json"
    )

    body = problem_of(answer)
    assert (body["status"], body["code"]) == (413, "body-too-large")
    assert "8 MiB" in body["detail"]


def test_another_kind_of_body_is_refused_with_the_kind_that_is_taken(api: Api, cast: Cast) -> None:
    body = problem_of(
        api(cast.owner).post(JOBS, "command=true", content_type="application/x-www-form-urlencoded")
    )

    assert (body["status"], body["code"]) == (415, "unsupported-media-type")
    assert "application/json" in body["way_out"]


# ---------------------------------------------------------------- who is it


@pytest.mark.parametrize(
    "path", [JOBS, f"{JOBS}/1", f"{JOBS}/1/logs", "/api/v1/nodes", "/api/v1/queues", "/api/v1/queue", "/api/v1/gpus",
             "/api/v1/topology", "/api/v1/reservations", "/api/v1/slurm/squeue", f"{JOBS}/scheduler/info"],
)  # fmt: skip
def test_nobody_gets_nothing(api: Api, path: str) -> None:
    answer = api().get(path)

    assert (problem_of(answer)["status"], problem_of(answer)["code"]) == (401, "not-signed-in")
    assert answer["WWW-Authenticate"].startswith("Bearer")


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({}, "token-unknown"),
        ({"expires_at": timezone.now() - timedelta(days=1)}, "token-expired"),
        ({"revoked_at": timezone.now()}, "token-revoked"),
    ],
)
def test_a_bad_token_is_refused_and_written_down(
    api: Api, cast: Cast, change: dict[str, Any], code: str
) -> None:
    plain = a_token(cast.owner, "jobs:read")
    ApiToken.objects.update(**change)
    client = APIClient()
    wrong = plain[:-1] + ("x" if plain[-1] != "x" else "y")
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {plain if change else wrong}")

    answer = client.get(JOBS)

    assert (answer.status_code, problem_of(answer)["code"]) == (401, code)
    assert AuditEvent.objects.get(outcome="denied").request_id == problem_of(answer)["request_id"]


@pytest.mark.parametrize(
    "header", ["Bearer", "Bearer ", "Bearer x y", "Basic eDp5", "Bearer muster_pat_", "Bearer \x00"]
)
def test_half_a_token_is_none(header: str, portal: Portal) -> None:
    client = APIClient()
    client.credentials(HTTP_AUTHORIZATION=header)

    assert client.get(JOBS).status_code == 401


def test_a_missing_scope_is_named_and_written_down(api: Api, cast: Cast) -> None:
    body = problem_of(api(cast.owner, "jobs:read").post(JOBS, {"command": "true"}))

    assert (body["status"], body["code"], body["scope"]) == (403, "scope-missing", "jobs:write")
    assert AuditEvent.objects.filter(outcome="denied").count() == 1


def test_a_session_needs_its_csrf_token(cast: Cast) -> None:
    client = APIClient(enforce_csrf_checks=True)
    client.force_login(cast.owner, backend="accounts.backends.PasswordBackend")

    assert client.get(JOBS).status_code == 200
    assert client.post(JOBS, {"command": "true"}, format="json").status_code == 403
    assert Job.objects.count() == 0


# ---------------------------------------------------------------- no such thing


@pytest.mark.parametrize(
    "path", ["/api/v1/nothing", "/api/v1/jobs/", "/api/v1/jobs/x", "/api/v2/jobs", "/api/"]
)
def test_an_address_that_is_none_answers_in_the_same_shape(api: Api, cast: Cast, path: str) -> None:
    assert problem_of(api(cast.owner).get(path))["code"] == "not-found"


def test_a_method_that_is_none_answers_in_the_same_shape(api: Api, cast: Cast) -> None:
    answer = api(cast.owner).put(JOBS, {})

    assert (problem_of(answer)["code"], answer["Allow"]) == ("method-not-allowed", "GET, POST, HEAD, OPTIONS")


@pytest.mark.parametrize(
    "path",
    [
        "/nodes/%00",
        "/queues/%00",
        "/reservations/%00",
        "/nodes/" + "9" * 40,
        "/jobs/" + "9" * 18,
        "/nodes/%F0%9F%9A%80",
    ],
)
def test_names_that_cannot_be_are_not_found(api: Api, cast: Cast, path: str) -> None:
    assert api(cast.operator).get(f"/api/v1{path}").status_code == 404


# ---------------------------------------------------------------- what nobody foresaw


def test_a_failure_of_ours_tells_its_number_and_nothing_else(
    api: Api, cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(**_: Any) -> None:
        raise RuntimeError("the secret is 42")

    monkeypatch.setattr("scheduler.services.jobs.submit.submit_job", fail)

    answer = api(cast.owner).post(JOBS, {"command": "true"})

    assert (answer.status_code, problem_of(answer)["code"]) == (500, "internal-error")
    assert "secret" not in answer.content.decode()
    assert "42" not in problem_of(answer)["detail"]


def test_a_failure_outside_any_view_has_the_same_shape(
    api: Api, cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("the secret is 42")

    monkeypatch.setattr("scheduler.api.urls.api_not_found.__code__", fail.__code__)

    answer = api(cast.owner).get("/api/v1/nothing")

    assert problem_of(answer)["code"] == "internal-error"
    assert "secret" not in answer.content.decode()


def test_those_who_ask_too_often_are_told_when_to_come_back(api: Api, cast: Cast) -> None:
    client = api(cast.owner)
    other = api(cast.colleague)
    with override_settings(MUSTER_API_RATE=0.5, MUSTER_API_BURST=3):
        answers = [client.get(f"{JOBS}/state?ids=1").status_code for _ in range(4)]
        last = client.get(JOBS)

        assert other.get(JOBS).status_code == 200

    assert answers == [200, 200, 200, 429]
    assert problem_of(last)["code"] == "too-many-requests"
    assert 1 <= int(last["Retry-After"]) <= 2


def test_a_limit_on_requests_is_on_unless_it_is_taken_away() -> None:
    from config.settings import rest

    assert rest.MUSTER_API_RATE > 0
    assert settings.MUSTER_API_RATE == 0
