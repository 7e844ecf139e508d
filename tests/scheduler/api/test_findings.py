"""Findings about the API, each tried again at the address where it was found."""

from __future__ import annotations

import gzip

import pytest
import yaml
from django.core.management import call_command

from accounts.models import AuditEvent
from scheduler.models import Job
from tests.infra.api.conformance import DOCUMENT
from tests.scheduler.api.conftest import Api
from tests.scheduler.portal import Portal
from tests.support.factories import Cast

API = "/api/v1"
JOBS = f"{API}/jobs"


def test_finding_13_an_operators_hold_is_no_hold_that_the_owner_releases(api: Api, cast: Cast) -> None:
    owner, operator = api(cast.owner), api(cast.operator)
    number = owner.post(JOBS, {"command": "true", "hold": True}).json()["number"]

    assert operator.post(f"{JOBS}/{number}/hold", {"reason": "looks wrong"}).status_code == 200

    assert AuditEvent.objects.filter(action="job.hold", actor=cast.operator).count() == 1
    assert owner.post(f"{JOBS}/{number}/release").status_code in (403, 409)
    assert owner.get(f"{JOBS}/{number}").json()["state_detail"] == "held"
    assert operator.post(f"{JOBS}/{number}/release").status_code == 200


def test_finding_14_and_37_a_waiting_job_is_changed_in_place_and_a_missing_verb_is_405(
    api: Api, cast: Cast
) -> None:
    owner = api(cast.owner, "jobs:read", "jobs:write")
    number = owner.post(JOBS, {"command": "true", "hold": True}).json()["number"]

    changed = owner.patch(f"{JOBS}/{number}", {"name": "other", "cpu_cores": 2}, format="json")

    assert (changed.status_code, changed.json()["name"], changed.json()["cpu_cores"]) == (200, "other", 2)
    missing = owner.put(f"{JOBS}/{number}", {"name": "third"}, format="json")
    assert (missing.status_code, missing["Allow"]) == (405, "GET, PATCH, DELETE, HEAD, OPTIONS")


@pytest.mark.django_db
def test_finding_35_the_answer_about_the_audit_trail_is_there_once_it_was_verified(
    api: Api, cast: Cast
) -> None:
    admin = api(cast.admin)
    before = admin.get(f"{API}/audit/check")
    assert (before.status_code, "audit_verify" in before.json()["way_out"]) == (404, True)

    call_command("audit_verify", verbosity=0)

    after = admin.get(f"{API}/audit/check")
    assert (after.status_code, after.json()["ok"]) == (200, True)


def test_finding_36_lists_are_described_as_results_and_deletes_with_a_body_as_200() -> None:
    paths = yaml.load(DOCUMENT.read_text(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))["paths"]
    arrays, bare = [], []
    for path, methods in paths.items():
        for method, operation in methods.items():
            for status, answer in operation["responses"].items():
                for body in answer.get("content", {}).values():
                    if body["schema"].get("type") == "array":
                        arrays.append((method, path))
                    if status == "204":
                        bare.append((method, path))

    assert arrays == []
    assert bare == []


def test_finding_38_the_number_of_an_array_stands_for_all_of_it(api: Api, cast: Cast) -> None:
    owner = api(cast.owner)
    first = owner.post(JOBS, {"command": "true", "array": "0-4", "hold": True}).json()
    after = owner.post(JOBS, {"command": "true", "depends_on": [f"{first['number']}_3"]})

    # An element is named as people say it, where another job waits for it.
    assert after.json()["depends_on"][0]["job_id"] == f"{first['number']}_3"
    assert owner.get(f"{API}/arrays/{first['number']}").json()["jobs"] == 5
    assert owner.delete(f"{JOBS}/{first['number']}").status_code == 200
    assert set(Job.objects.filter(array_number=first["number"]).values_list("state", flat=True)) == {
        "cancelled"
    }


@pytest.mark.parametrize("path", ["gpus", "topology", "queue", "shares"])
def test_finding_39_an_unknown_filter_is_refused(api: Api, cast: Cast, path: str) -> None:
    answer = api(cast.operator).get(f"{API}/{path}?colour=red")

    assert (answer.status_code, answer.json()["errors"][0]["code"]) == (400, "unknown-filter")


def test_finding_39_a_hundred_jobs_are_some_kilobytes(api: Api, portal: Portal) -> None:
    """They were 163 kB, never compressed."""
    owner = api(portal.cast.owner)
    owner.post(
        f"{JOBS}:bulk", {"jobs": [{"command": f"train --seed {n}", "name": f"t-{n}"} for n in range(100)]}
    )

    answer = owner.get(JOBS, headers={"Accept-Encoding": "gzip"})

    assert len(yaml.safe_load(gzip.decompress(answer.content))["results"]) == 100
    assert len(answer.content) < 16_000
