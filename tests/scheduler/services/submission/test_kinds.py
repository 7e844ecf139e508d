"""Requests of one kind are read once for all that differ in their own fields only; it shows in nothing but time."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from infra.errors import MusterError
from scheduler.services.submission import parse_request
from scheduler.services.submission.job_spec import JOB, JobSpec
from scheduler.services.submission.parse_request import OWN, OWN_COLUMNS, own_columns, parse_job
from scheduler.services.submission.submitter import Catalogue
from tests.scheduler.portal import Portal, a_portal

pytestmark = pytest.mark.django_db


@pytest.fixture
def portal(db: None) -> Portal:
    return a_portal()


#: Few values of each field, so that many requests have most in common; some of them wrong.
VALUES: dict[str, list[Any]] = {
    "command": ["true", "echo 1", " ", None, "x\x00", 7],
    "script": ["#!/bin/sh\ntrue\n", "true", None],
    "name": ["one", "two", "a\nb", "n" * 201],
    "env": [{"SEED": "1"}, {"SEED": 2}, {"MUSTER_X": "1"}, {"SEED": True}, "A=1", {}],
    "labels": [{"team": "vision"}, {"team": 1}, {"": "x"}, None],
    "working_dir": ["/data", "data", ""],
    "cpu_cores": [1, 1.0, "1", "500m", 0, 64, True],
    "memory": ["1Gi", 1, "many"],
    "gpu_count": [0, 1, 99],
    "tasks": [1, 2, "2", 0],
    "nodes": [1, 2, 3],
    "queue": ["default", "no-such-queue", 1],
    "priority": [50, "HIGH", "LOW", 99, "50"],
    "array": ["0-2", "2-0"],
    "begin_at": ["2030-01-01T00:00:00Z"],
    "deadline": ["2031-01-01T00:00:00Z", "2001-01-01T00:00:00Z"],
    "depends_on": [[], ["nonsense"], [999999]],
    "hold": [True, "no"],
    "extras": [{"b": 1, "a": 2}, {"a": -1}],
    "gpus": [1],
}
REQUESTS = st.lists(
    st.lists(st.sampled_from(sorted(VALUES)), max_size=4, unique=True).flatmap(
        lambda names: st.fixed_dictionaries(
            {"command": st.sampled_from(["true", "echo 1"])}
            | {name: st.sampled_from(VALUES[name]) for name in names}
        )
    ),
    min_size=2,
    max_size=8,
)


def read(payload: dict[str, Any], portal: Portal, catalogue: Catalogue | None) -> Any:
    """The columns of the row and what else is known of the request, or the whole refusal."""
    try:
        spec = parse_job(payload, by=portal.cast.owner, catalogue=catalogue, under="jobs/3/", in_batch=True)
    except MusterError as refused:
        return (
            type(refused),
            refused.message,
            refused.code,
            refused.way_out,
            refused.problems,
            refused.refused,
        )
    return spec.kind.columns, dict(zip(OWN_COLUMNS, own_columns(spec), strict=True)), spec


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
@given(requests=REQUESTS)
def test_a_list_is_read_as_its_requests_are_one_by_one(
    portal: Portal, requests: list[dict[str, Any]]
) -> None:
    together = Catalogue(portal.cast.owner)

    for payload in [*requests, *requests]:
        assert read(payload, portal, together) == read(payload, portal, None)


def test_a_sweep_reads_what_its_requests_share_once(portal: Portal, monkeypatch: pytest.MonkeyPatch) -> None:
    whole: list[Any] = []
    real = JOB.read_into

    def counted(draft: JobSpec, inputs: Any, steps: Any = None) -> None:
        whole.append(steps is None)
        real(draft, inputs, steps)

    monkeypatch.setattr(JOB, "read_into", counted)
    catalogue = Catalogue(portal.cast.owner)
    specs = [
        parse_job(
            {"command": f"run {n}", "env": {"SEED": n}, "cpu_cores": 2},
            by=portal.cast.owner,
            catalogue=catalogue,
        )
        for n in range(5)
    ]

    assert whole == [True, False, False, False, False]
    assert [spec.command for spec in specs] == [f"run {n}" for n in range(5)]
    assert [spec.name for spec in specs] == [f"run {n}" for n in range(5)]
    assert len({id(spec.kind) for spec in specs}) == 1


def test_what_the_clock_decides_is_read_each_time(portal: Portal) -> None:
    catalogue = Catalogue(portal.cast.owner)
    parse_job(
        {"command": "true", "deadline": "2030-01-01T00:00:00Z"}, by=portal.cast.owner, catalogue=catalogue
    )

    assert not catalogue.kinds


def test_no_rule_compares_an_own_field_with_another() -> None:
    for rule in JOB.rules:
        assert set(rule.fields) <= set(OWN) or set(rule.fields).isdisjoint(OWN), rule.name
    with pytest.raises(LookupError):
        JOB.steps_of(["command"])


def test_so_many_kinds_are_kept_and_no_more(portal: Portal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parse_request, "MOST_KINDS", 2)
    catalogue = Catalogue(portal.cast.owner)
    for memory in range(1, 5):
        parse_job({"command": "true", "memory": f"{memory}Mi"}, by=portal.cast.owner, catalogue=catalogue)

    assert len(catalogue.kinds) == 2


def test_a_thousand_requests_ask_as_often_as_one(portal: Portal) -> None:
    counts = []
    for size in (1, 40):
        catalogue = Catalogue(portal.cast.owner)
        with CaptureQueriesContext(connection) as asked:
            for n in range(size):
                parse_job({"command": f"run {n}"}, by=portal.cast.owner, catalogue=catalogue)
        counts.append(len(asked))

    assert counts[0] >= counts[1]
