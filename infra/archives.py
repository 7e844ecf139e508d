"""Files as one tar or zip file, written while they are read: of any size in the memory of a piece."""

from __future__ import annotations

import io
import stat
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

KINDS: Final = ("tar", "zip")
#: A tar file ends with two empty blocks, and is filled up to twenty.
_BLOCK: Final = 512
_RECORD: Final = 20 * _BLOCK
#: The times that a zip file can say.
_FIRST_IN_ZIP: Final = (1980, 1, 1, 0, 0, 0)
_LAST_IN_ZIP: Final = (2107, 12, 31, 23, 59, 58)


@dataclass(frozen=True, slots=True)
class Member:
    """A file or folder; `text` is its path as lists show it, for zip files, whose names are text."""

    path: bytes
    text: str
    modified_at: datetime
    size_bytes: int = 0
    is_folder: bool = False


#: Members in their order, each with its bytes: as many as it says, or the archive is broken off.
Content = Iterator[tuple[Member, Iterator[bytes]]]


def archive(kind: str, content: Content) -> Iterator[bytes]:
    """The bytes of a `tar` or `zip` file.

    An error on the way ends the stream before its end, so that no part is taken for the whole.
    """
    return _zip(content) if kind == "zip" else _tar(content)


def _tar(content: Content) -> Iterator[bytes]:
    written = 0
    for member, pieces in content:
        info = tarfile.TarInfo(member.path.decode("utf-8", "surrogateescape"))
        info.mtime = int(member.modified_at.timestamp())
        if member.is_folder:
            info.type, info.mode = tarfile.DIRTYPE, 0o755
        else:
            info.size, info.mode = member.size_bytes, 0o644
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


def _zip(content: Content) -> Iterator[bytes]:
    sink = _Sink()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_STORED) as pack:
        for member, pieces in content:
            when = min(max(member.modified_at.timetuple()[:6], _FIRST_IN_ZIP), _LAST_IN_ZIP)
            info = zipfile.ZipInfo(member.text + ("/" if member.is_folder else ""), when)
            info.external_attr = (0o644 | stat.S_IFREG) << 16
            if member.is_folder:
                info.external_attr = (0o755 | stat.S_IFDIR) << 16 | 0x10
            with pack.open(info, "w", force_zip64=True) as file:
                for piece in pieces:
                    file.write(piece)
                    yield sink.take()
            yield sink.take()
    yield sink.take()
