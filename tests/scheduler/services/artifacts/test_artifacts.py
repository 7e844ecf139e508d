"""Artefacts: who asks for them, who reads and removes them, when they are stored, and when they leave."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from accounts.models import AuditEvent, User
from infra.errors import Conflict, InvalidInput, NotAllowed, NotFound
from infra.storage import Storage, StorageError, configured_storage
from scheduler.models import Artifact, ArtifactUpload, Job, JobEvent
from scheduler.services.artifacts import removal, uploads
from scheduler.services.artifacts.reading import artifacts_of
from scheduler.services.artifacts.removal import remove_artifacts
from scheduler.services.jobs.submit import submit_job
from scheduler.services.results.kept import Reported, take_kept
from scheduler.services.results.reading import FileEntry
from tests.scheduler.portal import Portal, a_portal
from tests.support.factories import AttemptFactory, JobFactory, TaskFactory, bearer

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def no_agent_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """No agent runs here: pages do not wait for its list of a folder."""
    monkeypatch.setattr("scheduler.services.results.reading.ANSWER_SECONDS", 0.05)


MIB = 1024 * 1024


class Site:
    """A portal whose node has files of ended jobs, which are read from here instead of an agent."""

    def __init__(self) -> None:
        self.portal: Portal = a_portal()
        self.files: dict[str, bytes] = {"a.csv": b"1,2", "big": b"x" * 700_000}
        #: Is called before each piece of a file.
        self.before_reading: Callable[[], None] = lambda: None

    def a_job(self, *patterns: str, state: str = "completed", epoch: int = 1) -> Job:
        cast = self.portal.cast
        job = JobFactory(
            project=cast.project, user=cast.owner, queue=self.portal.queue, state=state, epoch=epoch,
            completed_at=timezone.now() if state == "completed" else None, artifacts=list(patterns),
        )  # fmt: skip
        attempt = AttemptFactory(job=job, epoch=1, state="succeeded", ended_at=timezone.now())
        TaskFactory(attempt=attempt, rank=0, node=self.portal.n1, state="succeeded")
        reported = [Reported(job.number, 1, 0, 1, MIB, True)]
        take_kept(node=self.portal.n1, first=job.number, last=job.number, reported=reported)
        return job

    def entries(self, folder: Any) -> Iterator[FileEntry]:
        now = timezone.now()
        for path, data in sorted(self.files.items()):
            yield FileEntry(path, "file", len(data), now, "v")

    def rest_of(self, folder: Any, entry: FileEntry, start: int, stop: int) -> Iterator[bytes]:
        for at in range(start, stop, 256 * 1024):
            self.before_reading()
            yield self.files[entry.path][at : min(stop, at + 256 * 1024)]


@pytest.fixture
def site(db: None, settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    settings.MUSTER_STORAGE = (tmp_path / "storage").as_uri()
    found = Site()
    monkeypatch.setattr(uploads, "all_entries", found.entries)
    monkeypatch.setattr(uploads, "rest_of", found.rest_of)
    return found


def storage() -> Storage:
    return configured_storage()


def upload_of(job: Job) -> ArtifactUpload:
    return ArtifactUpload.objects.get(job=job)


def again(job: Job) -> None:
    """Its upload is due once more."""
    ArtifactUpload.objects.filter(job=job, state="waiting").update(next_try_at=timezone.now())
    uploads.store_due()


# ---------------------------------------------------------------- asking for them


def test_a_job_says_which_files(site: Site) -> None:
    cast = site.portal.cast
    request = {"command": "true", "project": cast.project.slug, "artifacts": ["out/*.csv", "model.pt"]}

    assert Job.objects.get(pk=submit_job(payload=request, by=cast.owner).pk).artifacts == [
        "out/*.csv",
        "model.pt",
    ]

    for wrong, where in (
        (["/etc/passwd"], "artifacts/0"),
        (["ok", "../x"], "artifacts/1"),
        ("out", "artifacts"),
    ):
        with pytest.raises(InvalidInput) as caught:
            submit_job(payload=request | {"artifacts": wrong}, by=cast.owner)
        assert [problem.field for problem in caught.value.problems] == [where]


def test_what_could_not_be_stored_is_refused(site: Site, settings: Any) -> None:
    cast = site.portal.cast
    request = {"command": "true", "project": cast.project.slug, "artifacts": ["a"]}

    with pytest.raises(InvalidInput) as caught:
        submit_job(payload=request | {"working_dir": "/data"}, by=cast.owner)
    assert "working_dir" in caught.value.problems[0].message
    settings.MUSTER_STORAGE = ""
    with pytest.raises(InvalidInput) as caught:
        submit_job(payload=request, by=cast.owner)
    assert "MUSTER_STORAGE" in caught.value.problems[0].message


# ---------------------------------------------------------------- storing


def test_a_job_that_stores_more_than_allowed_keeps_what_fits(site: Site, settings: Any) -> None:
    settings.MUSTER_ARTIFACTS_JOB_MIB = 1
    site.files = {"a": b"a" * 600_000, "b": b"b" * 600_000, "c": b"c"}
    job = site.a_job("*")

    uploads.store_due()

    assert [one.path for one in Artifact.objects.filter(job=job)] == ["a"]
    assert upload_of(job).state == "stored"
    assert "MUSTER_ARTIFACTS_JOB_MIB" in JobEvent.objects.get(kind="job.artifacts_stored").because


def test_a_job_whose_patterns_match_nothing_is_said_so(site: Site) -> None:
    job = site.a_job("model.pt")

    uploads.store_due()

    assert upload_of(job).state == "failed"
    assert "No file matches model.pt" in JobEvent.objects.get(kind="job.artifacts_missing").because
    assert list(storage().list()) == []


def test_a_storage_that_fails_is_tried_again_and_what_was_stored_stays(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = site.a_job("*")
    kind = type(storage())
    put, calls = kind.put, []

    def fails(self: Any, key: str, body: Any, size: int | None = None) -> int:
        calls.append(key)
        if len(calls) == 2:
            raise StorageError("The disk is full.")
        return put(self, key, body, size)  # type: ignore[arg-type]

    monkeypatch.setattr(kind, "put", fails)
    uploads.store_due()
    waiting = upload_of(job)
    assert (waiting.state, waiting.message) == ("waiting", "The disk is full.")
    assert waiting.next_try_at is not None
    assert waiting.next_try_at > timezone.now()
    assert uploads.store_due() == 0  # not before its time
    assert [one.path for one in artifacts_of(job, by=site.portal.cast.owner).files] == ["a.csv"]

    again(job)

    assert upload_of(job).state == "stored"
    assert len(calls) == 3  # a.csv once, big twice
    assert sorted(one.path for one in Artifact.objects.exclude(sha256="")) == ["a.csv", "big"]
    assert len(list(storage().list())) == 2


def test_a_requeued_job_stores_nothing_of_the_attempt_before(site: Site) -> None:
    waits, later = site.a_job("*", state="queued"), site.a_job("*", state="running", epoch=2)

    uploads.store_due()

    assert [upload_of(job).state for job in (waits, later)] == ["skipped", "skipped"]
    assert not Artifact.objects.exists()


def test_a_job_requeued_while_it_is_stored_leaves_nothing(site: Site) -> None:
    job = site.a_job("*")

    def requeued() -> None:
        Job.objects.filter(pk=job.pk).update(epoch=2)
        raise NotFound("There is no such file.", code="no-such-file")

    site.before_reading = requeued
    uploads.store_due()

    assert upload_of(job).state == "skipped"
    removal.remove_due()
    assert not Artifact.objects.exists()


def test_a_worker_that_was_silent_for_too_long_writes_nothing(site: Site) -> None:
    """Another one took the upload over and ended it; what the first says afterwards changes no row."""
    job = site.a_job("big")

    def taken_over() -> None:
        site.before_reading = lambda: None
        ArtifactUpload.objects.filter(job=job).update(tries=9)

    site.before_reading = taken_over
    uploads.store_due()

    assert (upload_of(job).state, upload_of(job).tries) == ("waiting", 9)
    assert Artifact.objects.get().sha256 == ""
    assert not JobEvent.objects.filter(kind__startswith="job.artifacts").exists()


def test_a_file_that_is_not_given_out_is_left_out_with_the_reason(site: Site) -> None:
    job = site.a_job("*")

    def refused() -> None:
        site.before_reading = lambda: None
        raise Conflict(message="The file is another account's.", code="not-given-out")

    site.before_reading = refused
    uploads.store_due()

    assert [one.path for one in Artifact.objects.exclude(sha256="")] == ["big"]
    assert "a.csv: The file is another account's." in upload_of(job).message


def test_a_file_that_changed_is_read_again(site: Site) -> None:
    job = site.a_job("*")

    def changed() -> None:
        raise Conflict(message="The file was changed while it was read.", code="changed")

    site.before_reading = changed
    uploads.store_due()
    assert upload_of(job).state == "waiting"

    site.before_reading = lambda: None
    again(job)
    assert upload_of(job).state == "stored"


# ---------------------------------------------------------------- reading and removing


def stored(site: Site) -> Job:
    job = site.a_job("*")
    uploads.store_due()
    return job


def test_the_people_of_the_project_read_artefacts_and_nobody_else_knows_of_them(site: Site) -> None:
    cast, job = site.portal.cast, stored(site)
    number = Artifact.objects.filter(job=job).values_list("pk", flat=True)[0]

    for user in (cast.owner, cast.colleague, cast.lead, cast.admin):
        assert len(artifacts_of(job, by=user).files) == 2
    for user in (cast.viewer, cast.operator, cast.auditor):
        with pytest.raises(NotAllowed):
            artifacts_of(job, by=user)
    for what in ("", f"/file?id={number}"):
        address = f"/api/v1/jobs/{job.number}/artifacts{what}"
        assert Client().get(address, headers=bearer(cast.stranger, "jobs:read")).status_code == 404
        assert Client().get(address, headers=bearer(cast.viewer, "jobs:read")).status_code == 403
    for user, status in ((cast.stranger, 404), (cast.viewer, 403)):
        assert page(user, f"/jobs/{job.number}/artifacts/file/?id={number}").status_code == status


def page(user: User, address: str) -> Any:
    client = Client()
    client.force_login(user, backend="accounts.backends.PasswordBackend")
    return client.get(address)


def test_an_artefact_is_read_through_its_own_job_alone(site: Site) -> None:
    mine, other = stored(site), stored(site)
    number = Artifact.objects.filter(job=other).values_list("pk", flat=True)[0]
    headers = bearer(site.portal.cast.owner, "jobs:read")

    answer = Client().get(f"/api/v1/jobs/{mine.number}/artifacts/file?id={number}", headers=headers)

    assert (answer.status_code, answer.json()["code"]) == (404, "no-such-file")
    assert Client().get(f"/api/v1/jobs/{mine.number}/artifacts/file", headers=headers).status_code == 400


def test_the_page_of_the_job_lists_and_downloads_them(site: Site) -> None:
    job = stored(site)
    shown = page(site.portal.cast.owner, f"/jobs/{job.number}/?tab=results").content.decode()
    number = Artifact.objects.get(path="big").pk

    assert "a.csv" in shown
    assert f"/jobs/{job.number}/artifacts/file/?id={number}" in shown
    whole = page(site.portal.cast.owner, f"/jobs/{job.number}/artifacts/file/?id={number}")
    assert b"".join(whole.streaming_content) == site.files["big"]


def test_pages_of_the_list_follow_each_other(site: Site) -> None:
    job, headers = stored(site), bearer(site.portal.cast.owner, "jobs:read")
    address = f"/api/v1/jobs/{job.number}/artifacts?limit=1"

    first = Client().get(address, headers=headers).json()
    second = Client().get(f"{address}&after={first['next']}", headers=headers).json()

    assert [one["path"] for one in first["results"] + second["results"]] == ["a.csv", "big"]
    assert second["next"] is None


def test_removal_is_the_owners_and_the_leads_and_is_audited(site: Site) -> None:
    cast, job = site.portal.cast, stored(site)
    with pytest.raises(NotAllowed):
        remove_artifacts(job=job, by=cast.colleague)

    answer = Client().delete(
        f"/api/v1/jobs/{job.number}/artifacts", {"reason": "disk"}, content_type="application/json",
        headers=bearer(cast.owner, "jobs:write"),
    )  # fmt: skip

    assert answer.json() == {"files": 2}
    row = AuditEvent.objects.get(action="job.remove_artifacts")
    assert (row.before, row.reason) == ({"files": 2, "bytes": 700_003}, "disk")
    assert artifacts_of(job, by=cast.owner).files == []
    assert remove_artifacts(job=job, by=cast.owner) == 0
    assert removal.remove_due() == 2
    assert list(storage().list()) == []
    assert not Artifact.objects.exists()


def test_they_leave_when_their_time_is_over(site: Site, settings: Any) -> None:
    settings.MUSTER_KEEP_ARTIFACTS_DAYS = 3
    stored(site)
    assert removal.remove_due() == 0

    Artifact.objects.filter(path="big").update(leaves_at=timezone.now() - timedelta(seconds=1))

    assert removal.remove_due() == 1
    assert [one.path for one in Artifact.objects.all()] == ["a.csv"]
    assert len(list(storage().list())) == 1


def test_a_storage_that_is_away_removes_them_later(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    stored(site)
    Artifact.objects.update(leaves_at=timezone.now())

    def away(self: Any, key: str) -> None:
        raise StorageError("away")

    with monkeypatch.context() as patch:
        patch.setattr(type(storage()), "delete", away)
        assert removal.remove_due() == 0
    assert Artifact.objects.count() == 2
    assert removal.remove_due() == 2


def test_objects_of_deleted_jobs_are_swept(site: Site) -> None:
    gone, stays = stored(site), stored(site)
    storage().put("other/1", io.BytesIO(b"x"))
    Artifact.objects.filter(job=gone).delete()

    assert removal.sweep() == 2

    keys = sorted(key for key, _ in storage().list())
    assert keys == sorted([*Artifact.objects.filter(job=stays).values_list("key", flat=True), "other/1"])


def test_an_object_of_another_size_is_not_passed_off_as_the_file(site: Site) -> None:
    job = stored(site)
    artifact = Artifact.objects.get(path="big")
    storage().put(artifact.key, io.BytesIO(b"short"))

    answer = Client().get(
        f"/api/v1/jobs/{job.number}/artifacts/file?id={artifact.pk}",
        headers=bearer(site.portal.cast.owner, "jobs:read"),
    )

    assert (answer.status_code, answer.json()["code"]) == (500, "storage-damaged")
