"""What is taken of the folder in which a job puts its checkpoints, which the job controls."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from scheduler.agent.checkpoints import folder
from scheduler.agent.checkpoints.folder import Pieces, content_of, finished
from scheduler.agent.protocol import PIECE_BYTES
from scheduler.agent.results.folder import Unreadable, opened


@pytest.fixture
def into(tmp_path: Path) -> Path:
    (tmp_path / "checkpoints").mkdir()
    return tmp_path / "checkpoints"


def save(into: Path, name: str, **files: bytes) -> None:
    (into / name).mkdir(parents=True)
    for path, data in files.items():
        (into / name / path).write_bytes(data)
    (into / f"{name}.done").touch()


def read(into: Path, name: str) -> Pieces:
    with opened(str(into.parent), "checkpoints") as root:
        pieces = Pieces(root, content_of(root, name.encode()))
        pieces.data = list(pieces)  # type: ignore[attr-defined]
        return pieces


def test_only_what_is_marked_as_finished_is_one(into: Path) -> None:
    save(into, "step-1", model=b"x")
    (into / "step-2").mkdir()
    (into / "orphan.done").touch()
    (into / ".done").touch()
    (into / "file").write_bytes(b"y")
    (into / "file.done").touch()
    os.symlink("/etc/passwd", into / "step-2.done")
    assert [one.name for one in finished(str(into.parent))] == [b"step-1", b"file"]
    assert finished(str(into.parent.parent)) == []


def test_files_are_read_in_pieces_of_one_stream_with_their_checksums(into: Path) -> None:
    big = os.urandom(PIECE_BYTES + 10)
    save(into, "s", a=big, b=b"", c=b"end")
    pieces = read(into, "s")
    assert [len(piece) for piece in pieces.data] == [PIECE_BYTES, 13]  # type: ignore[attr-defined]
    assert [(one["path"], one["sha256"]) for one in pieces.manifest["files"]] == [
        (f"s/{name}", hashlib.sha256(data).hexdigest())
        for name, data in (("a", big), ("b", b""), ("c", b"end"))
    ]


def test_links_and_pipes_are_refused_by_name(into: Path) -> None:
    save(into, "s", a=b"x")
    os.symlink("/etc/passwd", into / "s" / "latest")
    with pytest.raises(Unreadable, match="s/latest is neither a file nor a folder"):
        read(into, "s")
    os.unlink(into / "s" / "latest")
    os.mkfifo(into / "s" / "pipe")
    with pytest.raises(Unreadable, match="s/pipe"):
        read(into, "s")


def test_a_link_in_place_of_the_checkpoint_or_the_folder_is_not_followed(into: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "key").write_bytes(b"x")
    os.symlink(secret, into / "s")
    (into / "s.done").touch()
    with pytest.raises(Unreadable):
        read(into, "s")
    folder.remove(str(tmp_path), finished(str(tmp_path))[0])
    assert (secret / "key").exists()
    assert not (into / "s").is_symlink()


def test_a_checkpoint_without_a_file_is_none(into: Path) -> None:
    save(into, "s")
    with pytest.raises(Unreadable, match="no file"):
        read(into, "s")


def test_what_is_marked_anew_while_it_was_sent_stays(into: Path) -> None:
    save(into, "s", a=b"x")
    (sent,) = finished(str(into.parent))
    os.utime(into / "s.done", ns=(1, 1))
    folder.remove(str(into.parent), sent)
    assert (into / "s" / "a").exists()
    folder.remove(str(into.parent), finished(str(into.parent))[0])
    assert list(into.iterdir()) == []
