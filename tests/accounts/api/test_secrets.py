"""Secrets at API and pages: set and deleted by those who may, and never answered."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.http import HttpResponse
from django.test import Client

from accounts.models import AuditEvent, Secret, User
from accounts.services.secrets import set_secret
from infra.storage.sealed import unseal
from tests.support.factories import bearer, the_cast

pytestmark = pytest.mark.django_db

VALUE = "hunter2-hunter2"
OWN, SHARED = "secrets", "projects/vision/secrets"


def send(person: User, method: str, path: str, body: Any = None, **more: Any) -> HttpResponse:
    headers = bearer(person, *more.pop("scopes", ["secrets:write"]), **more)
    return Client().generic(
        method,
        f"/api/v1/{path}",
        "" if body is None else json.dumps(body),
        "application/json",
        headers=headers,
    )


def test_a_secret_is_set_listed_set_again_and_deleted() -> None:
    cast = the_cast()
    for path, person in ((OWN, cast.owner), (SHARED, cast.lead)):
        made = send(person, "PUT", f"{path}/wandb", {"value": VALUE})
        assert (made.status_code, made.json()["version"]) == (201, 1)
        assert set(made.json()) == {"name", "version", "created_at", "set_at", "set_by"}
        again = send(person, "PUT", f"{path}/wandb", {"value": VALUE + "\n"})
        assert (again.status_code, again.json()["version"]) == (200, 2)
        row = Secret.objects.get()
        assert unseal(bytes(row.sealed), row.about) == VALUE + "\n"  # as it was sent

        listed = send(person, "GET", path)
        assert [(one["name"], one["set_by"]) for one in listed.json()["results"]] == [
            ("wandb", person.username)
        ]
        assert VALUE not in (made.content + again.content + listed.content).decode()
        assert send(person, "GET", f"{path}/wandb").status_code == 405  # nothing to read there

        assert send(person, "DELETE", f"{path}/wandb").status_code == 204
        assert send(person, "DELETE", f"{path}/wandb").status_code == 404


def test_who_may_at_the_doors_of_a_project() -> None:
    cast = the_cast()
    set_secret(owner=cast.project, name="wandb", value=VALUE, by=cast.lead)
    status = {
        name: tuple(
            send(person, method, path, body).status_code
            for method, path, body in (
                ("GET", SHARED, None),
                ("PUT", f"{SHARED}/wandb", {"value": VALUE}),
                ("DELETE", f"{SHARED}/other", None),
            )
        )
        for name, person in cast.people().items()
    }  # fmt: skip
    assert status == {
        "owner": (200, 403, 403), "colleague": (200, 403, 403), "lead": (200, 200, 404), "viewer": (403, 403, 403),
        "stranger": (404, 404, 404), "operator": (403, 403, 403), "auditor": (403, 403, 403), "admin": (200, 200, 404),
    }  # fmt: skip
    assert AuditEvent.objects.filter(outcome="denied").exists()
    assert VALUE not in str(list(AuditEvent.objects.values()))


def test_nobody_lists_the_secrets_of_somebody_else() -> None:
    cast = the_cast()
    set_secret(owner=cast.owner, name="mine", value=VALUE, by=cast.owner)

    for name, person in cast.people().items():
        if name != "owner":
            assert send(person, "GET", OWN).json() == {"results": []}
            assert send(person, "DELETE", f"{OWN}/mine").status_code == 404
    assert Secret.objects.count() == 1


def test_tokens_need_the_scope_and_one_held_to_a_project_reaches_no_personal_secret() -> None:
    cast = the_cast()
    assert send(cast.owner, "GET", OWN, scopes=["jobs:write", "projects:write"]).status_code == 403
    for method, path, body in (
        ("GET", OWN, None),
        ("PUT", f"{OWN}/a", {"value": VALUE}),
        ("DELETE", f"{OWN}/a", None),
    ):
        answer = send(cast.owner, method, path, body, project=cast.project)
        assert answer.status_code == 403, answer.content
        assert "limited to one project" in answer.json()["detail"]
    assert send(cast.owner, "GET", SHARED, project=cast.project).status_code == 200


@pytest.mark.parametrize(
    "body",
    [{"value": "short-1"}, {"value": "hunter2\0hunter2"}, {"value": VALUE, "extra": VALUE}, {"vaule": VALUE}, {},
     [VALUE], VALUE, {"value": {"a": VALUE}}, {"value": [VALUE]}, {"value": VALUE * 4000}],
)  # fmt: skip
def test_what_cannot_be_kept_is_refused_without_repeating_it(body: Any) -> None:
    cast = the_cast()
    answer = send(cast.owner, "PUT", f"{OWN}/token", body)

    assert answer.status_code in (400, 422), answer.content
    assert "hunter2" not in answer.content.decode()
    assert "short-1" not in answer.content.decode()
    assert not Secret.objects.exists()


def test_no_idempotency_key_has_a_value_kept() -> None:
    cast = the_cast()
    headers = bearer(cast.owner, "secrets:write") | {"Idempotency-Key": "once"}
    answer = Client().put("/api/v1/secrets/a", {"value": VALUE}, "application/json", headers=headers)

    assert (answer.status_code, answer.json()["code"]) == (400, "idempotency-key-bad")


# ---------------------------------------------------------------- pages


def page(person: User) -> Client:
    client = Client()
    client.force_login(person)
    return client


def test_the_settings_page_takes_a_value_and_shows_the_name() -> None:
    cast = the_cast()
    client = page(cast.owner)
    answer = client.post(
        "/settings/secrets/", {"name": "key", "value": f"{VALUE}\r\nsecond line\r\n"}, follow=True
    )

    row = Secret.objects.get()
    assert unseal(bytes(row.sealed), row.about) == f"{VALUE}\nsecond line\n"
    assert "<code>key</code>" in answer.content.decode()
    assert VALUE not in answer.content.decode()
    assert (
        "key"
        not in page(cast.colleague)
        .get("/settings/")
        .content.decode()
        .split('id="secrets"')[1]
        .split("<form")[0]
    )
    assert page(cast.colleague).post("/settings/secrets/key/delete/").status_code in (302, 404)
    assert Secret.objects.exists()
    client.post("/settings/secrets/key/delete/")
    assert not Secret.objects.exists()


def test_the_projects_page_lets_leads_set_and_members_see_names() -> None:
    cast = the_cast()
    page(cast.lead).post("/projects/vision/secrets/", {"name": "shared-key", "value": VALUE})
    assert Secret.objects.get().project == cast.project
    shown = {
        name: page(person).get("/projects/vision/").content.decode() for name, person in cast.people().items()
    }

    assert {name for name, text in shown.items() if "shared-key" in text} == {
        "owner",
        "colleague",
        "lead",
        "admin",
    }
    assert {name for name, text in shown.items() if 'id="secret-value"' in text} == {"lead", "admin"}
    assert not any(VALUE in text for text in shown.values())
    for person in (cast.owner, cast.viewer, cast.stranger, cast.operator):
        page(person).post("/projects/vision/secrets/", {"name": "other", "value": VALUE})
        page(person).post("/projects/vision/secrets/shared-key/delete/")
    assert [row.name for row in Secret.objects.all()] == ["shared-key"]


def test_a_value_that_is_refused_is_not_on_the_page() -> None:
    cast = the_cast()
    answer = page(cast.owner).post("/settings/secrets/", {"name": "a b", "value": VALUE}, follow=True)

    assert VALUE not in answer.content.decode()
    assert not Secret.objects.exists()
