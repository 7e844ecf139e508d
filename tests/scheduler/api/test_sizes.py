"""What one request may make, once all of it is multiplied out: refused before any row is built."""

from __future__ import annotations

import time
import tracemalloc
from typing import Any

import pytest
from django.test import override_settings

from infra import request_cost
from infra.request_cost import Caller, CallerGone
from quotas.services.budgets import adjust
from scheduler.models import Job, JobDependency
from tests.scheduler.api.conftest import Api
from tests.scheduler.portal import Portal, submit_many

JOBS, BULK = "/api/v1/jobs", "/api/v1/jobs:bulk"
SBATCH = "/api/v1/slurm/sbatch"


def refused(answer: Any, *numbers: str) -> None:
    assert (answer.status_code, answer.json()["code"]) == (422, "too-many-rows"), answer.content[:300]
    for number in numbers:
        assert number in answer.json()["detail"]
    assert answer.json()["way_out"]
    assert not Job.objects.exists()


def test_a_thousand_arrays_of_ten_thousand_are_refused_before_any_is_built(portal: Portal, api: Api) -> None:
    client = api(portal.cast.owner)
    jobs = [{"command": "true", "array": "0-9999"}] * 1000
    client.post(BULK, {"jobs": [*jobs[:1], {"command": "true"}], "atomic": "?"})  # what is loaded once
    tracemalloc.start()
    try:
        answer = client.post(BULK, {"jobs": jobs})
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    refused(answer, "10,000,000", "20,000")
    assert peak < 50 * 2**20  # the indices alone are ten times as much


def a_line(portal: Portal, model: str = "A100") -> None:
    adjust(
        project=portal.cast.project, by=portal.cast.admin, resource="gpu_milli_seconds", amount=-5000,
        gpu_model=model, reason="a line of the ledger",
    )  # fmt: skip


@pytest.mark.parametrize("atomic", [True, False])
def test_the_sum_of_arrays_counts_and_not_each(portal: Portal, api: Api, atomic: bool) -> None:
    client = api(portal.cast.owner)
    jobs = [{"command": "true", "array": "0-9"}] * 11
    with override_settings(MUSTER_MAX_ROWS=100):
        refused(client.post(BULK, {"jobs": jobs, "atomic": atomic}), "110", "100")
        assert client.post(BULK, {"jobs": jobs[:10], "atomic": atomic}).status_code == 201
    assert Job.objects.count() == 100


def test_arrays_times_what_each_waits_for_count(portal: Portal, api: Api) -> None:
    client = api(portal.cast.owner)
    first = {"command": "true", "array": "0-29", "ref": "first"}
    second = {"command": "true", "array": "0-29", "depends_on": [{"ref": "first"}]}
    with override_settings(MUSTER_MAX_ROWS=500):
        refused(client.post(BULK, {"jobs": [first, second]}), "960", "500")
        grouped = {**second, "depends_on": [{"any": 1, "of": [{"ref": "first"}, {"data": "faces"}]}]}
        refused(client.post(BULK, {"jobs": [first, grouped]}), "990")
        alone = {"command": "true", "array": "0-99", "depends_on": [{"data": f"d{n}"} for n in range(5)]}
        refused(client.post(JOBS, alone), "600")
    assert not JobDependency.objects.exists()


def test_a_script_that_an_array_repeats_counts_as_often(portal: Portal, api: Api) -> None:
    client = api(portal.cast.owner)
    script = "#!/bin/sh\n" + "# a line of no use\n" * 5000
    with override_settings(MUSTER_MAX_TEXT_MIB=1):
        refused(client.post(JOBS, {"script": script, "array": "0-99"}), "10 MiB", "1 MiB")
        refused(client.post(JOBS, {"command": "true", "env": {"A": "x" * 30_000}, "array": "0-99"}))
        assert client.post(JOBS, {"script": script}).status_code == 201


def test_scripts_and_previews_have_the_same_limit(portal: Portal, api: Api) -> None:
    client = api(portal.cast.owner)
    script = "#!/bin/sh\n#SBATCH --array=0-199\ntrue\n"
    with override_settings(MUSTER_MAX_ROWS=100):
        refused(client.post(SBATCH, {"script": script}), "200")
        refused(client.post(SBATCH, script, content_type="text/plain"), "200")
        seen = client.post(f"{JOBS}/preview", {"command": "true", "array": "0-199"}).json()
    assert "200" in str(seen), seen
    assert "too-many-rows" in str(seen), seen


def test_an_array_that_is_too_large_by_itself_says_so_beside_others(portal: Portal, api: Api) -> None:
    jobs = [{"command": "true"}, {"command": "true", "array": "0-99999"}]
    answer = api(portal.cast.owner).post(BULK, {"jobs": jobs, "atomic": False})
    assert answer.status_code == 207
    assert answer.json()["results"][1]["error"]["errors"][0]["field"] == "jobs/1/array"


def test_a_file_of_too_many_rows_is_refused_before_its_first(portal: Portal, api: Api) -> None:
    for _ in range(3):
        a_line(portal)
    client = api(portal.cast.owner)
    with override_settings(MUSTER_MAX_EXPORT_ROWS=2):
        answer = client.get("/api/v1/quotas/ledger?export=csv")
        assert (answer.status_code, answer.json()["code"]) == (422, "too-many-rows")
        assert "2 rows" in answer.json()["detail"]
    with override_settings(MUSTER_MAX_EXPORT_ROWS=3):
        assert client.get("/api/v1/quotas/ledger?export=csv").status_code == 200


def test_sums_with_too_many_groups_are_refused(portal: Portal, api: Api) -> None:
    a_line(portal, "A100")
    a_line(portal, "H100")
    client = api(portal.cast.owner)
    address = "/api/v1/quotas/usage?group=gpu_model"
    with override_settings(MUSTER_MAX_ROWS=1):
        assert client.get(address).json()["code"] == "too-many-rows"
    assert client.get(address).status_code == 200


def test_nothing_is_written_for_a_caller_who_has_hung_up(portal: Portal) -> None:
    caller = Caller()
    caller.leave()
    with request_cost.working_for(caller), pytest.raises(CallerGone):
        submit_many(payloads=[{"command": "true"}] * 3, by=portal.cast.owner)
    assert not Job.objects.exists()


@pytest.mark.parametrize("option", ["gres=gpu((((", "constraint=[[[[", "job-name='aaaa", "export=a,a,"])
def test_a_script_of_one_long_line_is_refused_as_fast_as_it_is_long(
    portal: Portal, api: Api, option: str
) -> None:
    client = api(portal.cast.owner)
    piece = option[-4:]

    def ask(length: int) -> float:
        script = f"#!/bin/sh\n#SBATCH --{option}{piece * (length // 4)}\ntrue\n"
        began = time.thread_time()
        answer = client.post(SBATCH, {"script": script})
        assert answer.status_code == 422, answer.content
        assert "Line 2" in answer.json()["errors"][0]["message"]
        return time.thread_time() - began

    ask(8000)
    assert min(ask(160_000), ask(160_000)) < 8 * max(ask(40_000), ask(40_000))


def test_more_directives_than_are_read_are_refused(portal: Portal, api: Api) -> None:
    script = "#!/bin/sh\n" + "#SBATCH --nice=1\n" * 501 + "true\n"
    answer = api(portal.cast.owner).post(SBATCH, {"script": script})
    assert answer.status_code == 422
    assert "Line 502" in answer.json()["errors"][0]["message"]
