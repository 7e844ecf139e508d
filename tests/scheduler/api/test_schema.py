"""The OpenAPI schema: complete, served offline, and fuzzed: answers are as it says, and none is a 500."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from django.core.management import call_command
from django.core.signals import request_finished, request_started
from django.db import close_old_connections
from django.urls import URLPattern, URLResolver, get_resolver
from drf_spectacular.drainage import GENERATOR_STATS
from hypothesis import HealthCheck, Phase, given, seed, settings
from rest_framework.test import APIClient

from config.wsgi import application
from tests.scheduler.api.conftest import Api
from tests.scheduler.portal import Portal
from tests.support.factories import Cast, bearer

#: Each operation gets so many requests of each kind from each who signs in: 2, or 13 with `thorough`.
EXAMPLES = max(settings().max_examples // 30, 1)

#: They hold their call open or answer agents, whose own tests throw rubbish at them.
NOT_FUZZED = re.compile(r"^/api/v1/agent/")


def test_the_schema_is_generated_without_a_warning(
    db: None, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The line of each class would be looked up in its source for warnings that there are not: half of the time.
    monkeypatch.setattr(GENERATOR_STATS, "enable_trace_lineno", lambda: None)
    call_command("spectacular", "--fail-on-warn", "--validate", "--file", str(tmp_path / "schema.yml"))


def test_every_route_of_the_api_is_described(db: None) -> None:
    described = set(APIClient().get("/api/v1/schema", headers={"Accept": "application/json"}).json()["paths"])
    internal = {"/api/v1/schema", "/api/v1/docs", "/api/v1/"}

    routes = {
        _normal(route) for route in _routes(get_resolver().url_patterns) if route.startswith("/api/v1/")
    }

    missing = {route for route in routes - internal if not NOT_FUZZED.match(route)} - {
        _normal(p) for p in described
    }
    assert missing == set()


def _routes(patterns: list[Any], prefix: str = "/") -> list[str]:
    found = []
    for pattern in patterns:
        route = prefix + str(pattern.pattern).lstrip("^").rstrip("$")
        if isinstance(pattern, URLResolver):
            found += _routes(pattern.url_patterns, route)
        elif isinstance(pattern, URLPattern):
            found.append(route)
    return found


def _normal(route: str) -> str:
    """Parameters of all spellings become `{}`."""
    route = re.sub(r"\(\?P<\w+>(?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)", "{}", route)
    route = re.sub(r"<[^>]*>|\{[^}]*\}", "{}", route).replace("\\", "")
    return re.sub(r"\{\}$", "{}", route).rstrip("/?") if not route.endswith("/v1/{}") else "/api/v1/"


def test_the_docs_come_from_this_server_alone(db: None) -> None:
    page = APIClient().get("/api/v1/docs").content.decode()

    assert "swagger-ui" in page
    assert re.findall(r"""(?:src|href)=["'](?:https?:)?//""", page) == []
    # The content policy lets nothing inside a page run.
    assert re.findall(r"<style|<script(?![^>]* src=)", page) == []
    script = re.findall(r'<script src="(/api/v1/docs[^"]+)">', page)[0]
    assert "SwaggerUIBundle(" in APIClient().get(script).content.decode()


@cache
def described() -> Any:
    """The same for whoever asks; what it takes to make requests from it is worked out once."""
    import schemathesis  # takes a worker half a second: only the one that has this file needs it

    return schemathesis.openapi.from_wsgi("/api/v1/schema", application)


@pytest.fixture
def schema(portal: Portal) -> Iterator[Any]:
    portal.submit(name="there")
    # A real WSGI call ends with closing connections; here they belong to the test.
    for signal in (request_started, request_finished):
        signal.disconnect(close_old_connections)
    yield described()
    for signal in (request_started, request_finished):
        signal.connect(close_old_connections)


@pytest.mark.parametrize("who", ["owner", "operator", None])
def test_no_request_makes_us_fail(schema: Any, cast: Cast, portal: Portal, who: str | None) -> None:
    from schemathesis import GenerationMode

    # The client of the fuzzer does not unpack what it gets.
    headers = {"Accept-Encoding": "identity", **(bearer(getattr(cast, who), "admin") if who else {})}
    failures: list[str] = []
    operations = 0

    for found in schema.get_all_operations():
        operation = found.ok()
        if NOT_FUZZED.match(operation.path):
            continue
        operations += 1
        for mode in GenerationMode:
            failures += _fuzz(operation, mode, headers, who)

    assert operations > 40
    assert failures == []


def _fuzz(operation: Any, mode: Any, headers: dict[str, str], who: str | None) -> list[str]:
    failures: list[str] = []

    @seed(f"{who}")  # nobody is asked what another was asked already
    @settings(
        max_examples=EXAMPLES if who else 1,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def ask(case: Any) -> None:
        case.headers = {**{k: v for k, v in (case.headers or {}).items() if k != "Authorization"}, **headers}
        answer = case.call()
        if answer.status_code >= 500:
            failures.append(f"{operation.label}: {answer.status_code} for {case.as_curl_command()[:400]}")
        elif not who and answer.status_code < 400 and operation.path != "/api/v1/schema":
            failures.append(f"{operation.label}: {answer.status_code} for nobody")
        elif different := _differences(case, answer):
            failures.append(
                f"{operation.label}: {answer.status_code}: {different} for {case.as_curl_command()[:300]}"
            )
        elif answer.status_code >= 400 and answer.headers["content-type"] != ["application/problem+json"]:
            failures.append(f"{operation.label}: {answer.headers['content-type']} for {answer.status_code}")

    ask()
    return failures


@cache
def conformance() -> list[Any]:
    """What each answer has to have as the document says it."""
    from schemathesis.specs.openapi import checks

    return [
        checks.status_code_conformance,
        checks.content_type_conformance,
        checks.response_headers_conformance,
        checks.response_schema_conformance,
        checks.allow_header_conformance,
    ]


def _differences(case: Any, answer: Any) -> str:
    """Where an answer is not as the document describes it; "" where it is."""
    try:
        case.validate_response(answer, checks=conformance())
    except (AssertionError, BaseExceptionGroup) as failed:
        found = getattr(failed, "exceptions", (failed,))
        return "; ".join(str(one)[:300] for one in found)
    return ""


def test_the_schema_says_what_a_submission_answers(api: Api, cast: Cast) -> None:
    described = APIClient().get("/api/v1/schema", headers={"Accept": "application/json"}).json()
    fields = described["components"]["schemas"]["Job"]["properties"]

    answer = api(cast.owner).post("/api/v1/jobs", {"command": "true"}).json()

    assert set(fields) == set(answer)
