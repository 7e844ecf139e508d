"""Reads a job's folder, which its owner controls: names are looked up in open folders, and no link is followed.

A file is given out when it is a regular one, of the account and on the file system of the folder: a hard link to
somebody else's file, a device, a pipe, a socket, a link and what is mounted there are named in the list, and refused.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from scheduler.agent.results.names import decode_path, encode_name

#: Entries that are counted of one folder; of more it is said that there are more.
MOST_COUNTED: Final = 20_000
#: Names in one folder, of one that is listed.
MOST_NAMES: Final = 100_000
#: Levels that are counted or listed.
MOST_DEPTH: Final = 64
_O_PATH: Final = getattr(os, "O_PATH", os.O_RDONLY)
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Unreadable(Exception):
    """The file or folder is not given out; `code` is gone, refused or changed, and the text is for people."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class Entry(NamedTuple):
    """One entry of a folder; `kind` is file, folder, link or other, `version` changes when a file is written."""

    path: str
    kind: str
    size: int
    modified_ns: int
    version: str


@dataclass(frozen=True, slots=True)
class Measure:
    """How much is in a folder; not `whole` when there is more, or what could not be read."""

    files: int
    size: int
    whole: bool


@contextlib.contextmanager
def opened(folder: str, name: str = "work") -> Iterator[int]:
    """The working folder in a task's folder, or another one there, open; raises Unreadable."""
    try:
        outer = os.open(folder, _FOLDER)
        try:
            found = os.open(name, _FOLDER, dir_fd=outer)
        finally:
            os.close(outer)
    except FileNotFoundError as error:
        raise Unreadable("gone", "The folder is not on the node any more.") from error
    except OSError as error:
        raise Unreadable("refused", f"The folder cannot be read: {error.strerror}.") from error
    try:
        yield found
    finally:
        os.close(found)


def list_files(root: int, *, path: str = "", after: str = "", most: int) -> tuple[list[Entry], bool]:
    """Up to `most` entries below a path, folders with what is in them, and whether there are more.

    They come in the order of their paths, by names as bytes; `after` is the last path of the page before.
    Raises Unreadable, BadPath.
    """
    start = decode_path(path)
    behind = decode_path(after)
    if behind and (behind[: len(start)] != start or len(behind) <= len(start)):
        behind = []
    folder = _descend(root, start)
    entries: list[Entry] = []
    try:
        whole = _walk(folder, start, behind[len(start) :], entries, most, os.fstat(root))
    finally:
        os.close(folder)
    return entries, not whole


def _walk(
    folder: int, above: list[bytes], behind: list[bytes], into: list[Entry], most: int, root: os.stat_result
) -> bool:
    """Add what comes after `behind`; False when the list is full."""
    for name in _names(folder):
        if behind and name < behind[0]:
            continue
        inside = behind[1:] if behind and name == behind[0] else []
        path = [*above, name]
        try:
            found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except OSError:
            continue
        if not (behind and name == behind[0]):
            if len(into) >= most:
                return False
            into.append(_entry(path, found))
        if stat.S_ISDIR(found.st_mode) and found.st_dev == root.st_dev and len(path) < MOST_DEPTH:
            try:
                inner = os.open(name, _FOLDER, dir_fd=folder)
            except OSError:
                continue
            try:
                if not _walk(inner, path, inside, into, most, root):
                    return False
            finally:
                os.close(inner)
    return True


def _names(folder: int) -> list[bytes]:
    """The names in a folder, sorted; raises Unreadable for one that has more than anybody lists."""
    with os.scandir(folder) as entries:
        names = [os.fsencode(entry.name) for entry in itertools.islice(entries, MOST_NAMES + 1)]
    if len(names) > MOST_NAMES:
        raise Unreadable(
            "refused", f"A folder has more than {MOST_NAMES:,} entries; pack the files in the job."
        )
    return sorted(names)


def _entry(path: list[bytes], found: os.stat_result) -> Entry:
    kind = "other"
    if stat.S_ISREG(found.st_mode):
        kind = "file"
    elif stat.S_ISDIR(found.st_mode):
        kind = "folder"
    elif stat.S_ISLNK(found.st_mode):
        kind = "link"
    size = found.st_size if kind == "file" else 0
    return Entry("/".join(map(encode_name, path)), kind, size, found.st_mtime_ns, version_of(found))


def read_piece(root: int, path: str, *, offset: int, length: int, version: str = "") -> tuple[Entry, bytes]:
    """Bytes of a file, and the file as it is; with `version`, of no other file or state of it.

    Raises Unreadable, BadPath.
    """
    names = decode_path(path)
    if not names:
        raise Unreadable("refused", "The path is the working folder itself.")
    folder = _descend(root, names[:-1])
    try:
        file = _open_file(folder, names[-1], os.fstat(root))
    finally:
        os.close(folder)
    try:
        found = os.fstat(file)
        if version and version != version_of(found):
            raise Unreadable("changed", "The file was changed while it was read.")
        return _entry(names, found), os.pread(file, length, offset)
    except OSError as error:
        raise Unreadable("refused", f"The file cannot be read: {error.strerror}.") from error
    finally:
        os.close(file)


def _descend(root: int, names: list[bytes]) -> int:
    """The folder below, open."""
    device = os.fstat(root).st_dev
    folder = os.dup(root)
    try:
        for name in names:
            inner = os.open(name, _FOLDER, dir_fd=folder)
            os.close(folder)
            folder = inner
            if os.fstat(folder).st_dev != device:
                raise Unreadable(
                    "refused", "Folders that are mounted in the working folder cannot be downloaded."
                )
    except FileNotFoundError as error:
        os.close(folder)
        raise Unreadable("gone", "There is no such file.") from error
    except OSError as error:
        os.close(folder)
        raise Unreadable(
            "refused", "Links are not followed, and files without permission to read are not opened."
        ) from error
    except Unreadable:
        os.close(folder)
        raise
    return folder


def _open_file(folder: int, name: bytes, root: os.stat_result) -> int:
    """A regular file for reading. It is looked at before it is opened: to open a device or a pipe may do something."""
    try:
        place = os.open(name, _O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    except FileNotFoundError as error:
        raise Unreadable("gone", "There is no such file.") from error
    except OSError as error:
        raise Unreadable("refused", f"The file cannot be read: {error.strerror}.") from error
    try:
        found = os.fstat(place)
        if not stat.S_ISREG(found.st_mode):
            raise Unreadable(
                "refused", "Only regular files can be downloaded: no links, folders, devices or pipes."
            )
        if found.st_uid != root.st_uid or found.st_dev != root.st_dev:
            raise Unreadable("refused", "The file is another account's or on another file system.")
        return os.open(f"/proc/self/fd/{place}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise Unreadable("refused", f"The file cannot be read: {error.strerror}.") from error
    finally:
        os.close(place)


def version_of(found: os.stat_result) -> str:
    """Changes whenever a file is written, or is another one."""
    return f"{found.st_ino:x}-{found.st_size:x}-{found.st_mtime_ns:x}"


def measure(root: int) -> Measure:
    """How many files there are, and their bytes, up to `MOST_COUNTED` entries."""
    count = _Count(os.fstat(root).st_dev)
    whole = count.add(root, 0)
    return Measure(count.files, count.size, whole)


class _Count:
    """The sums of a tree on one file system."""

    def __init__(self, device: int) -> None:
        self._device = device
        self._left = MOST_COUNTED
        self.files = self.size = 0

    def add(self, folder: int, depth: int) -> bool:
        """Add what is in a folder; whether that was all of it."""
        whole = True
        inner: list[str] = []
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    self._left -= 1
                    if self._left < 0:
                        return False
                    found = entry.stat(follow_symlinks=False)
                    if stat.S_ISREG(found.st_mode):
                        self.files, self.size = self.files + 1, self.size + found.st_size
                    elif stat.S_ISDIR(found.st_mode) and found.st_dev == self._device:
                        inner.append(entry.name)
        except OSError:
            whole = False
        for name in inner:
            if depth >= MOST_DEPTH:
                return False
            try:
                opened_folder = os.open(name, _FOLDER, dir_fd=folder)
            except OSError:
                whole = False
                continue
            try:
                whole = self.add(opened_folder, depth + 1) and whole
            finally:
                os.close(opened_folder)
        return whole
