"""A folder as storage: whole files, of one account, under its root alone."""

from __future__ import annotations

import io
import os
import stat
import time
from pathlib import Path

import pytest

from infra.storage import NotStored, StorageError
from infra.storage.files import UNFINISHED, UNFINISHED_SECONDS, FileStorage


def test_only_the_portals_account_reads_it(folder: FileStorage) -> None:
    folder.put("jobs/1/a", io.BytesIO(b"x"))

    for path in (folder.root, folder.root / "jobs", folder.root / "jobs/1", folder.root / UNFINISHED):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700, path
    assert stat.S_IMODE((folder.root / "jobs/1/a").stat().st_mode) == 0o600


def test_links_in_it_are_not_followed(folder: FileStorage, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    folder.put("jobs/1/a", io.BytesIO(b"x"))
    (folder.root / "jobs/1/link").symlink_to(tmp_path / "secret")
    os.mkfifo(folder.root / "jobs/1/pipe")

    for key in ("jobs/1/link", "jobs/1/pipe", "jobs/1"):
        with pytest.raises(NotStored):
            folder.open(key)
        with pytest.raises(NotStored):
            folder.size(key)
    assert list(folder.list("jobs/")) == [("jobs/1/a", 1)]


def test_empty_folders_go_with_their_last_object(folder: FileStorage) -> None:
    folder.put("jobs/1/a", io.BytesIO(b"x"))

    folder.delete("jobs/1/a")

    assert not (folder.root / "jobs").exists()
    assert folder.root.exists()


def test_a_key_inside_another_is_refused_with_the_reason(folder: FileStorage) -> None:
    folder.put("a", io.BytesIO(b"x"))

    with pytest.raises(StorageError, match="a/b"):
        folder.put("a/b", io.BytesIO(b"y"))
    assert list(folder.list()) == [("a", 1)]


def test_what_a_killed_process_left_unfinished_is_removed(folder: FileStorage) -> None:
    unfinished = folder.root / UNFINISHED
    unfinished.mkdir(parents=True)
    (unfinished / "old").write_text("half")
    (unfinished / "new").write_text("half")
    before = time.time() - UNFINISHED_SECONDS - 1
    os.utime(unfinished / "old", (before, before))

    folder.put("a", io.BytesIO(b"x"))

    assert [path.name for path in unfinished.iterdir()] == ["new"]
    assert list(folder.list()) == [("a", 1)]


def test_a_disk_that_fails_is_an_error_with_a_way_out(tmp_path: Path) -> None:
    (tmp_path / "objects").write_text("a file where the folder should be")

    with pytest.raises(StorageError, match="MUSTER_STORAGE") as caught:
        FileStorage(tmp_path / "objects").put("a", io.BytesIO(b"x"))
    assert caught.value.status == 503
