"""A job's folder is read without following what its owner has put there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.agent.results import folder
from scheduler.agent.results.folder import Unreadable, list_files, measure, opened, read_piece
from scheduler.agent.results.names import BadPath, decode_path, encode_name


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


def paths(work: Path, **asked: object) -> list[tuple[str, str]]:
    with opened(str(work.parent)) as root:
        entries, _ = list_files(root, **{"most": 100, **asked})  # type: ignore[arg-type]
        return [(entry.path, entry.kind) for entry in entries]


def read(work: Path, path: str, **asked: object) -> bytes:
    with opened(str(work.parent)) as root:
        return read_piece(root, path, **{"offset": 0, "length": 1000, **asked})[1]  # type: ignore[arg-type]


@given(st.binary(min_size=1, max_size=40).filter(lambda name: b"/" not in name and b"\0" not in name))
def test_each_name_has_one_text_and_back(name: bytes) -> None:
    text = encode_name(name)

    assert text.isprintable()
    if name not in (b".", b".."):
        assert decode_path(text) == [name]


def test_an_ordinary_name_is_its_own_text() -> None:
    assert encode_name("Ergebnis ä 1.txt".encode()) == "Ergebnis ä 1.txt"
    assert encode_name(b"a\nb\\\xff") == "a\\x0ab\\\\\\xff"


@pytest.mark.parametrize(
    "path", ["..", "a/../b", "/etc", "a//b", ".", "a/./b", "a\\x00", "a\\x2fb", "\\q", "\ud800"]
)
def test_no_path_leads_out_of_the_folder(path: str) -> None:
    with pytest.raises(BadPath):
        decode_path(path)


def test_the_list_says_what_is_there_and_pages_go_on(work: Path) -> None:
    (work / "a").mkdir()
    (work / "a/one").write_text("1")
    (work / "a/two").write_text("2")
    (work / "b").symlink_to("/etc")
    os.mkfifo(work / "c")

    whole = [("a", "folder"), ("a/one", "file"), ("a/two", "file"), ("b", "link"), ("c", "other")]
    assert paths(work) == whole
    for place, (path, _) in enumerate(whole):
        assert paths(work, after=path) == whole[place + 1 :]
    assert paths(work, path="a") == whole[1:3]
    assert paths(work, path="a", after="a/one") == whole[2:3]


def test_links_pipes_and_devices_are_refused(work: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("key")
    (work / "link").symlink_to(secret)
    (work / "folder").symlink_to(tmp_path)
    os.mkfifo(work / "pipe")

    for path in ("link", "folder/secret", "pipe"):
        with pytest.raises(Unreadable) as refused:
            read(work, path)
        assert refused.value.code == "refused"
    with pytest.raises(Unreadable, match="no such file"):
        read(work, "nothing")


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="makes a file of another account, which needs root")
def test_a_hard_link_to_a_file_of_another_account_is_refused(work: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("key")
    os.chown(work, 65534, 65534)
    os.link(secret, work / "mine")

    with pytest.raises(Unreadable, match="another account"):
        read(work, "mine")


def test_a_working_folder_that_became_a_link_is_not_opened(tmp_path: Path) -> None:
    (tmp_path / "work").symlink_to("/etc")

    with pytest.raises(Unreadable), opened(str(tmp_path)):
        pass


def test_pieces_are_of_one_state_of_the_file(work: Path) -> None:
    (work / "file").write_bytes(b"0123456789")
    with opened(str(work.parent)) as root:
        entry, data = read_piece(root, "file", offset=3, length=4)
    assert (data, entry.size) == (b"3456", 10)

    assert read(work, "file", version=entry.version, offset=8) == b"89"
    (work / "file").write_bytes(b"another")
    with pytest.raises(Unreadable) as refused:
        read(work, "file", version=entry.version)
    assert refused.value.code == "changed"


def test_a_folder_is_measured_up_to_a_limit(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(5):
        (work / f"{number}").mkdir()
        (work / f"{number}/file").write_bytes(b"x" * 10)

    with opened(str(work.parent)) as root:
        assert measure(root) == folder.Measure(5, 50, True)
        monkeypatch.setattr(folder, "MOST_COUNTED", 7)
        assert measure(root).whole is False
