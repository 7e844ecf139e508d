"""Folders for jobs: `muster uploads create`, `list` and `delete`; what `muster submit --upload` sends."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import sys
import time
import unicodedata
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import IO, Any, Final

from muster.client import Client, Failed, Unavailable, plain
from muster.output import all_pages, as_json, confirmed, table

#: A piece that does not arrive is sent again, after these seconds, one after another.
_WAITS: Final = (0.5, 1.0, 2.0, 4.0, 8.0)
_HIDDEN: Final = frozenset({"Cc", "Cf", "Zl", "Zp", "Cn", "Co", "Cs"})


@dataclass
class Folder:
    """What is in a folder that is to be sent: paths as the API writes them, with the files they are."""

    files: dict[str, Path] = field(default_factory=dict)
    entries: list[dict[str, Any]] = field(default_factory=list)
    empty: list[str] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(int(entry["size"]) for entry in self.entries)


def create(client: Client, asked: Namespace) -> None:
    row = send_folder(client, Path(asked.folder), asked.exclude)
    if asked.json:
        as_json(row)
    else:
        print(row["id"])


def list_all(client: Client, asked: Namespace) -> None:
    rows = all_pages(client, "uploads")
    if asked.json:
        return as_json(rows)
    columns = ("id", "state", "files", "size_bytes", "created_at", "name")
    return table(tuple(one[name] for name in columns) for one in rows)


def delete(client: Client, asked: Namespace) -> None:
    confirmed(f"upload {asked.id}", yes=asked.yes)
    client.call("DELETE", f"uploads/{asked.id}")
    print(f"Deleted upload {plain(asked.id)}.")


# ---------------------------------------------------------------- send


def send_folder(client: Client, folder: Path, exclude: Sequence[str] = ()) -> dict[str, Any]:
    """Send a folder whole; answers the upload. Raises Failed, and then leaves nothing behind that is known."""
    found = read_folder(folder, exclude)
    name = folder.resolve().name or "folder"
    begun = client.call(
        "POST", "uploads", body={"name": name, "files": found.entries, "folders": found.empty}
    )
    try:
        _send_pieces(client, begun, found)
        answer: dict[str, Any] = client.call("POST", f"uploads/{begun['id']}/finish", body={})
        return answer
    except (Failed, KeyboardInterrupt):
        with contextlib.suppress(Failed):  # it leaves by itself after a day
            client.call("DELETE", f"uploads/{begun['id']}")
        raise


def read_folder(folder: Path, exclude: Sequence[str] = ()) -> Folder:
    """The files of a folder and of all folders in it; raises Failed for links, devices, pipes and sockets."""
    found = Folder()
    try:
        if not stat.S_ISDIR(folder.stat().st_mode):
            raise Failed(f"{plain(folder)} is no folder.")
        _add(found, folder, [], exclude)
    except OSError as error:
        raise Failed(f"{plain(error.filename or folder)} cannot be read: {error.strerror}") from error
    if not found.entries:
        raise Failed(f"{plain(folder)} has no file to send.")
    return found


def _add(found: Folder, folder: Path, above: list[str], exclude: Sequence[str]) -> None:
    with os.scandir(folder) as scanned:
        entries = sorted(scanned, key=lambda entry: entry.name)
    for entry in entries:
        inner = "/".join([*above, entry.name])
        if any(fnmatch(entry.name, pattern) or fnmatch(inner, pattern) for pattern in exclude):
            continue
        state = entry.stat(follow_symlinks=False)
        names = [*above, entry.name]
        path = "/".join(_written(name) for name in names)
        if stat.S_ISDIR(state.st_mode):
            before = len(found.entries) + len(found.empty)
            _add(found, Path(entry.path), names, exclude)
            if len(found.entries) + len(found.empty) == before:
                found.empty.append(path)
        elif stat.S_ISREG(state.st_mode):
            executable = bool(state.st_mode & 0o100)
            found.files[path] = Path(entry.path)
            found.entries.append({"path": path, "size": state.st_size, "executable": executable})
        else:
            what = (
                "a link, and links are not followed" if entry.is_symlink() else "neither a file nor a folder"
            )
            raise Failed(
                f"{plain(inner)} is {what}. Leave it out with --exclude, or copy what it stands for."
            )


def _written(name: str) -> str:
    """One name as the API writes it: a backslash twice, and bytes that cannot be shown as \\xNN."""
    parts = []
    for character in name:
        if character == "\\":
            parts.append("\\\\")
        elif unicodedata.category(character) in _HIDDEN:
            parts.extend(f"\\x{byte:02x}" for byte in character.encode("utf-8", "surrogateescape"))
        else:
            parts.append(character)
    return "".join(parts)


def _send_pieces(client: Client, begun: dict[str, Any], found: Folder) -> None:
    id, pieces = begun["id"], begun["pieces"]
    bar = sys.stderr.isatty()
    for number, data in enumerate(_pieces(found, begun["order"], begun["piece_bytes"])):
        _send_piece(client, f"uploads/{id}/pieces/{number}", data)
        if bar:
            print(f"\r{number + 1} of {pieces} pieces sent", end="", file=sys.stderr, flush=True)
    if bar and pieces:
        print(f"\r{len(found.entries)} files, {found.size:,} bytes sent", file=sys.stderr)


def _send_piece(client: Client, path: str, data: bytes) -> None:
    headers = {"Content-Type": "application/octet-stream"}
    query = {"sha256": hashlib.sha256(data).hexdigest()}
    for wait in (*_WAITS, None):
        try:
            with client.open("PUT", path, query=query, data=data, headers=headers) as answer:
                answer.read()
                return
        except Unavailable:
            if wait is None:
                raise
            time.sleep(wait)


def _pieces(found: Folder, order: Sequence[str], piece_bytes: int) -> Iterator[bytes]:
    """The bytes of all files, one after the other, in pieces; raises Failed where a file changes on the way."""
    sizes = {entry["path"]: entry["size"] for entry in found.entries}
    piece = bytearray()
    for path in order:
        if path not in found.files:
            raise Failed(f"The portal asks for a file that was not offered: {plain(path)}")
        try:
            with open(found.files[path], "rb") as file:
                for part in _whole(file, sizes[path], path, most=piece_bytes):
                    piece += part
                    while len(piece) >= piece_bytes:
                        yield bytes(piece[:piece_bytes])
                        del piece[:piece_bytes]
        except OSError as error:
            raise Failed(f"{plain(found.files[path])} cannot be read: {error.strerror}") from error
    if piece:
        yield bytes(piece)


def _whole(file: IO[bytes], size: int, path: str, *, most: int) -> Iterator[bytes]:
    begun = os.fstat(file.fileno())
    left = size
    while left and (part := file.read(min(left, most))):
        left -= len(part)
        yield part
    ended = os.fstat(file.fileno())
    if left or ended.st_size != size or ended.st_mtime_ns != begun.st_mtime_ns:
        raise Failed(f"{plain(path)} changed while it was sent: send the folder again.")
