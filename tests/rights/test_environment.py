"""The values of a job's environment may be secrets: its owner and the leads of its project see them, and no door shows
them to anybody else."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from tests.scheduler.portal import Portal, a_portal
from tests.support.factories import bearer

pytestmark = pytest.mark.django_db

SEE = {"owner", "lead", "admin"}


@pytest.fixture
def portal() -> Portal:
    return a_portal()


def test_the_api_shows_values_to_the_owner_and_leads_and_names_to_others(portal: Portal) -> None:
    job = portal.submit(env={"WANDB_API_KEY": "hush-hush", "SEED": "1"}, hold=True)

    for name, user in portal.cast.people().items():
        answer = Client().get(f"/api/v1/jobs/{job.number}", headers=bearer(user, "jobs:read"))
        if name == "stranger":
            assert answer.status_code == 404
            continue
        shown: dict[str, Any] = answer.json()["env"]
        assert set(shown) == {"WANDB_API_KEY", "SEED"}
        assert (shown["WANDB_API_KEY"] == "hush-hush") is (name in SEE), name
        assert (b"hush-hush" in answer.content) is (name in SEE), name


def test_a_verb_by_an_operator_answers_without_the_values(portal: Portal) -> None:
    job = portal.submit(env={"WANDB_API_KEY": "hush-hush"}, hold=True)

    answer = Client().post(
        f"/api/v1/jobs/{job.number}/release",
        data={},
        content_type="application/json",
        headers=bearer(portal.cast.operator, "jobs:write"),
    )

    assert answer.status_code == 200
    assert answer.json()["env"] == {"WANDB_API_KEY": None}


def test_pages_and_the_copy_of_a_job_keep_them_too(portal: Portal) -> None:
    job = portal.submit(env={"WANDB_API_KEY": "hush-hush"}, hold=True)

    for name, user in portal.cast.people().items():
        if name == "stranger":
            continue
        client = Client()
        client.force_login(user, backend="accounts.backends.PasswordBackend")
        for page in (f"/jobs/{job.number}/?tab=overview", f"/submit/?copy={job.number}"):
            answer = client.get(page)
            assert answer.status_code == 200
            assert (b"hush-hush" in answer.content) is (name in SEE), (name, page)
