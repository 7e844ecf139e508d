"""The uploaded folder that the working folder of a task begins with."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from scheduler.agent.checkpoints.upload import PATH
from scheduler.agent.fetches.written_files import BadFetch, Fetching, PieceReader, new_folder, path_below
from scheduler.agent.protocol import TaskOrder, UploadAnswer, UploadManifest

_FILE_MODE: Final = 0o600
_EXECUTABLE_MODE: Final = 0o700


def fetch_upload(fetching: Fetching, order: TaskOrder, into: Path) -> None:
    """Complete the order with its upload; raises Refused, BadFetch, Stopped, ServerUnreachable."""
    client, about = fetching.client, fetching.about
    answer: UploadAnswer = fetching.ask(lambda: client.post(PATH, {"op": "upload", **about}))
    manifest = answer["manifest"]
    with new_folder(into):
        _write(into, manifest, PieceReader(_checked_pieces(fetching, manifest["pieces"])))
    order["upload"] = str(into)


def _checked_pieces(fetching: Fetching, digests: list[str]) -> Iterator[bytes]:
    bodies: list[dict[str, Any]] = [
        {"number": number, "sha256": digest} for number, digest in enumerate(digests)
    ]
    for number, (data, digest) in enumerate(zip(fetching.pieces(bodies), digests, strict=True)):
        if hashlib.sha256(data).hexdigest() != digest:
            raise BadFetch(f"the checksum of piece {number} is wrong")
        yield data


def _write(into: Path, manifest: UploadManifest, reader: PieceReader) -> None:
    """Write folders and files with their modes; raises BadFetch, BadPath, OSError."""
    for folder in manifest["folders"]:
        os.mkdir(path_below(into, folder), 0o700)
    for file in manifest["files"]:
        with open(path_below(into, file["path"]), "xb") as opened:
            os.fchmod(opened.fileno(), _EXECUTABLE_MODE if file["executable"] else _FILE_MODE)
            for part in reader.take(file["path"], file["size"]):
                opened.write(part)
