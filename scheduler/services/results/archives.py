"""A working folder as one tar or zip file, written while it is read: of any size in the memory of a piece."""

from __future__ import annotations

import io
import stat
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from typing import Any, Final

from scheduler.agent.results.names import decode_path
from scheduler.agent.results.requests import PIECE_BYTES
from scheduler.services.results.reading import FileEntry, Folder, all_entries, batches, rest_of, small_files

#: A tar file ends with two empty blocks, and is filled up to twenty.
_BLOCK: Final = 512
_RECORD: Final = 20 * _BLOCK
#: The times that a zip file can say.
_FIRST_IN_ZIP: Final = (1980, 1, 1, 0, 0, 0)
_LAST_IN_ZIP: Final = (2107, 12, 31, 23, 59, 58)


def archive(folder: Folder, kind: str, *, then: Callable[[], None] = lambda: None) -> Iterator[bytes]:
    """The folder as a `tar` or `zip` file; `then` is called once all of it was given.

    Regular files and folders go in; links, devices and pipes are left out, as they are for single files. An error on
    the way ends the stream before its end, so that no part is taken for the whole.
    """
    yield from _zip(folder) if kind == "zip" else _tar(folder)
    then()


def _contents(folder: Folder) -> Iterator[tuple[FileEntry, Iterator[bytes]]]:
    """Files and folders in their order, each with its bytes."""
    entries = (entry for entry in all_entries(folder) if entry.kind in ("file", "folder"))
    for batch in batches(entries):
        if batch[0].size_bytes >= PIECE_BYTES:
            yield batch[0], rest_of(folder, batch[0], 0, batch[0].size_bytes)
            continue
        files = [entry for entry in batch if entry.kind == "file" and entry.size_bytes]
        data = dict(zip([file.path for file in files], small_files(folder, files), strict=True))
        for entry in batch:
            yield entry, iter([data[entry.path]] if entry.path in data else [])


def _name(entry: FileEntry) -> str:
    """The path as it is on the node, in Python's form of names that are no UTF-8."""
    return b"/".join(decode_path(entry.path)).decode("utf-8", "surrogateescape")


def _tar(folder: Folder) -> Iterator[bytes]:
    written = 0
    for entry, pieces in _contents(folder):
        info = tarfile.TarInfo(_name(entry))
        info.mtime = int(entry.modified_at.timestamp())
        if entry.kind == "folder":
            info.type, info.mode = tarfile.DIRTYPE, 0o755
        else:
            info.size, info.mode = entry.size_bytes, 0o644
        head = info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
        yield head
        written += len(head)
        yield from pieces
        fill = -info.size % _BLOCK
        if fill:
            yield bytes(fill)
        written += info.size + fill
    yield bytes(2 * _BLOCK + (-(written + 2 * _BLOCK)) % _RECORD)


class _Sink(io.RawIOBase):
    """A file that cannot be sought in, for `zipfile`: what is written is taken away piece by piece."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._parts.append(bytes(data))
        return len(self._parts[-1])

    def take(self) -> bytes:
        parts, self._parts = self._parts, []
        return b"".join(parts)


def _zip(folder: Folder) -> Iterator[bytes]:
    sink = _Sink()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_STORED) as pack:
        for entry, pieces in _contents(folder):
            # Names in a zip file are text: bytes that are no UTF-8 are written as in the list.
            name = entry.path if "\\" in entry.path else _name(entry)
            when = min(max(entry.modified_at.timetuple()[:6], _FIRST_IN_ZIP), _LAST_IN_ZIP)
            info = zipfile.ZipInfo(name + ("/" if entry.kind == "folder" else ""), when)
            info.external_attr = (0o644 | stat.S_IFREG) << 16
            if entry.kind == "folder":
                info.external_attr = (0o755 | stat.S_IFDIR) << 16 | 0x10
            with pack.open(info, "w", force_zip64=True) as file:
                for piece in pieces:
                    file.write(piece)
                    yield sink.take()
            yield sink.take()
    yield sink.take()
