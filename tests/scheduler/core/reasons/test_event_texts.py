"""Texts of events that follow from their kind and details."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler.core.reasons.event_texts import details_of, text_of

WHOLE = {"attempt": "succeeded", "exit_code": 0}


@pytest.mark.parametrize(
    ("kind", "details", "text"),
    [
        ("job.scheduled", {"nodes": ["n1", "n2"], "cycle": 3}, "placed on n1, n2"),
        ("job.scheduled", {}, ""),
        ("job.running", {"node": "n1"}, "started on n1"),
        ("job.running", {}, ""),
        ("job.completed", {}, "every task ended with exit code 0"),
        ("job.completed", {"node": "n1"}, "every task ended with exit code 0"),
        ("job.completed", {**WHOLE, "stop_reason": "cancelled"}, ""),
        ("job.failed", {}, ""),
    ],
)
def test_the_usual_sentence(kind: str, details: dict[str, Any], text: str) -> None:
    assert text_of(kind, details) == text


def test_a_sentence_is_no_longer_than_the_column_was() -> None:
    assert len(text_of("job.scheduled", {"nodes": [f"node-{n}" for n in range(200)]})) == 300


@pytest.mark.parametrize(
    ("kind", "because", "stored", "whole"),
    [
        ("job.completed", "", {}, WHOLE),
        ("job.completed", "", {"node": "n1"}, {**WHOLE, "node": "n1"}),
        ("job.completed", "2 of 3 tasks failed", {"node": "n1"}, {"node": "n1"}),
        (
            "job.completed",
            "",
            {"attempt": "succeeded", "exit_code": None},
            {"attempt": "succeeded", "exit_code": None},
        ),
        ("job.failed", "", {}, {}),
    ],
)
def test_details_of_a_usual_end(
    kind: str, because: str, stored: dict[str, Any], whole: dict[str, Any]
) -> None:
    assert details_of(kind, because, stored) == whole
