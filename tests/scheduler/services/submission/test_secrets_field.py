"""The field `secrets` of a job: names alone, of the person or of the project, the same at every door."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from accounts.models import Membership, User
from accounts.services.secrets import delete_secret, set_secret
from infra.errors import InvalidInput
from scheduler.backends.fake import FakeBackend
from scheduler.backends.registry import use_backend
from scheduler.models import Cluster, Job
from scheduler.services.jobs.submit import submit_job
from scheduler.services.submission.sbatch.parse_sbatch import parse_sbatch
from scheduler.web import forms
from tests.scheduler.portal import Portal, a_portal, submit_many
from tests.support.factories import MembershipFactory, ProjectFactory, bearer

pytestmark = pytest.mark.django_db

VALUE = "hunter2-hunter2"


@pytest.fixture
def portal(db: None) -> Portal:
    """The owner has `mine` and `both`; the project has `shared` and `both`; the owner's other project has `other`."""
    portal = a_portal()
    cast = portal.cast
    other = ProjectFactory(slug="nlp", name="Language")
    MembershipFactory(user=cast.owner, project=other, role="lead")
    for name in ("mine", "both"):
        set_secret(owner=cast.owner, name=name, value=VALUE, by=cast.owner)
    for name in ("shared", "both"):
        set_secret(owner=cast.project, name=name, value=VALUE, by=cast.lead)
    set_secret(owner=other, name="other", value=VALUE, by=cast.owner)
    return portal


def submit(portal: Portal, *secrets: Any, by: User | None = None, **fields: Any) -> list[dict[str, str]]:
    payload = {"command": "true", "project": "vision", "secrets": list(secrets), **fields}
    job = submit_job(payload=payload, by=by or portal.cast.owner)
    kept: list[dict[str, str]] = Job.objects.get(pk=job.pk).secrets
    return kept


def wrong(portal: Portal, *secrets: Any, by: User | None = None, **fields: Any) -> dict[str, str]:
    with pytest.raises(InvalidInput) as refused:
        submit(portal, *secrets, by=by, **fields)
    return {problem.field: problem.message for problem in refused.value.problems}


def test_a_job_keeps_names_and_whose_they_are(portal: Portal) -> None:
    assert submit(portal, {"name": "mine", "env": "TOKEN"}, {"name": "shared", "file": "id_rsa"}) == [
        {"name": "mine", "of": "user", "env": "TOKEN"}, {"name": "shared", "of": "project", "file": "id_rsa"},
    ]  # fmt: skip
    # Without env or file: a file of the secret's name. One's own comes before the project's.
    assert submit(portal, {"name": "both"}, {"name": "both", "of": "project", "env": "B"}) == [
        {"name": "both", "of": "user", "file": "both"}, {"name": "both", "of": "project", "env": "B"},
    ]  # fmt: skip
    assert submit(portal, {"name": "both"}, by=portal.cast.colleague) == [
        {"name": "both", "of": "project", "file": "both"}
    ]
    assert submit(portal) == []


def test_secrets_of_others_are_refused_with_the_way_out(portal: Portal) -> None:
    assert wrong(portal, {"name": "other"}) == {
        "secrets/0/name": "Secret 'other' is of project nlp, and this job is of project vision. Submit the job to nlp, "
        "or ask a lead of vision to set it there."
    }
    # Who is not in that project learns nothing of it, and nobody of another person's.
    for name in ("other", "mine", "nothing"):
        assert wrong(portal, {"name": name}, by=portal.cast.colleague) == {
            "secrets/0/name": f"Neither you nor project vision has a secret {name!r}; set it under Settings."
        }
    assert wrong(portal, {"name": "mine", "of": "project"}) == {
        "secrets/0/name": "Project vision has no secret 'mine'; ask a lead to set it on the project's page."
    }
    assert wrong(portal, {"name": "shared", "of": "user"}) == {
        "secrets/0/name": "You have no secret 'shared'; set one under Settings."
    }


def test_what_cannot_be_is_refused_by_name(portal: Portal) -> None:
    assert sorted(
        wrong(
            portal, "mine", {"env": "A"}, {"name": "mine", "env": "A", "file": "b"}, {"name": "mine", "env": "1A"},
            {"name": "mine", "env": "MUSTER_X"}, {"name": "mine", "file": "../x"}, {"name": "mine", "value": VALUE},
            {"name": "mine", "nmae": "x"}, {"name": "a/b"},
        )
    ) == [
        "secrets/0", "secrets/1/name", "secrets/2/file", "secrets/3/env", "secrets/4/env", "secrets/5/file",
        "secrets/6/value", "secrets/7/nmae", "secrets/8/name",
    ]  # fmt: skip
    assert wrong(portal, {"name": "mine", "env": "A"}, {"name": "both", "env": "A"}) == {
        "secrets/1/env": "Two secrets would be A; rename one."
    }
    assert wrong(portal, {"name": "mine", "env": "A"}, env={"A": "1"}) == {
        "secrets/0/env": "A is set in env too; leave it out of one."
    }
    assert "secrets" in wrong(portal, *({"name": "mine", "file": f"f{n}"} for n in range(17)))


def test_a_backend_that_cannot_keep_secrets_is_refused(portal: Portal) -> None:
    use_backend("fake", FakeBackend())
    Cluster.objects.update(backend="fake")
    try:
        assert wrong(portal, {"name": "mine"}) == {
            "secrets": "Queue default runs jobs by a backend that cannot keep secrets; use another queue."
        }
    finally:
        use_backend("fake", None)


def test_one_request_of_many_is_read_as_alone(portal: Portal) -> None:
    """Requests that differ in their own fields alone share a reading: a secret that is gone is noticed all the same."""
    payloads = [
        {"command": f"run {n}", "project": "vision", "secrets": [{"name": "mine", "env": f"T{n}"}]}
        for n in range(3)
    ]
    jobs = submit_many(payloads=payloads, by=portal.cast.owner)
    assert [Job.objects.get(pk=job.pk).secrets[0]["env"] for job in jobs] == ["T0", "T1", "T2"]

    delete_secret(owner=portal.cast.owner, name="mine", by=portal.cast.owner)
    with pytest.raises(InvalidInput):
        submit_many(payloads=payloads, by=portal.cast.owner)


def test_a_token_that_is_held_to_a_project_uses_no_personal_secret(portal: Portal) -> None:
    headers = bearer(portal.cast.owner, "jobs:write", project=portal.cast.project)
    body = {"command": "true", "project": "vision", "secrets": [{"name": "mine"}]}
    refused = Client().post("/api/v1/jobs", body, "application/json", headers=headers)
    taken = Client().post(
        "/api/v1/jobs", body | {"secrets": [{"name": "both"}]}, "application/json", headers=headers
    )

    assert (refused.status_code, refused.json()["errors"][0]["code"]) == (422, "no-such-secret")
    assert taken.json()["secrets"] == [{"name": "both", "of": "project", "file": "both"}]


def test_a_batch_script_names_them(portal: Portal) -> None:
    script = (
        "#!/bin/sh\n#SBATCH --secret=mine,env=TOKEN\n#SBATCH --secret=shared,file=id_rsa\n"
        "#SBATCH --secret both,of=project\ntrue\n"
    )
    payload, unhonoured = parse_sbatch(script, by=portal.cast.owner)[:2]

    assert unhonoured == []
    assert payload["secrets"] == [
        {"name": "mine", "env": "TOKEN"}, {"name": "shared", "file": "id_rsa"}, {"name": "both", "of": "project"},
    ]  # fmt: skip
    with pytest.raises(InvalidInput, match="is no secret; write wandb,env=WANDB_API_KEY"):
        parse_sbatch("#!/bin/sh\n#SBATCH --secret=mine,TOKEN\n", by=portal.cast.owner)


def test_the_form_takes_lines_and_a_copy_has_them(portal: Portal) -> None:
    payload = forms.payload_of({"what": "true", "secrets": "mine,env=TOKEN\n\n shared \n"}, time_zone="UTC")
    assert payload["secrets"] == [{"name": "mine", "env": "TOKEN"}, {"name": "shared"}]
    job = Job.objects.get(pk=submit_job(payload=payload | {"project": "vision"}, by=portal.cast.owner).pk)
    copied = forms.form_of(job)

    assert copied["secrets"] == "mine,env=TOKEN,of=user\nshared,file=shared,of=project"
    assert forms.payload_of(copied, time_zone="UTC")["secrets"] == [
        {"name": "mine", "env": "TOKEN", "of": "user"}, {"name": "shared", "file": "shared", "of": "project"},
    ]  # fmt: skip
    assert "#SBATCH --secret=mine,env=TOKEN,of=user\n" in forms.as_sbatch(copied)
    with pytest.raises(InvalidInput) as refused:
        forms.payload_of({"what": "true", "secrets": "mine,x"}, time_zone="UTC")
    assert [problem.field for problem in refused.value.problems] == ["secrets"]


def test_every_door_of_a_job_has_names_and_no_value(portal: Portal) -> None:
    cast = portal.cast
    job = portal.submit(secrets=[{"name": "mine", "env": "TOKEN"}], hold=True, project="vision")
    seen = []
    for name, person in cast.people().items():
        client = Client()
        client.force_login(person)
        answers = [
            Client().get(f"/api/v1/jobs/{job.number}", headers=bearer(person, "admin")),
            *(client.get(path) for path in (
                f"/jobs/{job.number}/?tab=overview", f"/jobs/{job.number}/?tab=events", f"/submit/?copy={job.number}",
                f"/admin/scheduler/job/{job.number}/change/", "/audit/", "/settings/", "/projects/vision/",
            )),
        ]  # fmt: skip
        assert all(VALUE not in answer.content.decode() for answer in answers)
        if answers[0].status_code == 200:
            assert answers[0].json()["secrets"] == [{"name": "mine", "of": "user", "env": "TOKEN"}]
            assert "TOKEN" in answers[1].content.decode()
            seen.append(name)
    assert "stranger" not in seen
    assert Membership.objects.filter(user=cast.owner).exists()
