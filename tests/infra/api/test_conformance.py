"""The comparison of answers with the API's document finds what differs."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.http import HttpResponse

from tests.infra.api.conformance import PROBLEM, faults_of

EMPTY = {"results": [], "next": None, "previous": None}
REFUSAL = {
    "type": "about:blank", "title": "No", "status": 404, "detail": "No.", "code": "not_found", "errors": [],
    "request_id": "1",
}  # fmt: skip


def answer(body: Any, status: int = 200, kind: str = "application/json") -> HttpResponse:
    return HttpResponse(json.dumps(body), status=status, content_type=kind)


@pytest.mark.parametrize("given", [answer(EMPTY), answer({**REFUSAL, "more": 1}, 404, PROBLEM)])
def test_an_answer_as_described_has_no_faults_and_a_problem_may_say_more(given: HttpResponse) -> None:
    assert faults_of("GET", "/api/v1/queues", given) == []


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (answer({**EMPTY, "more": 1}), "'more' was unexpected"),
        (answer({**EMPTY, "results": [{"nosuch": 1}]}), "is a required property"),
        (answer({**EMPTY, "results": "none"}), "array"),
        (answer(EMPTY, 299), "answers 299"),
        (answer(EMPTY, kind="text/json"), "is 'text/json'"),
        (answer({**REFUSAL, "title": 1}, 404, PROBLEM), "at /title"),
        (answer(REFUSAL, 404), "is 'application/json'"),
    ],
)
def test_what_differs_is_found(given: HttpResponse, found: str) -> None:
    faults = faults_of("GET", "/api/v1/queues", given)

    assert any(found in fault for fault in faults), faults
