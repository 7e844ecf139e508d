"""Rules of HTTP that hold at every address of the API: methods, parameters, addresses of new objects, ETags, sizes."""

from __future__ import annotations

import gzip
import re
from functools import cache
from typing import Any

import pytest
from django.conf import settings
from django.test import Client
from django.urls import get_resolver

from infra.api.views import KnownQuery
from tests.infra.api.conformance import NOT_DESCRIBED, document
from tests.scheduler.portal import Portal, a_portal
from tests.support.factories import bearer

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
#: What fills an argument of a path that takes no word.
UUID = "01890000-0000-7000-8000-000000000000"
ARGUMENTS = {"upload": UUID, "checkpoint": UUID, "kind": "project", "name": "N"}


@pytest.fixture
def portal(db: None) -> Portal:
    return a_portal()


@cache
def operations() -> list[tuple[str, str, dict[str, Any]]]:
    """Path with its arguments filled, method, and what the document says of them."""
    paths = document()["paths"]
    return [
        (re.sub(r"\{(\w+)\}", lambda found: ARGUMENTS.get(found[1], "7"), path), method.upper(), operation)
        for path, methods in paths.items()
        for method, operation in methods.items()
        if not NOT_DESCRIBED.match(path)
    ]


def test_a_method_that_an_address_lacks_is_405_for_tokens_of_any_scope(
    client: Client, portal: Portal
) -> None:
    has: dict[str, set[str]] = {}
    for path, method, _ in operations():
        has.setdefault(path, set()).add(method)

    wrong = []
    for path, methods in has.items():
        for method in set(METHODS) - methods:
            answer = client.generic(method, path, headers=bearer(portal.cast.operator, "jobs:read"))
            allowed = set(answer.headers.get("Allow", "").split(", ")) - {"HEAD", "OPTIONS"}
            if (answer.status_code, allowed) != (405, methods):
                wrong.append((method, path, answer.status_code, allowed, methods))

    assert len(has) > 80
    assert wrong == []


def test_options_need_no_scope_beside_those_of_an_address(client: Client, portal: Portal) -> None:
    answer = client.options("/api/v1/jobs:bulk", headers=bearer(portal.cast.owner, "jobs:write"))

    assert (answer.status_code, answer["Allow"]) == (200, "POST, OPTIONS")


def test_a_parameter_that_an_operation_lacks_is_refused_with_those_that_it_has(
    client: Client, portal: Portal
) -> None:
    headers = bearer(portal.cast.operator, "admin")
    wrong = []
    for path, method, operation in operations():
        answer = client.generic(method, f"{path}?projct=vision", headers=headers)
        known = {one["name"] for one in operation.get("parameters", []) if one["in"] == "query"}
        said = answer.json()["errors"][0] if answer.status_code == 400 else {}
        named = set(re.findall(r"\w+", said.get("message", "").partition("known are ")[2]))
        if (said.get("field"), said.get("code"), named) != ("projct", "unknown-filter", known):
            wrong.append((method, path, answer.status_code, named ^ known))

    assert wrong == []


def test_every_view_of_the_api_refuses_unknown_parameters() -> None:
    views = [
        getattr(pattern.callback, "cls", None)
        for pattern in _patterns(get_resolver().url_patterns)
        if pattern.callback is not None
    ]
    ours = {
        view
        for view in views
        if view is not None and re.match(r"(\w+\.)+api\.|config\.system", view.__module__)
    }

    assert len(ours) > 70
    described_elsewhere = {"ApiSchema"}
    assert {view.__name__ for view in ours if not issubclass(view, KnownQuery)} == described_elsewhere


def _patterns(patterns: Any) -> Any:
    for pattern in patterns:
        if hasattr(pattern, "url_patterns"):
            yield from _patterns(pattern.url_patterns)
        else:
            yield pattern


def test_lists_are_sorted_and_counted(client: Client, portal: Portal) -> None:
    headers = bearer(portal.cast.operator, "admin")
    first, second = portal.submit(), portal.submit()

    def names(query: str) -> list[Any]:
        return [
            node["name"] for node in client.get(f"/api/v1/nodes?{query}", headers=headers).json()["results"]
        ]

    assert (names("ordering=name"), names("ordering=-name")) == (["n1", "n2"], ["n2", "n1"])
    page = client.get("/api/v1/nodes?ordering=-name&limit=1&count=true", headers=headers).json()
    assert ([node["name"] for node in page["results"]], page["count"]) == (["n2"], 2)
    following = client.get(page["next"], headers=headers).json()
    assert [node["name"] for node in following["results"]] == ["n1"]
    jobs = client.get("/api/v1/jobs?ordering=number", headers=headers).json()["results"]
    assert [job["number"] for job in jobs] == [first.number, second.number]
    refused = client.get("/api/v1/nodes?ordering=colour", headers=headers)
    assert refused.status_code == 400
    assert refused.json()["errors"][0]["message"] == "Must be one of name, -name."


def test_what_was_created_has_its_address_also_when_the_answer_is_repeated(
    client: Client, portal: Portal
) -> None:
    admin, owner = bearer(portal.cast.admin, "admin"), bearer(portal.cast.owner, "admin")
    made = {
        "/api/v1/jobs": {"command": "true", "project": portal.cast.project.slug},
        "/api/v1/tokens": {"name": "one", "scopes": ["jobs:read"]},
        "/api/v1/projects": {"organization": portal.cast.project.organization.slug, "name": "New one"},
        "/api/v1/slurm/sbatch": {"script": "#!/bin/sh\ntrue\n", "project": portal.cast.project.slug},
    }

    for path, body in made.items():
        headers = admin if path.endswith("projects") else owner
        once = {} if path.endswith("tokens") else {"Idempotency-Key": f"1-{path}"}
        answers = [
            client.post(path, body, content_type="application/json", headers=headers | once) for _ in range(2)
        ]
        assert [answer.status_code for answer in answers] == [201, 201], answers[0].content
        for answer in answers:
            assert client.get(answer["Location"], headers=headers).status_code == 200, path
        assert (answers[0]["Location"] == answers[1]["Location"]) is bool(once)


def test_a_read_that_has_not_changed_is_304(client: Client, portal: Portal) -> None:
    headers = bearer(portal.cast.owner, "admin")
    portal.submit()
    first = client.get("/api/v1/jobs", headers=headers)

    again = client.get("/api/v1/jobs", headers=headers | {"If-None-Match": first["ETag"]})
    portal.submit()
    changed = client.get("/api/v1/jobs", headers=headers | {"If-None-Match": f'"other", {first["ETag"]}'})

    assert (again.status_code, again.content, again["ETag"]) == (304, b"", first["ETag"])
    assert "X-Request-ID" in again.headers
    assert (changed.status_code, len(changed.json()["results"])) == (200, 2)
    assert changed["ETag"] != first["ETag"]


def test_an_etag_for_changes_does_not_stand_for_the_whole_answer(client: Client, portal: Portal) -> None:
    headers = bearer(portal.cast.lead, "admin")
    path = f"/api/v1/projects/{portal.cast.project.slug}"
    first = client.get(path, headers=headers)

    assert first["ETag"].startswith('"project-')
    assert client.get(path, headers=headers | {"If-None-Match": first["ETag"]}).status_code == 200


def test_answers_to_tokens_are_compressed_and_those_to_sessions_never(client: Client, portal: Portal) -> None:
    for _ in range(8):
        portal.submit()
    headers = bearer(portal.cast.owner, "admin")
    plain = client.get("/api/v1/jobs", headers=headers)

    packed = client.get("/api/v1/jobs", headers=headers | {"Accept-Encoding": "br, gzip"})
    unwanted = client.get("/api/v1/jobs", headers=headers | {"Accept-Encoding": "gzip;q=0"})
    client.force_login(portal.cast.owner, backend="accounts.backends.PasswordBackend")
    session = client.get("/api/v1/jobs", headers={"Accept-Encoding": "gzip"})

    assert packed["Content-Encoding"] == "gzip"
    assert gzip.decompress(packed.content) == plain.content
    assert len(packed.content) == int(packed["Content-Length"]) < len(plain.content) / 4
    assert [("Accept-Encoding" in one["Vary"]) for one in (packed, plain)] == [True, True]
    assert [("Content-Encoding" in one.headers) for one in (unwanted, session)] == [False, False]
    assert len(session.json()["results"]) == 8


def test_a_secret_that_is_shown_once_is_not_compressed(client: Client, portal: Portal) -> None:
    headers = bearer(portal.cast.owner, "admin") | {"Accept-Encoding": "gzip"}
    body = {"name": "x" * 100, "scopes": ["jobs:read"]}

    made = client.post("/api/v1/tokens", body, content_type="application/json", headers=headers)

    assert made.status_code == 201
    assert "Content-Encoding" not in made.headers


def test_answers_say_how_many_requests_are_left(client: Client, portal: Portal) -> None:
    settings.MUSTER_API_RATE, settings.MUSTER_API_BURST, kept = (
        0.5,
        5,
        (
            settings.MUSTER_API_RATE,
            settings.MUSTER_API_BURST,
        ),
    )
    headers = bearer(portal.cast.owner, "admin")
    try:
        answers = [client.get("/api/v1/me", headers=headers) for _ in range(6)]
    finally:
        settings.MUSTER_API_RATE, settings.MUSTER_API_BURST = kept

    assert [answer.status_code for answer in answers] == [200] * 5 + [429]
    assert answers[0]["RateLimit-Policy"] == '"default";q=5;w=10'
    assert [answer["RateLimit"] for answer in answers[::4]] == ['"default";r=4;t=2', '"default";r=0;t=10']
    assert answers[5]["RateLimit"] == '"default";r=0;t=10'
