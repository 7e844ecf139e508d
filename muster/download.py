"""Writes what the portal sends: one file, or all of an archive; never outside of the folder that was named."""

from __future__ import annotations

import hashlib
import http.client
import os
import re
import tarfile
from collections.abc import Iterator
from http.client import HTTPResponse
from pathlib import Path
from typing import Final

from muster.client import PIECE_BYTES, Failed, plain

_ESCAPE: Final = re.compile(rb"\\(?:x([0-9a-f]{2})|\\)")


def save(answer: HTTPResponse, target: Path, *, sha256: str = "") -> int:
    """Write a file whole, or not at all; answers its bytes. Raises Failed where they are not those of the checksum."""
    if target.exists() or target.is_symlink():
        raise Failed(f"{target} is there already.")
    part = target.with_name(target.name + ".part")
    size, digest = 0, hashlib.sha256()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with open(part, "wb") as file:
            for piece in _pieces(answer):
                file.write(piece)
                digest.update(piece)
                size += len(piece)
        if sha256 and digest.hexdigest() != sha256:
            raise Failed(f"The checksum of {target.name} is wrong: try again.")
        os.replace(part, target)
    except OSError as error:
        raise Failed(f"{target} cannot be written: {error.strerror or error}") from error
    finally:
        part.unlink(missing_ok=True)
    return size


def unpack(answer: HTTPResponse, into: Path) -> tuple[int, int]:
    """Write the files of a tar stream into a new or empty folder; answers how many files and bytes.

    Raises Failed, also for a stream that ended early: what had come by then stays.
    """
    files = size = 0
    try:
        into.mkdir(parents=True, exist_ok=True)
        if any(into.iterdir()):
            raise Failed(f"{into} is not empty: name another folder with --into.")
        with tarfile.open(fileobj=answer, mode="r|", encoding="utf-8", errors="surrogateescape") as packed:
            for member in packed:
                target = _inside(into, member.name)
                if member.isdir():
                    target.mkdir(parents=True, exist_ok=True)
                    continue
                if not member.isreg() or (source := packed.extractfile(member)) is None:
                    raise Failed(f"The archive has something else than files: {plain(member.name)}")
                target.parent.mkdir(parents=True, exist_ok=True)
                with open(target, "xb") as file:
                    while piece := source.read(PIECE_BYTES):
                        file.write(piece)
                files, size = files + 1, size + member.size
        for _ in _pieces(answer):  # what broke before its end is found here
            pass
    except (tarfile.TarError, http.client.HTTPException) as error:
        raise Failed(f"The download ended early; {into} is not complete: {error}") from error
    except OSError as error:
        raise Failed(f"{into} cannot be written: {error.strerror or error}") from error
    return files, size


def local_path(into: Path, listed: str) -> Path:
    """Where a file goes whose path is listed like this: bytes that are no UTF-8 as \\xNN, a backslash as \\\\."""
    raw = _ESCAPE.sub(lambda found: bytes.fromhex(found[1].decode()) if found[1] else b"\\", listed.encode())
    return _inside(into, os.fsdecode(raw))


def _inside(into: Path, name: str) -> Path:
    names = name.rstrip("/").split("/")
    if any(one in ("", ".", "..") or "\0" in one for one in names):
        raise Failed(f"The portal names a file outside of the folder: {plain(name)}")
    return into.joinpath(*names)


def _pieces(answer: HTTPResponse) -> Iterator[bytes]:
    try:
        while piece := answer.read(PIECE_BYTES):
            yield piece
        if answer.length:  # bytes that were announced and did not come
            raise Failed("The download ended early: try again.")
    except http.client.HTTPException as error:
        raise Failed("The download ended early: try again.") from error
