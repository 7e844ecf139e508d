"""The checkpoint that an attempt goes on from."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any, Final

from scheduler.agent.checkpoints.upload import PATH
from scheduler.agent.fetches.written_files import BadFetch, Fetching, PieceReader, new_folder, path_below
from scheduler.agent.protocol import (
    PIECE_BYTES,
    RESTORE_VARIABLE,
    RESTORED,
    Manifest,
    RestoreAnswer,
    TaskOrder,
)
from scheduler.agent.results.names import decode_path

#: From one question to the next, while the checkpoint is on its way to the server.
_WAIT_SECONDS: Final = 1.0


def fetch_checkpoint(fetching: Fetching, order: TaskOrder, into: Path) -> None:
    """Complete the order with what it goes on from; raises Refused, BadFetch, Stopped, ServerUnreachable."""
    client, about = fetching.client, fetching.about
    while True:
        answer: RestoreAnswer = fetching.ask(lambda: client.post(PATH, {"op": "restore", **about}))
        if not answer.get("wait") or fetching.is_stopped():
            break
        fetching.stopping.wait(_WAIT_SECONDS)
    if "id" not in answer or "manifest" not in answer or fetching.is_stopped():
        return
    manifest, id = answer["manifest"], answer["id"]
    numbers = range(-(-manifest["size"] // PIECE_BYTES))
    bodies: list[dict[str, Any]] = [{"checkpoint": id, "number": number} for number in numbers]
    with new_folder(into):
        _write(into, manifest, PieceReader(fetching.pieces(bodies)))
    order["restore"] = str(into)
    if RESTORE_VARIABLE not in order.get("own_variables", ()):
        name = os.fsdecode(decode_path(manifest["name"])[0])
        order["env"][RESTORE_VARIABLE] = f"{order['folder']}/{RESTORED}/{name}"
    fetching.ask(lambda: client.post(PATH, {"op": "restored", "id": id, **about}))


def _write(into: Path, manifest: Manifest, reader: PieceReader) -> None:
    """Write files and folders, and check each file; raises BadFetch, BadPath, OSError."""
    for folder in manifest["folders"]:
        os.mkdir(path_below(into, folder), 0o700)
    for file in manifest["files"]:
        digest = hashlib.sha256()
        with open(path_below(into, file["path"]), "xb") as opened:
            for part in reader.take(file["path"], file["size"]):
                opened.write(part)
                digest.update(part)
        if digest.hexdigest() != file["sha256"]:
            raise BadFetch(f"the checksum of {file['path']} is wrong")
