"""Every route of this app, tried by everybody: who gets what."""

from __future__ import annotations

from copy import deepcopy

import pytest
from django.test import Client
from django.urls import URLPattern

from accounts.api import urls
from tests.support.factories import Cast, OrganizationFactory, UserFactory, bearer, the_cast
from tests.support.kept import made_once

pytestmark = pytest.mark.django_db

WHO = ("owner", "colleague", "lead", "viewer", "stranger", "operator", "auditor", "admin")
NEW_PROJECT = {"organization": "physics", "name": "Dark Matter"}
NEW_MEMBER = {"user": "newcomer", "role": "member"}
NEW_TOKEN = {"name": "ci", "scopes": ["jobs:read"]}
NEW_SECRET = {"value": "not a real key"}

#: (method, route, body): the status for each of WHO, in that order.
MATRIX: dict[tuple[str, str, str], tuple[dict | None, str]] = {
    ("GET", "me", "api-me"): (None, "200 200 200 200 200 200 200 200"),
    ("GET", "projects", "project-list"): (None, "200 200 200 200 200 200 200 200"),
    ("POST", "projects", "project-list"): (NEW_PROJECT, "403 403 403 403 403 403 403 201"),
    ("GET", "projects/vision", "project-detail"): (None, "200 200 200 200 404 200 200 200"),
    ("PATCH", "projects/vision", "project-detail"): ({"name": "Sight"}, "403 403 200 403 404 403 403 200"),
    ("POST", "projects/vision/close", "project-close"): ({}, "403 403 403 403 404 403 403 200"),
    ("POST", "projects/vision/reopen", "project-reopen"): ({}, "403 403 403 403 404 403 403 200"),
    ("GET", "projects/vision/members", "project-members"): (None, "200 200 200 200 404 200 200 200"),
    ("POST", "projects/vision/members", "project-members"): (NEW_MEMBER, "403 403 201 403 404 403 403 201"),
    ("PATCH", "projects/vision/members/colleague", "project-member"): (
        {"role": "viewer"}, "403 403 200 403 404 403 403 200",
    ),
    ("DELETE", "projects/vision/members/colleague", "project-member"): (
        None, "403 204 204 403 404 403 403 204",
    ),
    ("GET", "tokens", "token-list"): (None, "200 200 200 200 200 200 200 200"),
    ("POST", "tokens", "token-list"): (NEW_TOKEN, "201 201 201 201 201 201 201 201"),
    ("GET", "tokens/{token}", "token-detail"): (None, "200 404 404 404 404 404 404 200"),
    ("DELETE", "tokens/{token}", "token-detail"): (None, "204 404 404 404 404 404 404 204"),
    ("GET", "secrets", "api-secrets"): (None, "200 200 200 200 200 200 200 200"),
    ("PUT", "secrets/wandb", "api-secret"): (NEW_SECRET, "201 201 201 201 201 201 201 201"),
    ("DELETE", "secrets/wandb", "api-secret"): (None, "404 404 404 404 404 404 404 404"),
    ("GET", "projects/vision/secrets", "api-project-secrets"): (None, "200 200 200 403 404 403 403 200"),
    ("PUT", "projects/vision/secrets/wandb", "api-project-secret"): (
        NEW_SECRET, "403 403 201 403 404 403 403 201",
    ),
    ("DELETE", "projects/vision/secrets/wandb", "api-project-secret"): (
        None, "403 403 404 403 404 403 403 404",
    ),
    ("GET", "audit", "audit-list"): (None, "403 403 403 403 403 403 200 200"),
    ("GET", "audit/{event}", "audit-detail"): (None, "403 403 403 403 403 403 200 200"),
    ("GET", "audit/check", "audit-check"): (None, "403 403 403 403 403 403 404 404"),
}  # fmt: skip


def a_cast() -> Cast:
    OrganizationFactory(slug="physics")
    UserFactory(username="newcomer")
    return the_cast()


one_cast = made_once(a_cast)


@pytest.fixture
def cast(one_cast: Cast, db: None) -> Cast:
    return deepcopy(one_cast)


def test_every_route_has_a_row_here() -> None:
    routes = {pattern.name for pattern in urls.urlpatterns if isinstance(pattern, URLPattern)}

    assert routes == {name for _, _, name in MATRIX}


@pytest.mark.parametrize("who", WHO)
@pytest.mark.parametrize(
    ("route", "row"), MATRIX.items(), ids=lambda value: " ".join(value[:2]) if len(value) == 3 else ""
)
def test_who_gets_what(cast: Cast, client: Client, who: str, route: tuple[str, str, str], row: tuple) -> None:
    method, path, _ = route
    body, statuses = row
    token = _a_token_and_an_event(cast)
    headers = bearer(cast.people()[who], "admin")

    response = client.generic(
        method,
        f"/api/v1/{path.format(**token)}",
        data=_json(body),
        content_type="application/json",
        headers=headers,
    )

    assert response.status_code == int(statuses.split()[WHO.index(who)]), response.content


@pytest.mark.parametrize("route", MATRIX)
def test_nobody_gets_nothing(cast: Cast, client: Client, route: tuple[str, str, str]) -> None:
    method, path, _ = route
    ids = _a_token_and_an_event(cast)

    response = client.generic(
        method, f"/api/v1/{path.format(**ids)}", data=_json(MATRIX[route][0]), content_type="application/json"
    )

    assert response.status_code == 401
    assert response["WWW-Authenticate"] == 'Bearer realm="muster"'
    assert response.json()["code"] == "not-signed-in"


def _a_token_and_an_event(cast: Cast) -> dict[str, int]:
    from accounts.models import AuditEvent
    from accounts.services.tokens import issue_token

    token, _ = issue_token(user=cast.owner, by=cast.owner, name="laptop", scopes=["jobs:read"])
    return {"token": token.pk, "event": AuditEvent.objects.latest("id").pk}


def _json(body: dict | None) -> str:
    import json

    return "" if body is None else json.dumps(body)
