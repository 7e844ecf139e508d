"""Bearer tokens and sessions at the API's door."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from accounts.models import ApiToken, AuditEvent
from tests.support.factories import PASSWORD, ProjectFactory, a_token, bearer, the_cast

pytestmark = pytest.mark.django_db


def problem(response) -> dict:
    assert response["Content-Type"] == "application/problem+json"
    return response.json()


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        ({"revoked_at": timezone.now()}, "token-revoked", "was revoked at"),
        ({"expires_at": timezone.now() - timedelta(hours=1)}, "token-expired", "expired at"),
    ],
)
def test_an_ended_token_is_401_and_says_why(client: Client, change: dict, code: str, words: str) -> None:
    cast = the_cast()
    headers = bearer(cast.owner, "projects:read")
    ApiToken.objects.update(**change)

    response = client.get("/api/v1/projects", headers=headers)

    assert response.status_code == 401
    assert response["WWW-Authenticate"] == 'Bearer realm="muster"'
    body = problem(response)
    assert body["code"] == code
    assert words in body["detail"]
    event = AuditEvent.objects.get(outcome="denied")
    assert (event.action, event.actor, event.request_id) == ("token.use", cast.owner, body["request_id"])


@pytest.mark.parametrize(
    "header", ["Bearer nonsense", "Bearer ", "bearer muster_pat_aaaaaaaaaa_" + "x" * 40, "Bearer \x7f"]
)
def test_a_token_that_is_not_known_is_401_and_audited_once_a_minute(client: Client, header: str) -> None:
    for _ in range(3):
        response = client.get("/api/v1/me", headers={"Authorization": header})

        assert response.status_code == 401
        assert problem(response)["code"] == "token-unknown"

    event = AuditEvent.objects.get()
    assert (event.action, event.outcome, event.actor, event.address) == (
        "token.use",
        "denied",
        None,
        "127.0.0.1",
    )


def test_a_disabled_account_is_401(client: Client) -> None:
    cast = the_cast()
    headers = bearer(cast.owner, "projects:read")
    cast.owner.is_active = False
    cast.owner.save()

    assert problem(client.get("/api/v1/me", headers=headers))["code"] == "account-disabled"


def test_a_missing_scope_is_403_names_it_and_is_audited(client: Client) -> None:
    cast = the_cast()

    response = client.get("/api/v1/projects", headers=bearer(cast.owner, "jobs:write"))

    assert response.status_code == 403
    body = problem(response)
    assert (body["code"], body["scope"]) == ("scope-missing", "projects:read")
    event = AuditEvent.objects.get(outcome="denied")
    assert (event.action, event.actor, event.request_id) == ("apitoken.scope", cast.owner, body["request_id"])
    assert "projects:read" in event.reason


def test_a_site_role_does_not_widen_a_token(client: Client) -> None:
    cast = the_cast()

    assert client.get("/api/v1/audit", headers=bearer(cast.admin, "jobs:read")).status_code == 403
    assert client.get("/api/v1/audit", headers=bearer(cast.admin, "audit:read")).status_code == 200


def test_a_token_held_to_a_project_sees_only_that(client: Client) -> None:
    cast = the_cast()
    ProjectFactory(slug="other", member=cast.owner)
    headers = bearer(cast.owner, "projects:read", project=cast.project)

    assert [p["slug"] for p in client.get("/api/v1/projects", headers=headers).json()["results"]] == [
        "vision"
    ]
    assert client.get("/api/v1/projects/other", headers=headers).status_code == 404
    assert client.get("/api/v1/me", headers=headers).json()["roles"] == {"vision": "member"}


def test_one_request_does_not_leave_its_token_to_the_next(client: Client) -> None:
    cast = the_cast()
    ProjectFactory(slug="other", member=cast.owner)
    client.get("/api/v1/me", headers=bearer(cast.owner, "projects:read", project=cast.project))

    both = client.get("/api/v1/projects", headers=bearer(cast.owner, "projects:read")).json()["results"]

    assert [p["slug"] for p in both] == ["other", "vision"]


def test_the_audit_row_names_the_token_and_the_request(client: Client) -> None:
    cast = the_cast()
    headers = bearer(cast.owner, "tokens:write", "jobs:read") | {"X-Request-ID": "from-the-caller-1"}

    client.post(
        "/api/v1/tokens",
        {"name": "x", "scopes": ["jobs:read"]},
        content_type="application/json",
        headers=headers,
    )

    event = AuditEvent.objects.latest("id")
    used = ApiToken.objects.get(name="a test")
    assert (event.action, event.token_prefix, event.request_id) == (
        "token.issue",
        used.prefix,
        "from-the-caller-1",
    )


def test_a_session_needs_the_csrf_token_to_write() -> None:
    cast = the_cast()
    client = Client(enforce_csrf_checks=True)
    client.force_login(cast.owner, backend="accounts.backends.PasswordBackend")
    body = {"name": "x", "scopes": ["jobs:read"]}

    assert client.get("/api/v1/me").status_code == 200
    assert client.post("/api/v1/tokens", body, content_type="application/json").status_code == 403
    assert not ApiToken.objects.exists()


def test_a_session_needs_no_scopes() -> None:
    cast = the_cast()
    client = Client()
    client.force_login(cast.owner, backend="accounts.backends.PasswordBackend")

    me = client.get("/api/v1/me").json()

    assert (me["username"], me["scopes"], me["token"]) == ("owner", None, None)
    response = client.post(
        "/api/v1/tokens", {"name": "x", "scopes": ["admin"]}, content_type="application/json"
    )
    assert response.status_code == 201


def test_basic_authentication_is_no_door(client: Client) -> None:
    import base64

    the_cast()
    basic = base64.b64encode(f"owner:{PASSWORD}".encode()).decode()

    assert client.get("/api/v1/me", headers={"Authorization": f"Basic {basic}"}).status_code == 401


def test_a_token_is_not_taken_from_the_address(client: Client) -> None:
    cast = the_cast()

    assert client.get(f"/api/v1/me?token={a_token(cast.owner, 'admin')}").status_code == 401
