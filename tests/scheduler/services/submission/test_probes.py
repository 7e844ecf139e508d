"""Probes in a job request: what each kind needs, and what the job's row keeps."""

from __future__ import annotations

from typing import Any

import pytest

from infra.errors import InvalidInput
from scheduler.services.submission.fields import Inputs
from scheduler.services.submission.fields_restart import read_probes
from tests.support.agents import World


def read(*probes: Any) -> tuple[list[dict[str, Any]], dict[str, str]]:
    inputs = Inputs({"probes": list(probes)})
    return read_probes(inputs, "probes"), {problem.field: problem.code for problem in inputs.problems}


def test_the_row_keeps_a_probe_with_all_defaults() -> None:
    found, problems = read(
        {"kind": "http", "port": 8000},
        {"kind": "file", "path": "beat", "limit": "10m", "every": "1m", "start_after": "5m", "name": "beat"},
    )
    assert problems == {}
    assert found == [
        {"kind": "http", "every": 30, "timeout": 10, "failures": 3, "start_after": 0, "path": "/", "port": 8000},
        {
            "kind": "file", "every": 60, "timeout": 10, "failures": 1, "start_after": 300, "name": "beat",
            "path": "beat", "limit": 600,
        },
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("probe", "field", "code"),
    [
        ({}, "kind", "required"),
        ({"kind": "command"}, "command", "required"),
        ({"kind": "http"}, "port", "required"),
        ({"kind": "file", "limit": 5}, "path", "required"),
        ({"kind": "output"}, "limit", "required"),
        ({"kind": "output", "limit": 5, "timeout": 3}, "timeout", "inconsistent"),
        ({"kind": "gpu", "limit": 5, "command": "true"}, "command", "inconsistent"),
        ({"kind": "http", "port": 1, "path": "no-slash"}, "path", "bad-path"),
        ({"kind": "http", "port": 1, "path": "/a b"}, "path", "bad-path"),
        ({"kind": "http", "port": 1, "host": "elsewhere"}, "host", "unknown-field"),
        ("true", "", "not-an-object"),
    ],
)
def test_a_probe_that_cannot_be_run_is_refused(probe: Any, field: str, code: str) -> None:
    _, problems = read(probe)
    assert problems == {f"probes/0/{field}".rstrip("/"): code}


def test_no_more_probes_than_fit() -> None:
    _, problems = read(*[{"kind": "output", "limit": 5}] * 5)
    assert list(problems) == ["probes"]


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"probes": [{"kind": "gpu", "limit": 60}]}, "needs a job with GPUs"),
        (
            {"probes": [{"kind": "output", "limit": 60}], "array": "0-9", "elements_per_job": 5},
            "have no probes",
        ),
    ],
)
def test_probes_fit_the_job(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        World.make().submit("true", **fields)
    assert says in str([problem.message for problem in refused.value.problems])
