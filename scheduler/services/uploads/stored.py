"""The bytes of uploads in the site's storage: a manifest, and pieces of equal size by their checksums."""

from __future__ import annotations

import hashlib
import io
import json
from typing import Final
from uuid import UUID

from infra.errors import Conflict, InvalidInput
from infra.storage import Damaged, NotStored, configured_storage
from scheduler.agent.protocol import PIECE_BYTES, UploadManifest
from scheduler.models import FolderUpload

_MANIFEST: Final = "manifest"


def pieces_of(row: FolderUpload) -> int:
    """How many pieces it has."""
    return -(-row.size_bytes // PIECE_BYTES)


def _prefix(upload: UUID) -> str:
    return f"uploads/{upload}/"


def put_manifest(upload: UUID, manifest: UploadManifest) -> None:
    """Store the manifest in the place of an earlier one; raises StorageError."""
    data = json.dumps(manifest, separators=(",", ":")).encode()
    configured_storage().put(_prefix(upload) + _MANIFEST, io.BytesIO(data), len(data))


def stored_manifest(row: FolderUpload) -> UploadManifest:
    """Its manifest; raises Conflict where it is damaged, StorageError."""
    try:
        with configured_storage().open(_prefix(row.pk) + _MANIFEST) as stored:
            manifest: UploadManifest = json.loads(stored.read())
            return manifest
    except (Damaged, NotStored, ValueError) as error:
        raise Conflict(message=f"The manifest of upload {row.name} is damaged.") from error


def put_piece(row: FolderUpload, number: int, data: bytes) -> str:
    """Store one piece, and answer its SHA-256; raises InvalidInput for one of another size, StorageError."""
    last = pieces_of(row) - 1
    wanted = PIECE_BYTES if number < last else row.size_bytes - last * PIECE_BYTES
    if not 0 <= number <= last or len(data) != wanted:
        what = (
            f"has to have {wanted:,} bytes"
            if 0 <= number <= last
            else f"does not exist: there are {last + 1}"
        )
        raise InvalidInput(message=f"Piece {number} of the upload {what}.", code="wrong-piece")
    digest = hashlib.sha256(data).hexdigest()
    configured_storage().put(f"{_prefix(row.pk)}{number:08}-{digest}", io.BytesIO(data), len(data))
    return digest


def received(row: FolderUpload) -> dict[int, set[str]]:
    """The checksums of the pieces that are stored, by their numbers; raises StorageError."""
    found: dict[int, set[str]] = {}
    prefix = _prefix(row.pk)
    for key, _ in configured_storage().list(prefix):
        number, dash, digest = key.removeprefix(prefix).partition("-")
        if dash:
            found.setdefault(int(number), set()).add(digest)
    return found


def piece(row: FolderUpload, number: int, digest: str) -> bytes:
    """One piece; raises Conflict where it is not what was stored, StorageError."""
    try:
        with configured_storage().open(f"{_prefix(row.pk)}{number:08}-{digest}") as stored:
            data = stored.read()
    except (Damaged, NotStored) as error:
        raise Conflict(message=f"Upload {row.name} is damaged: {error.message}") from error
    if hashlib.sha256(data).hexdigest() != digest:
        raise Conflict(message=f"Upload {row.name} is damaged: the checksum of piece {number} is wrong.")
    return data


def remove_bytes(upload: UUID) -> None:
    """Remove all that is stored of it; a second time does nothing. Raises StorageError."""
    storage = configured_storage()
    for key, _ in list(storage.list(_prefix(upload))):
        storage.delete(key)
