"""Projects, members and tokens through the API: shapes, refusals, and how many queries."""

from __future__ import annotations

import json

import pytest
from django.test import Client

from accounts.models import ApiToken, AuditEvent, Membership
from tests.support.factories import MembershipFactory, ProjectFactory, bearer, the_cast

pytestmark = pytest.mark.django_db


def send(client: Client, method: str, path: str, headers: dict, body: object = None):
    return client.generic(
        method,
        f"/api/v1/{path}",
        data="" if body is None else json.dumps(body),
        content_type="application/json",
        headers=headers,
    )


def test_a_project_in_full(client: Client) -> None:
    cast = the_cast()
    organization = cast.project.organization

    body = send(client, "GET", "projects/vision", bearer(cast.lead, "projects:read")).json()

    assert body.pop("created_at").endswith("Z")
    assert body == {
        "id": cast.project.pk,
        "slug": "vision",
        "name": "Vision",
        "description": "",
        "organization": {"id": organization.pk, "slug": organization.slug, "name": organization.name},
        "active": True,
        "role": "lead",
        "generation": 1,
    }


@pytest.mark.parametrize("count", [1, 3])
def test_the_list_takes_the_same_queries_for_one_and_for_three(
    client: Client, count: int, django_assert_num_queries
) -> None:
    cast = the_cast()
    for _ in range(count - 1):
        ProjectFactory(member=cast.owner)
    headers = bearer(cast.owner, "projects:read")
    send(client, "GET", "projects", headers)

    with django_assert_num_queries(3):  # token; projects; roles
        response = send(client, "GET", "projects", headers)

    assert len(response.json()["results"]) == count
    assert set(response.json()) == {"results", "next", "previous"}


def test_pages_follow_one_another(client: Client) -> None:
    cast = the_cast()
    for number in range(4):
        ProjectFactory(member=cast.owner, slug=f"p{number}", name=f"P{number}")
    headers = bearer(cast.owner, "projects:read")

    first = send(client, "GET", "projects?limit=3", headers).json()
    second = client.get(first["next"], headers=headers).json()

    assert [p["slug"] for p in first["results"] + second["results"]] == ["p0", "p1", "p2", "p3", "vision"]
    assert second["next"] is None


def test_a_lead_manages_members(client: Client) -> None:
    cast = the_cast()
    headers = bearer(cast.lead, "projects:write")

    added = send(client, "POST", "projects/vision/members", headers, {"user": "stranger", "role": "viewer"})
    changed = send(client, "PATCH", "projects/vision/members/stranger", headers, {"role": "member"})
    members = send(client, "GET", "projects/vision/members", headers).json()["results"]
    removed = send(client, "DELETE", "projects/vision/members/stranger", headers)

    assert (added.status_code, changed.status_code, removed.status_code) == (201, 200, 204)
    assert {m["user"]: m["role"] for m in members} == {
        "colleague": "member", "lead": "lead", "owner": "member", "stranger": "member", "viewer": "viewer",
    }  # fmt: skip
    assert not Membership.objects.filter(project=cast.project, user=cast.stranger).exists()


@pytest.mark.parametrize("count", [1, 3])
def test_members_take_the_same_queries_for_one_and_for_three(
    client: Client, count: int, django_assert_num_queries
) -> None:
    cast = the_cast()
    for _ in range(count - 1):
        MembershipFactory(project=cast.project)
    headers = bearer(cast.owner, "projects:read")
    send(client, "GET", "projects/vision/members", headers)

    with django_assert_num_queries(3):  # token; project; members
        send(client, "GET", "projects/vision/members", headers)


@pytest.mark.parametrize(
    ("path", "method", "body", "field", "words"),
    [
        ("projects/vision/members", "POST", {"usr": "stranger"}, "usr", "Did you mean user?"),
        ("projects/vision/members", "POST", {"user": "nobody"}, "user", "nobody"),
        ("projects/vision/members", "POST", {"user": "stranger", "role": "king"}, "role", "king"),
        ("projects/vision/members", "POST", {"user": {"a": 1}}, "user", ""),
        ("projects/vision/members/owner", "PATCH", {"expires_at": "yesterday"}, "expires_at", "format"),
        ("projects/vision/members/owner", "PATCH", {"expires_at": "2001-01-01T00:00:00Z"}, "expires_at", "future"),
        ("projects/vision", "PATCH", {"slug": "other"}, "slug", "no such field"),
        ("projects/vision", "PATCH", {"name": ""}, "name", "blank"),
    ],
)  # fmt: skip
def test_bad_input_names_its_field(
    client: Client, path: str, method: str, body: dict, field: str, words: str
) -> None:
    cast = the_cast()

    response = send(client, method, path, bearer(cast.lead, "projects:write"), body)

    assert response.status_code == 422, response.content
    assert response["Content-Type"] == "application/problem+json"
    errors = response.json()["errors"]
    assert [error["field"] for error in errors] == [field]
    assert words in errors[0]["message"]
    assert not AuditEvent.objects.exclude(action="token.issue").exists()


@pytest.mark.parametrize("ref", ["%00", "🦆", "9" * 30, "..", "elsewhere", "%FF", "a b"])
def test_odd_names_are_simply_not_there(client: Client, ref: str) -> None:
    cast = the_cast()
    headers = bearer(cast.lead, "projects:write")

    assert send(client, "GET", f"projects/{ref}", headers).status_code == 404
    assert send(client, "DELETE", f"projects/vision/members/{ref}", headers).status_code == 404


def test_a_refusal_is_audited_with_the_request(client: Client) -> None:
    cast = the_cast()

    response = send(
        client, "PATCH", "projects/vision", bearer(cast.viewer, "projects:write"), {"name": "Mine"}
    )

    assert response.status_code == 403
    event = AuditEvent.objects.get(outcome="denied")
    assert (event.action, event.actor, event.project) == ("project.manage", cast.viewer, cast.project)
    assert event.request_id == response.json()["request_id"] == response["X-Request-ID"]


# ---------------------------------------------------------------- tokens


def test_a_token_is_shown_once_and_never_again(client: Client) -> None:
    cast = the_cast()
    headers = bearer(cast.owner, "tokens:write", "jobs:read")

    made = send(
        client,
        "POST",
        "tokens",
        headers,
        {"name": "ci", "scopes": ["jobs:read"], "days": 7, "project": "vision"},
    )

    assert made.status_code == 201
    assert made["Cache-Control"] == "no-store"
    body = made.json()
    assert body["token"].startswith(f"muster_pat_{body['prefix']}_")
    assert (body["name"], body["scopes"], body["project"], body["user"]) == (
        "ci",
        ["jobs:read"],
        "vision",
        "owner",
    )
    later = send(client, "GET", f"tokens/{body['id']}", headers)
    assert "token" not in later.json()
    secret = body["token"].rsplit("_", 1)[1]
    assert secret not in later.content.decode()
    assert secret not in send(client, "GET", "tokens", headers).content.decode()


def test_a_revoked_token_stops_at_once(client: Client) -> None:
    cast = the_cast()
    headers, other = bearer(cast.owner, "tokens:write"), bearer(cast.owner, "projects:read")
    prefix = other["Authorization"].split("_")[2]

    assert send(client, "GET", "me", other).status_code == 200
    assert (
        send(client, "DELETE", f"tokens/{ApiToken.objects.get(prefix=prefix).pk}", headers).status_code == 204
    )
    assert send(client, "GET", "me", other).status_code == 401


def test_a_token_cannot_make_a_stronger_one(client: Client) -> None:
    cast = the_cast()

    response = send(
        client,
        "POST",
        "tokens",
        bearer(cast.admin, "tokens:write", "jobs:read"),
        {"name": "x", "scopes": ["admin"]},
    )

    assert response.status_code == 403
    assert response.json()["code"] == "token-escalation"
    assert AuditEvent.objects.filter(outcome="denied", actor=cast.admin).count() == 1
    assert ApiToken.objects.count() == 1


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        ({}, ["name", "scopes"]),
        ({"name": "x", "scopes": []}, ["scopes"]),
        ({"name": "x", "scopes": ["fly", "jobs:raed"]}, ["scopes", "scopes"]),
        ({"name": "x", "scopes": ["jobs:read"], "days": 366}, ["days"]),
        ({"name": "x", "scopes": ["jobs:read"], "days": True}, ["days"]),
        ({"name": "🦆" * 121, "scopes": ["jobs:read"]}, ["name"]),
        ({"name": "x", "scopes": "jobs:read"}, ["scopes"]),
        ([], [""]),
    ],
)  # fmt: skip
def test_a_wrong_token_request_names_every_field(client: Client, body: object, fields: list[str]) -> None:
    cast = the_cast()

    response = send(client, "POST", "tokens", bearer(cast.owner, "admin"), body)

    assert response.status_code == 422, response.content
    assert [error["field"] for error in response.json()["errors"]] == fields
    assert ApiToken.objects.count() == 1


def test_an_unknown_project_of_a_token_is_404(client: Client) -> None:
    cast = the_cast()

    response = send(
        client,
        "POST",
        "tokens",
        bearer(cast.owner, "admin"),
        {"name": "x", "scopes": ["jobs:read"], "project": "elsewhere"},
    )

    assert response.status_code == 404
