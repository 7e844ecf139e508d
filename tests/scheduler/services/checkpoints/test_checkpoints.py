"""Checkpoints at the server: verified before they count, kept by number and time, chosen for the next attempt."""

from __future__ import annotations

import hashlib
import io
import tarfile
import zipfile
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import IntegrityError, transaction
from django.test import Client
from django.utils import timezone
from pytest_django.fixtures import Settings

from accounts.models import AuditEvent, User
from infra.errors import Conflict, InvalidInput, NotAllowed, NotFound
from infra.storage import Damaged
from scheduler.agent.protocol import PIECE_BYTES
from scheduler.models import Checkpoint, Job, JobEvent, Task
from scheduler.models.results.checkpoint_policy import CheckpointPolicy
from scheduler.services.checkpoints import receive, removal, resume, verbs
from scheduler.services.checkpoints.receive import Announced
from scheduler.services.checkpoints.resume import parts_for
from tests.scheduler.portal import a_portal
from tests.support.factories import (
    AttemptFactory,
    CheckpointFactory,
    JobFactory,
    NodeFactory,
    TaskFactory,
    bearer,
)

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def no_agent_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """No agent runs here: pages do not wait for its list of a folder."""
    monkeypatch.setattr("scheduler.services.results.reading.ANSWER_SECONDS", 0.05)


POLICY = {"signal": "USR1", "to": "all", "grace": 30, "every": None, "keep": 2, "max_size_mib": None}


class Site:
    """A portal with a storage, and a job that runs on n1."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.portal = a_portal()
        self.cast = self.portal.cast
        self.job, self.task = self.a_job()

    def a_job(self, **policy: Any) -> tuple[Job, Task]:
        job = JobFactory(
            project=self.cast.project, user=self.cast.owner, queue=self.portal.queue, state="running", epoch=1,
            checkpoint=POLICY | policy, started_at=timezone.now() - timedelta(hours=1),
        )  # fmt: skip
        return job, self.an_attempt(job, 1)

    def an_attempt(self, job: Job, epoch: int, node: Any = None, ranks: int = 1) -> Task:
        job.attempts.update(state="lost", ended_at=timezone.now())
        Task.objects.filter(attempt__job=job).update(state="lost")
        Job.objects.filter(pk=job.pk).update(epoch=epoch, state="running")
        attempt = AttemptFactory(job=job, epoch=epoch, state="running", started_at=timezone.now())
        tasks = [
            TaskFactory(attempt=attempt, rank=rank, node=node or self.portal.n1, state="running")
            for rank in range(ranks)
        ]
        task: Task = tasks[0]
        return task

    def begin(
        self, name: str, size: int, *, task: Task | None = None, marked_ns: int = 1, **more: Any
    ) -> str:
        task = task or self.task
        announced = Announced(task.pk, task.attempt.epoch, name, marked_ns, "own", 1, size, **more)
        return receive.begin(node=task.node, announced=announced)

    def send(self, id: str, name: str, data: bytes, *, finish: bool = True) -> str:
        node = self.portal.n1
        for number in range(-(-len(data) // PIECE_BYTES)):
            part = data[number * PIECE_BYTES : (number + 1) * PIECE_BYTES]
            digest = hashlib.sha256(part).hexdigest()
            receive.take_piece(node=node, checkpoint=id, number=number, sha256=digest, data=part)
        return receive.finish(node=node, checkpoint=id, manifest=manifest(name, data)) if finish else ""

    def store(self, name: str, data: bytes = b"weights", *, task: Task | None = None) -> Checkpoint:
        id = self.begin(name, len(data), task=task)
        assert self.send(id, name, data) == "complete"
        return Checkpoint.objects.get(pk=id)

    def objects(self) -> list[str]:
        return sorted(path.name for path in self.folder.rglob("*") if path.is_file())


def manifest(name: str, data: bytes) -> dict[str, Any]:
    file = {"path": f"{name}/model", "size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    return {"name": name, "size": len(data), "files": [file], "folders": [name]}


@pytest.fixture
def site(db: None, settings: Settings, tmp_path: Path) -> Site:
    settings.MUSTER_STORAGE = (tmp_path / "storage").as_uri()
    return Site(tmp_path / "storage")


def states(job: Job) -> list[str]:
    return list(Checkpoint.objects.filter(job=job).order_by("taken_at").values_list("state", flat=True))


# ---------------------------------------------------------------- stored


def test_a_checkpoint_of_several_pieces_is_complete_once_all_of_it_was_verified(site: Site) -> None:
    data = bytes(range(256)) * (PIECE_BYTES // 128)  # two whole pieces
    id = site.begin("step-1", len(data) + 5)
    assert site.begin("step-1", len(data) + 5) == id  # said again, it is the same

    site.send(id, "step-1", data + b"final")

    row = Checkpoint.objects.get(pk=id)
    assert (row.state, row.size_bytes, row.node.name) == ("complete", len(data) + 5, "n1")
    assert len(site.objects()) == 4
    job = Job.objects.get(pk=site.job.pk)
    assert (job.saved_at, job.saved_path) == (row.taken_at, "step-1")
    assert JobEvent.objects.filter(job=job, kind="job.saved").count() == 1
    assert site.send(id, "step-1", b"", finish=True) == "complete"  # and once more changes nothing


def test_bytes_that_are_not_what_the_manifest_says_are_no_checkpoint(site: Site) -> None:
    id = site.begin("step-1", 7)
    site.send(id, "step-1", b"weights", finish=False)

    assert (
        receive.finish(node=site.portal.n1, checkpoint=id, manifest=manifest("step-1", b"WEIGHTS"))
        == "failed"
    )

    row = Checkpoint.objects.get(pk=id)
    assert "checksum of step-1/model is wrong" in row.text
    assert Job.objects.get(pk=site.job.pk).saved_at is None
    removal.tidy()
    row.refresh_from_db()
    assert (row.state, site.objects()) == ("failed", [])


@pytest.mark.parametrize("damaged", [False, True])
def test_a_large_checkpoint_is_read_back_a_bounded_time_at_a_call(site: Site, damaged: bool) -> None:
    """No call keeps a thread of the storage for as long as all of it takes, and each goes on where the last stopped."""
    data = bytes(3 * PIECE_BYTES)
    id = site.begin("big", len(data))
    site.send(id, "big", data, finish=False)
    if damaged:
        (last,) = [path for path in site.folder.rglob("*") if path.name.endswith("2") and path.is_file()]
        last.write_bytes(last.read_bytes()[:-1] + b"x")

    def finish() -> str:
        return receive.finish(node=site.portal.n1, checkpoint=id, manifest=manifest("big", data), seconds=0)

    answers = []
    while (answer := finish()) == "storing":
        answers.append(answer)
        assert Checkpoint.objects.get(pk=id).state == "storing"
        assert len(answers) < 9

    assert len(answers) == (2 if damaged else 3), "one for each piece that is well"
    assert answer == ("failed" if damaged else "complete")
    assert finish() == ("leaving" if damaged else "complete"), "asked again, it reads nothing"


def test_a_piece_that_is_missing_or_damaged_on_its_way_is_found(site: Site) -> None:
    id = site.begin("step-1", 7)
    with pytest.raises(InvalidInput, match="checksum"):
        receive.take_piece(node=site.portal.n1, checkpoint=id, number=0, sha256="0" * 64, data=b"weights")
    with pytest.raises(InvalidInput, match="7 bytes"):
        receive.take_piece(node=site.portal.n1, checkpoint=id, number=0, sha256="0" * 64, data=b"weigh")
    assert (
        receive.finish(node=site.portal.n1, checkpoint=id, manifest=manifest("step-1", b"weights"))
        == "failed"
    )


@pytest.mark.parametrize("path", ["../step-1", "other/model", "/etc/passwd", "step-1/../../x"])
def test_a_manifest_that_leads_out_of_its_checkpoint_is_refused(site: Site, path: str) -> None:
    id = site.begin("step-1", 7)
    site.send(id, "step-1", b"weights", finish=False)
    bad = manifest("step-1", b"weights")
    bad["files"][0]["path"] = path
    with pytest.raises(InvalidInput):
        receive.finish(node=site.portal.n1, checkpoint=id, manifest=bad)


def test_another_node_can_neither_write_nor_read_it(site: Site) -> None:
    other = NodeFactory(cluster=site.portal.n1.cluster, name="other")
    row = site.store("step-1")
    id = site.begin("step-2", 7)
    with pytest.raises(Conflict):
        receive.take_piece(node=other, checkpoint=id, number=0, sha256="", data=b"weights")
    with pytest.raises(Conflict):
        receive.finish(node=other, checkpoint=id, manifest={})
    with pytest.raises(Conflict):
        resume.give_piece(node=other, checkpoint=str(row.pk), number=0, task=site.task.pk, epoch=1)


def test_what_is_larger_than_allowed_is_refused_with_an_event(site: Site, settings: Settings) -> None:
    job, task = site.a_job(max_size_mib=1)
    assert site.begin("large", 2**20 + 1, task=task) == ""
    settings.MUSTER_CHECKPOINT_MIB = 3
    assert site.begin("large", 4 * 2**20) == ""
    assert site.begin("links", 0, trouble="links/x is neither a file nor a folder.") == ""

    event = JobEvent.objects.get(job=job, kind="job.checkpoint_refused")
    assert event.because == "checkpoint large is refused: The checkpoint has 2 MiB; the maximum is 1 MiB."
    assert states(site.job) == ["failed", "failed"]


def test_the_newest_are_kept_and_the_bytes_of_older_ones_go(site: Site) -> None:
    for name in ("a", "b", "c"):
        site.store(name)
    assert states(site.job) == ["removed", "complete", "complete"]
    assert len(site.objects()) == 4  # a piece and a manifest each


def test_a_rank_that_is_ahead_takes_no_whole_checkpoint_away(site: Site) -> None:
    job, _ = site.a_job(keep=1)
    first = site.an_attempt(job, 2, ranks=2)
    second = Task.objects.get(attempt=first.attempt_id, rank=1)
    for name, task in (("a", first), ("a", second), ("b", first)):
        site.store(name, task=task)
    assert states(job) == ["complete"] * 3
    site.store("b", task=second)
    site.store("c", task=first)
    kept = Checkpoint.objects.filter(job=job, state="complete").order_by("taken_at")
    assert [(row.name, row.rank) for row in kept] == [("b", 0), ("b", 1), ("c", 0)]


def test_with_a_key_nothing_of_it_is_readable_in_the_storage(site: Site, settings: Settings) -> None:
    settings.MUSTER_STORAGE_KEYS = ["ab" * 32]
    row = site.store("step-1", b"weights that nobody else may read")
    stored = b"".join(path.read_bytes() for path in site.folder.rglob("*") if path.is_file())
    assert b"nobody else" not in stored
    assert b"sha256" not in stored
    task = site.an_attempt(site.job, 2)
    data = resume.give_piece(node=task.node, checkpoint=str(row.pk), number=0, task=task.pk, epoch=2)
    assert data == b"weights that nobody else may read"


def test_checkpoints_go_to_a_folder_of_their_own_where_one_is_named(
    site: Site, settings: Settings, tmp_path: Path
) -> None:
    settings.CHECKPOINT_PATH = str(tmp_path / "own")
    site.store("step-1")
    assert site.objects() == []
    assert sum(path.is_file() for path in (tmp_path / "own").rglob("*")) == 2


# ---------------------------------------------------------------- asked


def test_a_job_is_checkpointing_while_it_is_asked_and_waited_for(site: Site) -> None:
    node, task = site.portal.n1, site.task
    for _ in range(2):
        receive.take_asked(node=node, task=task.pk, epoch=1, reason="asked", seconds=30)
    assert Job.objects.get(pk=site.job.pk).state == "checkpointing"
    receive.take_missed(node=node, task=task.pk, epoch=1, text="No process of the job handles SIGUSR1.")
    assert Job.objects.get(pk=site.job.pk).state == "running"

    receive.take_asked(node=node, task=task.pk, epoch=1, reason="periodic", seconds=30)
    site.begin("step-1", 7)
    assert Job.objects.get(pk=site.job.pk).state == "running"
    kinds = [k for k in JobEvent.objects.order_by("id").values_list("kind", flat=True) if "checkpoint" in k]
    assert kinds == ["job.checkpointing", "job.checkpoint_missed", "job.checkpointing"]


def test_a_request_that_has_not_reached_the_agent_outlives_its_restart(site: Site) -> None:
    asked_at = timezone.now()
    Task.objects.filter(pk=site.task.pk).update(checkpoint_asked_at=asked_at)

    receive.take_missed(node=site.portal.n1, task=site.task.pk, epoch=1, text="")
    assert Task.objects.get(pk=site.task.pk).checkpoint_asked_at == asked_at

    receive.take_missed(node=site.portal.n1, task=site.task.pk, epoch=1, text="No process handles SIGUSR1.")
    assert Task.objects.get(pk=site.task.pk).checkpoint_asked_at is None


def test_somebody_asks_for_one_now(site: Site) -> None:
    with pytest.raises(NotAllowed):
        verbs.ask_checkpoint(job=site.job, by=site.cast.colleague)
    for _ in range(2):
        verbs.ask_checkpoint(job=site.job, by=site.cast.owner)
    site.task.refresh_from_db()
    assert site.task.checkpoint_asked_at is not None
    assert AuditEvent.objects.filter(action="job.ask_checkpoint").count() == 1

    receive.take_asked(node=site.portal.n1, task=site.task.pk, epoch=1, reason="asked", seconds=30)
    site.task.refresh_from_db()
    assert site.task.checkpoint_asked_at is None

    plain = JobFactory(
        project=site.cast.project, user=site.cast.owner, queue=site.portal.queue, state="running"
    )
    with pytest.raises(Conflict, match="makes no checkpoints"):
        verbs.ask_checkpoint(job=plain, by=site.cast.owner)


# ---------------------------------------------------------------- gone on from


def restore(site: Site, task: Task) -> str:
    answer = resume.restore(node=task.node, task=task.pk, epoch=task.attempt.epoch)
    return "wait" if answer.get("wait") else answer["manifest"]["name"] if "manifest" in answer else "nothing"


def test_the_next_attempt_gets_the_newest_complete_one_on_another_node(site: Site) -> None:
    site.store("step-1")
    row = site.store("step-2", b"better weights")
    n2 = NodeFactory(cluster=site.portal.n1.cluster, name="another")
    task = site.an_attempt(site.job, 2, node=n2)

    assert restore(site, task) == "step-2"
    assert (
        resume.give_piece(node=n2, checkpoint=str(row.pk), number=0, task=task.pk, epoch=2)
        == b"better weights"
    )
    for _ in range(2):
        resume.note_restored(node=n2, checkpoint=str(row.pk), task=task.pk, epoch=2)
    event = JobEvent.objects.get(job=site.job, kind="job.restored")
    assert event.because == "continues from checkpoint step-2 of attempt 1, fetched to another"


def test_it_waits_for_one_on_its_way_but_not_for_ever(site: Site) -> None:
    site.store("step-1")
    id = site.begin("step-2", 7)
    task = site.an_attempt(site.job, 2)
    assert restore(site, task) == "wait"
    Checkpoint.objects.filter(pk=id).update(seen_at=timezone.now() - timedelta(minutes=2))
    assert restore(site, task) == "step-1"


def test_one_whose_bytes_are_gone_is_passed_over_and_said(site: Site) -> None:
    site.store("step-1")
    damaged = site.store("step-2")
    for path in site.folder.rglob("manifest*"):
        if str(damaged.pk) in str(path):
            path.unlink()
    assert restore(site, site.an_attempt(site.job, 2)) == "step-1"
    assert JobEvent.objects.filter(kind="job.checkpoint_failed").count() == 1


def test_a_first_attempt_begins_with_nothing(site: Site) -> None:
    site.store("step-1")
    assert restore(site, site.task) == "nothing"


def test_parts_of_several_tasks_are_gone_on_from_only_together() -> None:
    def part(epoch: int, rank: int, name: str) -> Checkpoint:
        return Checkpoint(epoch=epoch, rank=rank, name=name)

    whole = [part(1, 0, "a"), part(1, 1, "a")]
    half = [*whole, part(1, 0, "b")]
    alone = [*half, part(2, 0, "c")]

    assert [(one.name, one.rank) for one in parts_for(1, half)] == [("a", 1)]
    assert [(one.name, one.rank) for one in parts_for(1, alone)] == [("c", 0), ("a", 1)]
    assert [(one.name, one.rank) for one in parts_for(7, whole)] == [("a", 0)]


# ---------------------------------------------------------------- left


def test_checkpoints_go_with_the_results_of_their_job(site: Site, settings: Settings) -> None:
    site.store("step-1")
    Job.objects.filter(pk=site.job.pk).update(
        state="completed", completed_at=timezone.now() - timedelta(days=6)
    )
    assert removal.tidy() == 0
    Job.objects.filter(pk=site.job.pk).update(completed_at=timezone.now() - timedelta(days=8))
    assert removal.tidy() == 1
    assert (states(site.job), site.objects()) == (["removed"], [])


def test_what_its_node_never_sent_to_the_end_is_let_go(site: Site) -> None:
    id = site.begin("step-1", 7)
    site.send(id, "step-1", b"weights", finish=False)
    assert removal.tidy() == 0
    Checkpoint.objects.filter(pk=id).update(seen_at=timezone.now() - timedelta(hours=25))
    assert removal.tidy() == 1
    assert (states(site.job), site.objects()) == (["failed"], [])


# ---------------------------------------------------------------- doors


def call(user: User, method: str, path: str, scope: str = "jobs:write") -> Any:
    return Client().generic(method, f"/api/v1/jobs/{path}", headers=bearer(user, "jobs:read", scope))


def test_checkpoints_are_listed_read_and_removed_over_the_api(
    site: Site, django_capture_on_commit_callbacks: Any
) -> None:
    row = site.store("step-1")
    at = f"{site.job.number}/checkpoints"
    (listed,) = call(site.cast.colleague, "GET", at).json()["results"]
    assert (listed["id"], listed["name"], listed["state"], listed["node"]) == (
        str(row.pk), "step-1", "complete", "n1",
    )  # fmt: skip
    files = call(site.cast.owner, "GET", f"{at}/{row.pk}/manifest").json()["files"]
    assert files == manifest("step-1", b"weights")["files"]

    assert call(site.cast.viewer, "GET", at).status_code == 403
    assert call(site.cast.stranger, "GET", at).status_code == 404
    assert call(site.cast.colleague, "DELETE", f"{at}/{row.pk}").status_code == 403
    with django_capture_on_commit_callbacks(execute=True):
        assert call(site.cast.owner, "DELETE", f"{at}/{row.pk}").status_code == 204
    row.refresh_from_db()
    assert (row.state, row.removed_by, site.objects()) == ("removed", site.cast.owner, [])
    assert call(site.cast.owner, "DELETE", f"{at}/{row.pk}").status_code == 204
    assert call(site.cast.owner, "GET", f"{at}/{row.pk}/manifest").status_code == 409
    assert AuditEvent.objects.filter(action="job.remove_checkpoint").count() == 1
    with pytest.raises(NotFound):
        verbs.checkpoint_of(site.a_job()[0], str(row.pk), by=site.cast.owner)


def test_the_bytes_of_one_are_for_those_who_see_the_inside_of_the_job(site: Site, client: Client) -> None:
    data = bytes(range(256)) * (PIECE_BYTES // 128) + b"end"  # three pieces
    row = site.store("step-1", data)
    at = f"{site.job.number}/checkpoints/{row.pk}/archive"

    for user in (site.cast.owner, site.cast.lead):
        answer = call(user, "GET", at)
        with tarfile.open(fileobj=io.BytesIO(b"".join(answer.streaming_content))) as packed:
            assert packed.getnames() == ["step-1", "step-1/model"]
            found = packed.extractfile("step-1/model")
            assert found is not None
            assert found.read() == data
    with zipfile.ZipFile(
        io.BytesIO(b"".join(call(site.cast.owner, "GET", f"{at}?kind=zip").streaming_content))
    ) as pack:
        assert pack.namelist() == ["step-1/", "step-1/model"]
        assert pack.read("step-1/model") == data
    assert call(site.cast.owner, "GET", f"{at}?kind=rar").status_code == 400
    for user, status in ((site.cast.colleague, 403), (site.cast.operator, 403), (site.cast.stranger, 404)):
        assert call(user, "GET", at).status_code == status
        client.force_login(user)
        assert client.get(f"/jobs/{at}/").status_code == status
    client.force_login(site.cast.colleague)
    page = f"/jobs/{site.job.number}/?tab=results"
    assert "/archive/" not in client.get(page).content.decode()
    client.force_login(site.cast.owner)
    assert f'href="/jobs/{at}/"' in client.get(page).content.decode()


def test_a_checkpoint_that_is_damaged_is_not_downloaded_to_its_end(site: Site) -> None:
    row = site.store("step-1", bytes(PIECE_BYTES) + b"end")
    at = f"{site.job.number}/checkpoints/{row.pk}/archive"
    first, last = sorted(path for path in site.folder.rglob("0000000?"))

    last.write_bytes(b"enD")
    with pytest.raises(Damaged, match="checksum of step-1/model"):
        b"".join(call(site.cast.owner, "GET", at).streaming_content)
    first.unlink()
    assert call(site.cast.owner, "GET", at).status_code == 409


def test_the_page_says_why_there_is_no_checkpoint_and_asks_before_one_is_removed(
    site: Site, client: Client
) -> None:
    client.force_login(site.cast.owner)
    page = f"/jobs/{site.job.number}/?tab=results"
    for text in ("No process handles SIGUSR1.", "No process handles SIGUSR1.", "The job ended."):
        receive.take_missed(node=site.portal.n1, task=site.task.pk, epoch=1, text=text)
    shown = client.get(page).content.decode()
    assert shown.count("No checkpoint on n1: No process handles SIGUSR1.") == 1
    assert "No checkpoint on n1: The job ended." in shown

    row = site.store("step-1")
    shown = client.get(page).content.decode()
    assert "handles SIGUSR1" not in shown
    assert f'data-dialog="remove-checkpoint-{row.pk}"' in shown
    assert f'<dialog id="remove-checkpoint-{row.pk}"' in shown
    removal.remove_checkpoint(job=site.job, checkpoint=row, by=site.cast.owner)
    shown = client.get(page).content.decode()
    assert "1 checkpoint that was removed" in shown
    assert f"Removed by {site.cast.owner.username}." in shown
    assert f"remove-checkpoint-{row.pk}" not in shown


def test_the_page_lists_them_and_takes_one(site: Site, client: Client) -> None:
    row = site.store("step-<b>1")
    client.force_login(site.cast.owner)
    page = client.get(f"/jobs/{site.job.number}/?tab=results").content.decode()
    assert "step-&lt;b&gt;1" in page
    assert "stored and verified" in page
    assert client.get(f"/jobs/{site.job.number}/checkpoints/{row.pk}/manifest/").json()["name"] == row.name
    client.post(f"/jobs/{site.job.number}/checkpoints/take/")
    assert Task.objects.get(pk=site.task.pk).checkpoint_asked_at is not None
    client.post(f"/jobs/{site.job.number}/checkpoints/{row.pk}/remove/")
    assert states(site.job) == ["leaving"]


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ({"state": "half"}, "checkpoint_state_known"),
        ({"stored_at": None}, "checkpoint_complete_is_stored"),
        ({"size_bytes": -1}, "checkpoint_has_size"),
    ],
)
def test_the_database_takes_no_checkpoint_that_cannot_be(said: dict[str, Any], name: str) -> None:
    CheckpointFactory()
    with pytest.raises(IntegrityError, match=name), transaction.atomic():
        Checkpoint.objects.update(**said)


def test_the_policy_of_a_row_reads_as_it_was_written() -> None:
    assert CheckpointPolicy(**POLICY).signal_number == 10
