"""Uploads at the server: what is refused, who may name one, when one is deleted, and how it leaves."""

from __future__ import annotations

import hashlib
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from django.test import Client
from django.utils import timezone
from pytest_django.fixtures import Settings

from accounts.models import AuditEvent, User
from infra.errors import Conflict, InvalidInput, NotFound, TooMany
from scheduler.agent.protocol import PIECE_BYTES
from scheduler.backends.agents.backend import AgentsBackend
from scheduler.backends.base import Capabilities
from scheduler.models import FolderUpload, Job
from scheduler.services.jobs.verbs import cancel_job
from scheduler.services.results import old_uploads
from scheduler.services.submission.sbatch.parse_sbatch import parse_sbatch
from scheduler.services.uploads import nodes, stored, verbs
from tests.scheduler.portal import Portal, a_portal, submit_many
from tests.support.factories import AttemptFactory, FolderUploadFactory, TaskFactory, bearer

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def storage(settings: Settings, tmp_path: Path) -> Path:
    settings.MUSTER_STORAGE = tmp_path.as_uri()
    return tmp_path


@pytest.fixture
def portal() -> Portal:
    return a_portal()


def files(*paths: str, size: int = 1) -> list[dict[str, Any]]:
    return [{"path": path, "size": size} for path in paths]


def begin(by: User, *paths: str, size: int = 1, **more: Any) -> FolderUpload:
    return verbs.begin(body={"name": "training", "files": files(*paths, size=size), **more}, by=by)[0]


def ready(by: User, data: bytes = b"hello") -> FolderUpload:
    row = begin(by, "a.txt", size=len(data))
    for number in range(stored.pieces_of(row)):
        verbs.take_piece(row=row, number=number, data=data[number * PIECE_BYTES :][:PIECE_BYTES])
    return verbs.finish(row=row)


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("../a", "bad-upload-path"),
        ("a/../../b", "bad-upload-path"),
        ("/etc/passwd", "bad-upload-path"),
        ("./a", "bad-upload-path"),
        ("a//b", "bad-upload-path"),
        ("a/", "bad-upload-path"),
        ("a\\x00b", "bad-upload-path"),
        ("a\\x2f..\\x2fb", "bad-upload-path"),
        ("a\\x61", "bad-upload-path"),  # another way to write aa
        ("a\u202eb", "bad-upload-path"),
        ("x" * 256, "bad-upload-path"),
        ("d/" * 32 + "a", "bad-upload-path"),
        ("ab/" * 400 + "a", "bad-upload-path"),
        ("", "required"),
        (7, "required"),
    ],
)
def test_a_path_that_does_not_lead_into_the_folder_is_refused(portal: Portal, path: Any, code: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        begin(portal.cast.owner, "good", path)

    assert [(one.field, one.code) for one in refused.value.problems] == [("files/1/path", code)]
    assert not FolderUpload.objects.exists()


@pytest.mark.parametrize(
    "paths",
    [
        ("a", "a"),
        ("a", "a/b"),
        ("a/b", "a"),
        ("README", "Readme"),
        ("src/a", "SRC/b"),
        ("caf\u00e9", "cafe\u0301"),
    ],
)
def test_paths_that_not_every_file_system_keeps_apart_are_refused(
    portal: Portal, paths: tuple[str, ...]
) -> None:
    with pytest.raises(InvalidInput) as refused:
        begin(portal.cast.owner, *paths)

    assert {one.code for one in refused.value.problems} == {"same-path"}


@pytest.mark.parametrize("named", ["link", "type", "mode", "linkname", "shape"])
def test_an_entry_is_a_file_and_nothing_else(portal: Portal, named: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        verbs.begin(body={"name": "x", "files": [{"path": "a", "size": 1, named: "b"}]}, by=portal.cast.owner)

    assert [(one.field, one.code) for one in refused.value.problems] == [
        (f"files/0/{named}", "unknown-field")
    ]


@pytest.mark.parametrize(
    "body",
    [
        {"name": "x", "files": []},
        {"name": " ", "files": [{"path": "a", "size": 1}]},
        {"name": "x", "files": [{"path": "a", "size": -1}]},
        {"name": "x", "files": [{"path": "a", "size": True}]},
        {"name": "x", "files": [{"path": "a", "size": "1"}]},
        {"name": "x", "files": [{"path": "a", "size": 1, "executable": "yes"}]},
        {"name": "x", "files": ["a"]},
        {"name": "x", "files": {"a": 1}},
        {"name": "x", "files": [{"path": "a", "size": 1}], "folders": "b"},
        {"name": "x", "files": [{"path": "a", "size": 1}], "folders": ["../b"]},
        {"name": "x", "files": [{"path": "a", "size": 1}], "folders": ["a"]},
    ],
)
def test_a_manifest_that_cannot_be_read_is_refused(portal: Portal, body: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        verbs.begin(body=body, by=portal.cast.owner)


def test_limits_of_one_upload_and_of_a_person(portal: Portal, settings: Settings) -> None:
    settings.MUSTER_UPLOAD_MIB, settings.MUSTER_UPLOAD_FILES, settings.MUSTER_UPLOADS_PERSON_MIB = 2, 3, 3
    mib = 2**20
    with pytest.raises(InvalidInput, match="refused") as refused:
        begin(portal.cast.owner, "a", "b", size=mib + 1)
    assert (
        "at most 2.0 MiB" in refused.value.problems[0].message or "2 MiB" in refused.value.problems[0].message
    )
    with pytest.raises(InvalidInput):
        begin(portal.cast.owner, "a", "b", "c", "d")
    begin(portal.cast.owner, "a", size=2 * mib)
    with pytest.raises(TooMany, match="more than 3"):
        begin(portal.cast.owner, "a", size=mib + 1)
    begin(portal.cast.colleague, "a", size=mib + 1)  # a limit of each
    FolderUpload.objects.filter(user=portal.cast.owner).update(state="removed")
    begin(portal.cast.owner, "a", size=mib + 1)


def test_a_site_without_a_storage_takes_none(portal: Portal, settings: Settings) -> None:
    settings.MUSTER_STORAGE = ""
    with pytest.raises(Exception, match="no storage"):
        begin(portal.cast.owner, "a")
    assert not FolderUpload.objects.exists()


# ---------------------------------------------------------------- pieces


def test_an_upload_is_ready_once_all_pieces_came_and_goes_on_where_it_broke_off(portal: Portal) -> None:
    data = bytes(range(256)) * (PIECE_BYTES // 256) + b"rest"
    row = begin(portal.cast.owner, "b", "a", size=len(data) // 2)
    with pytest.raises(Conflict, match="2 of 2 pieces have not come"):
        verbs.finish(row=row)
    for bad in (b"", b"rest", data):
        with pytest.raises(InvalidInput):
            verbs.take_piece(row=row, number=0, data=bad)
    with pytest.raises(InvalidInput, match="there are 2"):
        verbs.take_piece(row=row, number=2, data=b"rest")
    verbs.take_piece(row=row, number=1, data=b"rest")
    assert verbs.missing(row) == [0]
    verbs.take_piece(row=row, number=0, data=data[:PIECE_BYTES])
    verbs.take_piece(row=row, number=0, data=data[:PIECE_BYTES])

    done = verbs.finish(row=row)
    assert (done.state, verbs.finish(row=done).state) == ("ready", "ready")
    manifest = stored.stored_manifest(done)
    assert manifest["pieces"] == [hashlib.sha256(part).hexdigest() for part in (data[:PIECE_BYTES], b"rest")]
    assert verbs.order_of(done) == ["a", "b"]
    with pytest.raises(Conflict):
        verbs.take_piece(row=done, number=1, data=b"tser")


def test_a_piece_that_came_with_two_contents_is_no_upload(portal: Portal) -> None:
    row = begin(portal.cast.owner, "a", size=4)
    verbs.take_piece(row=row, number=0, data=b"rest")
    verbs.take_piece(row=row, number=0, data=b"tser")

    with pytest.raises(Conflict, match="came twice with different bytes"):
        verbs.finish(row=row)


# ---------------------------------------------------------------- who


def test_nobody_else_sees_names_or_deletes_an_upload(portal: Portal) -> None:
    row = ready(portal.cast.owner)
    for other in (portal.cast.colleague, portal.cast.stranger, portal.cast.lead):
        assert not verbs.uploads_of(other).exists()
        with pytest.raises(NotFound):
            verbs.upload_of(str(row.pk), by=other)
    with pytest.raises(InvalidInput) as refused:
        portal.submit(by=portal.cast.colleague, upload=str(row.pk))
    with pytest.raises(InvalidInput) as unknown:
        portal.submit(by=portal.cast.colleague, upload=str(uuid4()))
    assert [one.code for one in refused.value.problems] == ["no-such-upload"]
    assert [one.code for one in unknown.value.problems] == ["no-such-upload"]
    assert portal.submit(upload=str(row.pk)).upload == row.pk


def test_a_token_of_one_project_sees_the_uploads_of_such_tokens(portal: Portal, client: Client) -> None:
    ready(portal.cast.owner)
    held = bearer(portal.cast.owner, "jobs:write", project=portal.cast.project)
    whole = bearer(portal.cast.owner, "jobs:write")
    body = {"name": "held", "files": files("a", size=0)}
    made = client.post("/api/v1/uploads", body, content_type="application/json", headers=held)
    assert made.status_code == 201, made.content

    def names(headers: dict[str, str]) -> set[str]:
        return {one["name"] for one in client.get("/api/v1/uploads", headers=headers).json()["results"]}

    assert (names(held), names(whole)) == ({"held"}, {"held", "training"})


def test_the_doors_of_uploads(portal: Portal, client: Client) -> None:
    mine = bearer(portal.cast.owner, "jobs:write")
    theirs = bearer(portal.cast.colleague, "jobs:write")
    reads = bearer(portal.cast.owner, "jobs:read")
    body = {"name": "training", "files": [{"path": "run.sh", "size": 2, "executable": True}]}
    assert (
        client.post("/api/v1/uploads", body, content_type="application/json", headers=reads).status_code
        == 403
    )
    made = client.post("/api/v1/uploads", body, content_type="application/json", headers=mine).json()
    at = f"/api/v1/uploads/{made['id']}"
    assert (made["state"], made["missing"], made["order"], made["pieces"]) == (
        "receiving",
        [0],
        ["run.sh"],
        1,
    )
    raw: dict[str, Any] = {"content_type": "application/octet-stream"}
    assert client.put(f"{at}/pieces/0", b"#!", headers=theirs, **raw).status_code == 404
    wrong = client.put(f"{at}/pieces/0?sha256=00", b"#!", headers=mine, **raw)
    assert (wrong.status_code, wrong.json()["code"]) == (422, "wrong-piece")
    too_large = client.put(f"{at}/pieces/0", bytes(PIECE_BYTES + 1), headers=mine, **raw)
    assert too_large.status_code == 413
    assert client.put(f"{at}/pieces/0", b"#!", headers=mine, **raw).status_code == 204
    assert client.get(at, headers=theirs).status_code == 404
    assert client.get(at, headers=reads).json()["missing"] == []
    assert client.post(f"{at}/finish", headers=theirs).status_code == 404
    assert client.post(f"{at}/finish", headers=mine).json()["state"] == "ready"
    job = client.post(
        "/api/v1/jobs",
        {"command": "./run.sh", "upload": made["id"]},
        content_type="application/json",
        headers=mine,
    )
    assert (job.status_code, job.json()["upload"]) == (201, made["id"])
    assert client.delete(at, headers=theirs).status_code == 404
    in_use = client.delete(at, headers=mine)
    assert (in_use.status_code, in_use.json()["code"]) == (409, "upload-in-use")
    cancel_job(job=Job.objects.get(), by=portal.cast.owner)
    assert [client.delete(at, headers=mine).status_code for _ in range(2)] == [204, 204]
    assert client.get(at, headers=mine).json()["state"] == "removed"
    actions = list(
        AuditEvent.objects.filter(action__startswith="upload.")
        .order_by("id")
        .values_list("action", flat=True)
    )
    assert actions == ["upload.create", "upload.delete"]


# ---------------------------------------------------------------- jobs


def test_every_way_to_a_job_carries_its_upload(portal: Portal) -> None:
    row = ready(portal.cast.owner)
    payload = {"command": "true", "upload": str(row.pk)}
    jobs = [
        *submit_many(payloads=[payload, payload | {"array": "0-2"}], by=portal.cast.owner),
        *submit_many(payloads=[payload | {"array": "0-3", "elements_per_job": 2}], by=portal.cast.owner),
    ]
    read, ignored = parse_sbatch(f"#!/bin/sh\n#SBATCH --upload={row.pk}\ntrue\n", by=portal.cast.owner)
    assert (read["upload"], ignored) == (str(row.pk), [])
    assert set(Job.objects.values_list("upload", flat=True)) == {row.pk}
    assert len(jobs) == Job.objects.count() == 6
    row.refresh_from_db()
    assert row.used_at is not None


@pytest.mark.parametrize("state", ["receiving", "leaving", "removed"])
def test_only_a_ready_upload_is_taken(portal: Portal, state: str) -> None:
    row = FolderUploadFactory(user=portal.cast.owner, state=state)
    with pytest.raises(InvalidInput) as refused:
        portal.submit(upload=str(row.pk))
    assert [one.code for one in refused.value.problems] == ["upload-not-ready"]


def test_an_upload_deleted_since_the_request_was_read_makes_no_job(
    portal: Portal, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = ready(portal.cast.owner)
    monkeypatch.setattr("scheduler.services.submission.fields_task.upload_of", lambda ref, by: row)
    verbs.delete(row=row, by=portal.cast.owner)

    with pytest.raises(Conflict, match="deleted just now"):
        portal.submit(upload=str(row.pk))
    assert not Job.objects.exists()


def test_what_cannot_take_an_upload_refuses_it(portal: Portal, monkeypatch: pytest.MonkeyPatch) -> None:
    row = ready(portal.cast.owner)
    with pytest.raises(InvalidInput) as refused:
        portal.submit(upload=str(row.pk), working_dir="/data")
    assert [(one.field, one.code) for one in refused.value.problems] == [("upload", "inconsistent")]
    monkeypatch.setattr(AgentsBackend, "capabilities", Capabilities(is_driven=False))
    with pytest.raises(InvalidInput) as elsewhere:
        portal.submit(upload=str(row.pk))
    assert [one.code for one in elsewhere.value.problems] == ["no-uploads-here"]


def test_only_the_node_where_a_job_runs_is_given_its_upload(portal: Portal) -> None:
    row = ready(portal.cast.owner)
    job = portal.submit(upload=str(row.pk))
    attempt = AttemptFactory(job=job, epoch=1, state="starting")
    task = TaskFactory(attempt=attempt, node=portal.n1, state="starting")
    answer = nodes.upload_for(node=portal.n1, task=task.pk, epoch=1)
    where: dict[str, Any] = {"task": task.pk, "number": 0, "digest": answer["manifest"]["pieces"][0]}
    assert nodes.give_piece(node=portal.n1, epoch=1, **where) == b"hello"
    for node, epoch in ((portal.n2, 1), (portal.n1, 2)):
        with pytest.raises(Conflict):
            nodes.upload_for(node=node, task=task.pk, epoch=epoch)
        with pytest.raises(Conflict):
            nodes.give_piece(node=node, epoch=epoch, **where)


# ---------------------------------------------------------------- how one leaves


def aged(row: FolderUpload, days: float) -> None:
    at = timezone.now() - timedelta(days=days)
    stamps = {name: at for name in ("created_at", "seen_at", "ready_at", "used_at") if getattr(row, name)}
    FolderUpload.objects.filter(pk=row.pk).update(**stamps)


def states() -> dict[str, str]:
    return {str(row.pk): row.state for row in FolderUpload.objects.all()}


def test_uploads_leave_when_no_job_needs_them_any_more(portal: Portal, storage: Path) -> None:
    owner = portal.cast.owner
    unused, fresh, waits, kept, over = (ready(owner, bytes([65 + n])) for n in range(5))
    half = begin(owner, "a")
    portal.submit(upload=str(waits.pk))
    for row, days in ((kept, 3.0), (over, 8.0)):
        job = portal.submit(upload=str(row.pk))
        cancel_job(job=job, by=owner)
        Job.objects.filter(pk=job.pk).update(completed_at=timezone.now() - timedelta(days=days))
    for row in (unused, waits, kept, over, half):
        row.refresh_from_db()
        aged(row, 30)

    old_uploads.tidy()

    gone = {str(row.pk) for row in (unused, half, over)}
    assert states() == {str(row.pk): "ready" for row in (fresh, waits, kept)} | {str(over.pk): "removed"}
    assert not any(id in str(path) for id in gone for path in storage.rglob("*"))


def test_an_upload_that_the_storage_does_not_let_go_is_tried_again(
    portal: Portal, storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from infra.storage import StorageAway

    row = ready(portal.cast.owner)

    def away(upload: Any) -> None:
        raise StorageAway("away")

    with monkeypatch.context() as patch:
        patch.setattr("scheduler.services.uploads.removal.remove_bytes", away)
        verbs.delete(row=row, by=portal.cast.owner)
    assert states() == {str(row.pk): "leaving"}
    assert old_uploads.tidy() == 1
    assert states() == {}


# ---------------------------------------------------------------- pages


def test_the_page_and_the_form_offer_a_persons_own_uploads(portal: Portal, client: Client) -> None:
    row = ready(portal.cast.owner)
    client.force_login(portal.cast.owner)
    page, form = client.get("/uploads/").content.decode(), client.get("/submit/").content.decode()
    assert str(row.pk) in page
    assert f'value="{row.pk}"' in form
    sent = client.post("/submit/", {"what": "ls", "project": portal.cast.project.slug, "upload": str(row.pk)})
    job = Job.objects.get()
    assert (sent.status_code, job.upload) == (302, row.pk)
    copy = client.get(f"/submit/?copy={job.number}").content.decode()
    assert f'value="{row.pk}" selected' in copy
    assert "training" in client.get(f"/jobs/{job.number}/?tab=overview").content.decode()
    client.post(f"/uploads/{row.pk}/delete/")
    assert states() == {str(row.pk): "ready"}  # its job has not ended
    client.force_login(portal.cast.colleague)
    assert str(row.pk) not in client.get("/uploads/").content.decode()
    copy = client.get(f"/submit/?copy={job.number}").content.decode()
    assert str(row.pk) not in copy
    assert "is not copied" in copy
    assert client.post(f"/uploads/{row.pk}/delete/").status_code == 404
    client.force_login(portal.cast.owner)
    cancel_job(job=job, by=portal.cast.owner)
    client.post(f"/uploads/{row.pk}/delete/")
    assert states() == {str(row.pk): "removed"}
    assert "was removed and is not copied" in client.get(f"/submit/?copy={job.number}").content.decode()
