"""Data and checkpoints through the API: who may say that they are ready, and what waiting jobs then show."""

from __future__ import annotations

from django.utils import timezone
from pytest_django.fixtures import DjangoAssertNumQueries

from scheduler.core.lifecycle import JobState
from scheduler.models import Dataset, Job
from tests.scheduler.api.conftest import Api
from tests.support.factories import Cast

DATASETS = "/api/v1/datasets"
JOBS = "/api/v1/jobs"


def test_members_declare_data_and_strangers_see_none(api: Api, cast: Cast) -> None:
    waiting = api(cast.owner).post(JOBS, {"command": "true", "depends_on": [{"data": "faces"}]}).json()
    assert (waiting["state_detail"], waiting["reason"]["text"]) == ("blocked", "Depends on data faces.")
    assert waiting["depends_on"][0] | {"group": 0} == {
        "job": None, "number": None, "job_id": None, "array": False, "data": "faces", "type": "data", "group": 0,
        "need": 1, "satisfied": None,
    }  # fmt: skip

    made = api(cast.colleague).post(DATASETS, {"name": "faces", "project": "vision", "path": "/data/faces"})

    assert (made.status_code, made.json()["ready"], made.json()["declared_by"]) == (200, True, "colleague")
    assert api(cast.owner).get(f"{JOBS}/{waiting['number']}").json()["state_detail"] == "queued"
    number = made.json()["id"]
    stranger = api(cast.stranger)
    assert stranger.get(DATASETS).json()["results"] == []
    assert stranger.get(f"{DATASETS}/{number}").status_code == 404
    assert stranger.delete(f"{DATASETS}/{number}").status_code == 404
    assert stranger.post(DATASETS, {"name": "faces", "project": "vision"}).status_code == 403
    assert api(cast.owner).delete(f"{DATASETS}/{number}").json()["ready"] is False
    assert api(cast.owner).post(DATASETS, {"project": "vision"}).status_code == 422


def test_a_list_of_datasets_costs_the_same_however_long(
    api: Api, cast: Cast, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    client = api(cast.owner)
    for number in range(3):
        Dataset.objects.create(
            project=cast.project, name=f"set{number}", ready_at=timezone.now(), declared_by=cast.owner
        )
    client.get(DATASETS)
    with django_assert_num_queries(2):
        assert len(client.get(DATASETS).json()["results"]) == 3


def test_only_those_who_may_change_a_job_report_its_checkpoint(api: Api, cast: Cast) -> None:
    job = api(cast.owner).post(JOBS, {"command": "true"}).json()
    path = f"{JOBS}/{job['number']}/checkpoint"
    assert api(cast.owner).post(path, {"path": "/c/1"}).status_code == 409
    Job.objects.update(state=JobState.RUNNING, started_at=timezone.now())

    assert api(cast.stranger).post(path, {}).status_code == 404
    assert api(cast.colleague).post(path, {}).status_code == 403
    saved = api(cast.owner).post(path, {"path": "/c/1"})

    assert (saved.status_code, saved.json()["saved_path"]) == (200, "/c/1")
    assert api(cast.owner).post(path, {"file": "x"}).status_code == 422


def test_only_those_who_may_requeue_a_job_resize_it(api: Api, cast: Cast) -> None:
    job = api(cast.owner).post(JOBS, {"command": "true", "tasks": 4, "min_tasks": 2, "elastic": True}).json()
    path = f"{JOBS}/{job['number']}/resize"

    assert api(cast.stranger).post(path, {"tasks": 2}).status_code == 404
    assert api(cast.colleague).post(path, {"tasks": 2}).status_code == 403
    assert api(cast.owner).post(path, {"tasks": 2}).status_code == 409  # it does not run
    assert api(cast.owner).post(path, {"tasks": 1}).status_code == 422
    assert api(cast.owner).post(path, {}).status_code == 422
    assert api(cast.owner).post(path, {"tasks": 2, "size": 3}).status_code == 422
