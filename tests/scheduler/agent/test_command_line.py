"""`python -m muster`: what jobs left comes back byte for byte, and nothing is written outside of the named folder."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from collections.abc import Callable, Iterator
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

import pytest
from pytest_django.fixtures import Settings

from accounts.models import User
from config.http.api_server import ApiDoor, PageDoor
from muster.arguments import main, parser
from muster.client import Client, Failed, _why
from muster.download import local_path, save, unpack
from muster.uploads import _pieces, read_folder
from scheduler.models import Artifact, Checkpoint, FolderUpload, Job, KeptResult
from scheduler.services.artifacts.uploads import store_due
from tests.scheduler.agent.conftest import StartAgent
from tests.support.agents import Server, World, wait_for
from tests.support.factories import MembershipFactory, UserFactory, a_token

WRITE = (
    "mkdir -p 'out/deep er' empty; head -c 700001 /dev/urandom > out/big.bin; printf '1,2\\n' > 'out/deep er/a.csv';"
    " : > none; printf odd > \"$(printf 'odd\\377')\"; ln -s /etc/passwd link;"
    ' mkdir "$MUSTER_CHECKPOINT_DIR/step-1"; head -c 4500000 /dev/urandom > "$MUSTER_CHECKPOINT_DIR/step-1/model";'
    ' : > "$MUSTER_CHECKPOINT_DIR/step-1/empty"; cp "$MUSTER_CHECKPOINT_DIR/step-1/model" copy;'
    ' : > "$MUSTER_CHECKPOINT_DIR/step-1.done"'
)


def as_in_production(door: Any) -> Any:
    """The same server with the doors of `config.asgi`, which send what is pulled piece by piece."""
    door.inner = ApiDoor(PageDoor())
    return door


@pytest.fixture
def server(transactional_db: None) -> Iterator[Server]:
    server = Server(as_in_production).start()
    yield server
    server.stop()


Muster = Callable[..., tuple[int, str, str]]


@pytest.fixture
def muster(server: Server, monkeypatch: pytest.MonkeyPatch, capsys: Any, tmp_path: Path) -> Muster:
    """Runs a command as a person; answers its exit code and what it printed."""
    monkeypatch.chdir(tmp_path)

    def run(user: User, *arguments: str) -> tuple[int, str, str]:
        monkeypatch.setenv("MUSTER_URL", server.url)
        monkeypatch.setenv("MUSTER_TOKEN", a_token(user, "jobs:read", "jobs:write"))
        code = main(arguments)
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


def files_in(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not path.is_symlink()
    }


@pytest.mark.django_db(transaction=True)
def test_what_a_job_left_is_listed_downloaded_and_deleted(
    muster: Muster, world: World, start_agent: StartAgent, settings: Any, tmp_path: Path
) -> None:
    settings.MUSTER_STORAGE = (tmp_path / "storage").as_uri()
    agent = start_agent()
    job = world.submit(WRITE, artifacts=["out/**", "odd*"], checkpoint={})
    world.run_until(job, "completed")
    wait_for(lambda: KeptResult.objects.filter(job=job).exists())
    wait_for(lambda: Checkpoint.objects.filter(job=job, state="complete").exists())
    store_due()
    (on_disk,) = (agent.state / "results").iterdir()
    there, number = files_in(on_disk / "work"), str(job.pk)
    me, colleague, stranger = world.user, UserFactory(), UserFactory()
    MembershipFactory(project=world.project, user=colleague)

    assert muster(me, "results", "download", number)[0] == 0
    assert files_in(tmp_path / f"job-{number}-results") == there
    assert (tmp_path / f"job-{number}-results/empty").is_dir()
    assert muster(me, "results", "download", number, "odd\\xff", "--into", "one")[0] == 0
    assert files_in(tmp_path / "one") == {"odd\udcff": b"odd"}
    assert "odd\\xff" in muster(me, "results", "list", number)[1]

    assert muster(me, "artifacts", "download", number, "--into", "kept")[0] == 0
    stored = {name: data for name, data in there.items() if name.startswith("o")}
    assert files_in(tmp_path / "kept") == stored
    listed = json.loads(muster(me, "artifacts", "list", number, "--json")[1])
    big = next(one for one in listed if one["path"] == "out/big.bin")
    assert muster(me, "artifacts", "download", number, str(big["id"]), "--into", "big")[0] == 0
    assert files_in(tmp_path / "big") == {"out/big.bin": there["out/big.bin"]}

    assert "step-1" in muster(me, "checkpoints", "list", number)[1]
    assert muster(me, "checkpoints", "download", number, "--into", "saved")[0] == 0
    assert files_in(tmp_path / "saved") == {"step-1/model": there["copy"], "step-1/empty": b""}

    assert muster(colleague, "results", "list", number)[0] == 0
    assert muster(colleague, "checkpoints", "download", number, "--into", "theirs")[0] == 1
    for noun in ("results", "artifacts", "checkpoints"):
        assert muster(stranger, noun, "list", number)[0] == 1
        which = ["step-1"] if noun == "checkpoints" else []
        assert muster(colleague, noun, "delete", number, *which, "--yes")[0] == 1
        code, _, why = muster(me, noun, "delete", number, *which)
        assert (code, "--yes" in why) == (1, True)
        assert muster(me, noun, "delete", number, *which, "--yes", "--reason", "disk")[0] == 0
    assert not Artifact.objects.filter(job=job, leaves_at=None).exists()
    assert muster(me, "artifacts", "list", number) == (0, "", "")
    assert muster(me, "checkpoints", "download", number)[0] == 1
    assert not Checkpoint.objects.filter(job=job, state="complete").exists()
    assert isinstance(job, Job)


class _Sent(io.BytesIO):
    """An answer of the portal that has these bytes."""

    length = 0


def a_tar(name: str, data: bytes = b"x", kind: bytes = tarfile.REGTYPE) -> HTTPResponse:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        info = tarfile.TarInfo(name)
        info.size, info.type, info.linkname = len(data), kind, "/etc"
        tar.addfile(info, io.BytesIO(data))
    return _Sent(packed.getvalue())  # type: ignore[return-value]


@pytest.mark.parametrize("name", ["../out", "/tmp/out", "a/../../out", "a//b", "."])
def test_nothing_is_written_outside_of_the_folder(name: str, tmp_path: Path) -> None:
    with pytest.raises(Failed, match="outside"):
        unpack(a_tar(name), tmp_path / "in")
    with pytest.raises(Failed, match="outside"):
        local_path(tmp_path / "in", name)

    assert [path.name for path in tmp_path.rglob("*")] == ["in"]


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE])
def test_links_and_pipes_are_refused(kind: bytes, tmp_path: Path) -> None:
    with pytest.raises(Failed, match="something else than files"):
        unpack(a_tar("link", b"", kind), tmp_path / "in")


def test_a_download_that_is_cut_off_is_no_file_and_no_success(tmp_path: Path) -> None:
    whole = a_tar("big", bytes(100_000)).read()
    with pytest.raises(Failed, match="ended early"):
        unpack(_Sent(whole[:60_000]), tmp_path / "in")  # type: ignore[arg-type]
    short = _Sent(b"half")
    short.length = 4
    for answer, checksum in ((short, ""), (_Sent(b"whole"), "0" * 64)):
        with pytest.raises(Failed, match="try again"):
            save(answer, tmp_path / "file", sha256=checksum)  # type: ignore[arg-type]
    assert not list(tmp_path.glob("file*"))


def test_what_is_there_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(Failed, match="there already"):
        save(_Sent(b"x"), tmp_path / "mine")  # type: ignore[arg-type]
    with pytest.raises(Failed, match="not empty"):
        unpack(a_tar("a"), tmp_path)
    assert (tmp_path / "mine").read_text() == "mine"


@pytest.mark.parametrize(
    ("url", "token", "why"),
    [
        ("http://muster.example.org", "t", "without encryption"),
        ("ftp://x", "t", "is no address"),
        ("https://x", "", "MUSTER_TOKEN"),
    ],
)
def test_a_token_goes_nowhere_in_the_clear(url: str, token: str, why: str) -> None:
    with pytest.raises(Failed, match=why):
        Client(url, token)


# ---------------------------------------------------------------- uploads


def a_folder(at: Path) -> Path:
    """With a script, a file of two pieces, an odd name and an empty folder."""
    (at / "src" / "empty").mkdir(parents=True)
    (at / "run.sh").write_text("#!/bin/sh\nsha256sum < src/big.bin | cut -c1-64; ls -A . src\n")
    (at / "run.sh").chmod(0o755)
    (at / "src/big.bin").write_bytes(bytes(range(256)) * 20_000)
    (at / "src/a\\b\n").write_text("odd")
    return at


@pytest.mark.django_db(transaction=True)
def test_a_folder_is_sent_run_listed_and_deleted(
    world: World, start_agent: StartAgent, muster: Muster, settings: Settings, tmp_path: Path
) -> None:
    settings.MUSTER_STORAGE = (tmp_path / "storage").as_uri()
    folder = a_folder(tmp_path / "training")
    start_agent()
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/sh\n#SBATCH --distribution=cyclic\n./run.sh\n")

    code, said, noted = muster(
        world.user,
        "submit",
        "--upload",
        str(folder),
        "--exclude",
        "*.pyc",
        "--set",
        "cpu_cores=1",
        str(script),
    )
    job = Job.objects.get()
    assert (code, said) == (0, f"Submitted job {job.number}\n")
    assert "line 2 has no effect: #SBATCH --distribution=cyclic" in noted
    world.run_until(job, "completed")
    digest = hashlib.sha256((folder / "src/big.bin").read_bytes()).hexdigest()
    assert world.output(job).decode().split("\n")[:3] == [digest, ".:", "run.sh"]
    assert "empty" in world.output(job).decode()
    code, said, _ = muster(world.user, "uploads", "list")
    assert str(job.upload) in said
    assert muster(world.user, "uploads", "delete", str(job.upload), "--yes")[0] == 0
    assert FolderUpload.objects.get().state == "removed"


@pytest.mark.django_db(transaction=True)
def test_what_cannot_be_sent_is_refused_and_leaves_nothing(
    world: World, muster: Muster, settings: Settings, tmp_path: Path
) -> None:
    settings.MUSTER_STORAGE = (tmp_path / "storage").as_uri()
    folder = a_folder(tmp_path / "training")
    (folder / "link").symlink_to("/etc/passwd")
    os.mkfifo(folder / "pipe")
    for wrong, words in (
        (["uploads", "create", str(folder)], "link is a link, and links are not followed"),
        (["uploads", "create", str(folder), "--exclude", "link"], "pipe is neither a file nor a folder"),
        (["uploads", "create", str(tmp_path / "none")], "cannot be read"),
        (["uploads", "create", str(folder / "src/empty")], "has no file to send"),
        (["submit"], "Give a file, or a command"),
        (["submit", "-c", "true", "--set", "cpus"], "is no setting"),
    ):
        code, _, said = muster(world.user, *wrong)
        assert (code, words in said) == (1, True), said
    assert not FolderUpload.objects.exists()

    code, _, said = muster(
        world.user, "submit", "-c", "true", "--set", "gpus=oops", "--upload", str(folder),
        "--exclude", "link", "--exclude", "pipe",
    )  # fmt: skip
    row = FolderUpload.objects.get()
    assert (code, f"--set upload={row.pk}" in said) == (1, True)
    assert muster(world.user, "submit", "-c", "true", "--set", f"upload={row.pk}")[0] == 0
    assert Job.objects.get().upload == row.pk


def test_a_file_that_changes_while_it_is_sent_ends_the_upload(tmp_path: Path) -> None:
    folder = a_folder(tmp_path / "training")
    found = read_folder(folder)
    assert "src/a\\\\b\\x0a" in found.files  # as the API writes it
    (folder / "run.sh").write_text("longer than before " * 10)

    with pytest.raises(Failed, match=r"run\.sh changed while it was sent"):
        list(_pieces(found, ["run.sh"], 4096))


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"detail": "No such job."}, "No such job."),
        ({"detail": "Unknown.", "errors": [{"field": "cpus", "message": "Unknown."}]}, "cpus: Unknown."),
        (
            {"detail": "2 are invalid.", "errors": [{"field": "a", "message": "x"}, {"field": "b", "message": "y"}]},
            "2 are invalid.\na: x\nb: y",
        ),
    ],
)  # fmt: skip
def test_a_refusal_is_said_once_with_its_field(body: dict[str, Any], said: str) -> None:
    class Answer:
        def read(self, most: int) -> bytes:
            return json.dumps(body).encode()[:most]

    answer: Any = Answer()
    assert _why(answer) == said


class Answers:
    """A client that answers every question with this."""

    def __init__(self, answer: dict[str, Any]) -> None:
        self.answer, self.asked = answer, ""

    def call(self, method: str, path: str) -> dict[str, Any]:
        self.asked = f"{method} {path}"
        return self.answer


def test_why_prints_the_cause_or_the_scores(capsys: Any) -> None:
    waits = {"headline": "All 2 nodes are cordoned.", "cause": {"code": "cordon", "subject": "n1"},
             "blockers": [{"text": "Queue main is paused."}], "placement": None}  # fmt: skip
    basis = {"unknown": "", "cycle": 7, "place": 1, "starts": 2, "order": "fifo", "placement": "best_fit",
             "backfill": "none", "gates": [{"words": "nodes in the cluster", "turned_away": 0, "left": 2}],
             "nodes": [{"name": "n1", "total": 51, "chosen": True, "parts": {"tightness": 3}}]}  # fmt: skip
    runs = {"headline": "The job is running.", "cause": None, "blockers": [], "placement": basis}

    for answer in (waits, runs):
        client = Answers(answer)
        asked = parser().parse_args(["job", "why", "12"])
        asked.do(client, asked)
        assert client.asked == "GET jobs/12/why"

    assert capsys.readouterr().out.splitlines() == [
        "All 2 nodes are cordoned.",
        "cause: cordon n1",
        "also: Queue main is paused.",
        "The job is running.",
        "cycle 7: start 1 of 2 by fifo, placement best_fit, backfill none",
        "  2 nodes in the cluster",
        "node  score          parts",
        "n1    51     chosen  tightness 3",
    ]


def test_jobs_change_are_held_and_cancelled_from_a_terminal(muster: Muster) -> None:
    world = World.make()
    single = world.submit(priority=50)
    first = world.submit(array="0-2")

    code, out, err = muster(
        world.user, "job", "change", str(single.number), "--set", "priority=30", "--set", "memory=1Gi"
    )
    assert (code, out.startswith(f"Job {single.number} is changed. Not evaluated"), err) == (0, True, "")
    assert Job.objects.get(pk=single.pk).priority == 30
    code, _, err = muster(world.user, "job", "change", str(single.number), "--set", "command=false")
    assert (code, "command: Cannot be changed" in err) == (1, True)
    assert muster(world.user, "job", "cancel", f"{first.number}_1", "--reason", "odd")[0] == 0
    code, out, _ = muster(world.user, "array", "hold", str(first.number))
    assert (code, out.splitlines()[0]) == (0, "2 changed, 0 were so already, 1 in another state")
    assert muster(world.user, "array", "change", str(first.number), "--max-running", "1")[0] == 0
    code, out, _ = muster(world.user, "array", "show", str(first.number))
    assert out.splitlines() == [
        f"Array {first.number} true: 1 of 3 have ended", "queued     2", "cancelled  1"
    ]  # fmt: skip
    code, out, _ = muster(world.user, "jobs", "release", "--filter", "user=me", "--dry-run")
    assert (code, out) == (0, "2 matched: 2 would be released, 0 were so already, 0 refused\n")
    code, _, err = muster(
        world.user, "jobs", "cancel", "--filter", "state=queued", "--filter", "state=running"
    )
    assert (code, "--filter state is there twice" in err) == (1, True)
    code, out, _ = muster(world.user, "jobs", "cancel", "--filter", "user=me", "--filter", "project=vision")
    assert (code, out) == (0, "3 matched: 3 cancelled, 0 were so already, 0 refused\n")
    assert set(Job.objects.values_list("state", "array_max_running")) == {
        ("cancelled", None), ("cancelled", 1)
    }  # fmt: skip
