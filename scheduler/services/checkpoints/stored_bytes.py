"""The bytes of checkpoints in the site's storage: a manifest and pieces of equal size under the id of the row."""

from __future__ import annotations

import hashlib
import hmac
import io
import json
import math
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from django.conf import settings

from infra.archives import Content, Member
from infra.errors import Conflict, InvalidInput
from infra.storage import Damaged, NotStored, Storage, configured_storage, storage_of, storage_setting
from scheduler.agent.protocol import PIECE_BYTES, CheckpointFile, Manifest
from scheduler.agent.results.names import BadPath, decode_path
from scheduler.models import Checkpoint

#: Files and folders of one checkpoint.
MOST_ENTRIES: Final = 20_000
_MANIFEST: Final = "manifest"
_DIGEST_CHARACTERS: Final = 64


def checkpoint_storage() -> Storage:
    """The folder that CHECKPOINT_PATH names, else the storage of the site; raises NotConfigured."""
    if settings.CHECKPOINT_PATH:
        own = storage_setting(
            Path(settings.CHECKPOINT_PATH).absolute().as_uri(), settings.MUSTER_STORAGE_KEYS
        )
        if own is not None:
            return storage_of(own)
    return configured_storage()


def pieces_of(row: Checkpoint) -> int:
    """How many pieces it has."""
    return -(-row.size_bytes // PIECE_BYTES)


def _key(row: Checkpoint, name: str) -> str:
    return f"checkpoints/{row.job_id}/{row.pk}/{name}"


def _piece_key(row: Checkpoint, number: int) -> str:
    return _key(row, f"{number:08}")


def put_piece(row: Checkpoint, number: int, data: bytes, sha256: str) -> None:
    """Store one piece; raises InvalidInput for one that is not what it says, StorageError."""
    last = pieces_of(row) - 1
    wanted = PIECE_BYTES if number < last else row.size_bytes - last * PIECE_BYTES
    if not 0 <= number <= last or len(data) != wanted:
        raise InvalidInput(message=f"Piece {number} of the checkpoint has to have {wanted} bytes.")
    if not hmac.compare_digest(hashlib.sha256(data).hexdigest(), sha256):
        raise InvalidInput(message=f"The checksum of piece {number} is wrong.", code="wrong-checksum")
    checkpoint_storage().put(_piece_key(row, number), io.BytesIO(data), len(data))


def piece(row: Checkpoint, number: int) -> bytes:
    """One piece; raises Conflict where it is not what was stored, StorageError."""
    try:
        with checkpoint_storage().open(_piece_key(row, number)) as stored:
            return stored.read()
    except (Damaged, NotStored) as error:
        raise Conflict(message=f"Checkpoint {row.name} is damaged: {error.message}") from error


def put_manifest(row: Checkpoint, manifest: Manifest) -> None:
    data = json.dumps(manifest, separators=(",", ":")).encode()
    checkpoint_storage().put(_key(row, _MANIFEST), io.BytesIO(data), len(data))


def stored_manifest(row: Checkpoint) -> Manifest:
    """The manifest of a complete checkpoint; raises Conflict where it is damaged, StorageError."""
    try:
        with checkpoint_storage().open(_key(row, _MANIFEST)) as stored:
            manifest: Manifest = json.loads(stored.read())
            return manifest
    except (Damaged, NotStored, ValueError) as error:
        raise Conflict(message=f"The manifest of checkpoint {row.name} is damaged.") from error


def remove_bytes(row: Checkpoint) -> None:
    """Remove all that is stored of it; a second time does nothing. Raises StorageError."""
    storage = checkpoint_storage()
    for key, _ in list(storage.list(_key(row, ""))):
        storage.delete(key)


# ---------------------------------------------------------------- verify


def checked_manifest(data: Any, row: Checkpoint) -> Manifest:
    """A manifest as a node sends it, of this checkpoint; raises InvalidInput."""
    try:
        files = [_file(one, row) for one in data["files"]]
        folders = [_checked(str(path), row) for path in data["folders"]]
        if len(files) + len(folders) > MOST_ENTRIES or len(files) != row.files or data["name"] != row.name:
            raise ValueError("it is not the announced manifest")
        if sum(one["size"] for one in files) != row.size_bytes:
            raise ValueError("the files have another size")
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidInput(message=f"The manifest cannot be read: {error}.") from error
    return Manifest(name=row.name, size=row.size_bytes, files=files, folders=folders)


def _file(data: Mapping[str, Any], row: Checkpoint) -> CheckpointFile:
    size, sha256 = data["size"], data["sha256"]
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        raise ValueError("a size is not a whole number")
    if len(sha256) != _DIGEST_CHARACTERS or int(sha256, 16) < 0:
        raise ValueError("a checksum is not a SHA-256")
    return CheckpointFile(path=_checked(data["path"], row), size=size, sha256=sha256)


def _checked(path: str, row: Checkpoint) -> str:
    try:
        names = decode_path(path)
        if not names or names[:1] != decode_path(row.name):
            raise ValueError("a path leads out of the checkpoint")
    except BadPath as error:
        raise ValueError("a path leads out of the checkpoint") from error
    return path


class Check:
    """Reads all of a checkpoint back, and compares each file with its checksum, a bounded time at a call."""

    def __init__(self, row: Checkpoint, manifest: Manifest) -> None:
        self.manifest = manifest
        #: "" while nothing is wrong.
        self.why = ""
        self._row, self._steps = row, self._read(checkpoint_storage())
        self._lock = threading.Lock()

    def go_on(self, seconds: float) -> bool:
        """Whether it is done; else the next call goes on where this one has stopped. Raises StorageError."""
        until = time.monotonic() + seconds
        with self._lock:
            try:
                for _ in self._steps:
                    if time.monotonic() > until:
                        return False
            except (NotStored, Damaged) as error:
                self.why = f"Pieces of it are missing or damaged: {error.message}"
        return True

    def _read(self, storage: Storage) -> Iterator[None]:
        """A step for each part that was read."""
        source = _Source(_pieces(storage, self._row))
        for file in self.manifest["files"]:
            for _ in source.take(file):
                yield


#: Checks that a later call goes on with, the newest last; another process, or one that has forgotten, begins anew.
_under_way: dict[UUID, Check] = {}
_MOST_UNDER_WAY: Final = 32


def check_whole(row: Checkpoint, manifest: Manifest, *, seconds: float = math.inf) -> str | None:
    """Why a checkpoint is not what its manifest says, "" where all is well; None: the next call goes on.

    Reads for about `seconds`, during which one of the few threads for the storage is in use. Raises StorageError.
    """
    check = _under_way.pop(row.pk, None)
    if check is None or check.manifest != manifest:
        check = Check(row, manifest)
    if check.go_on(seconds):
        return check.why
    _under_way[row.pk] = check
    while len(_under_way) > _MOST_UNDER_WAY:
        _under_way.pop(next(iter(_under_way)), None)
    return None


def content_of(row: Checkpoint, manifest: Manifest) -> Content:
    """Its folders and files with their bytes, for an archive; each file is compared with its checksum on the way.

    Raises Damaged and StorageError, before the last byte of a file that is not what was stored.
    """
    for folder in manifest["folders"]:
        yield _member(row, folder, is_folder=True), iter(())
    source = _Source(_pieces(checkpoint_storage(), row))
    for file in manifest["files"]:
        yield _member(row, file["path"], file["size"]), source.take(file)


def _member(row: Checkpoint, text: str, size: int = 0, *, is_folder: bool = False) -> Member:
    path = b"/".join(decode_path(text))
    return Member(path, text if "\\" in text else path.decode(), row.taken_at, size, is_folder)


class _Source:
    """The bytes of one file after the other, out of pieces that know no files."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces, self._left = pieces, b""

    def take(self, file: CheckpointFile) -> Iterator[bytes]:
        """The bytes of the next file; raises Damaged."""
        digest, missing = hashlib.sha256(), file["size"]
        if not missing and digest.hexdigest() != file["sha256"]:
            raise Damaged(f"The checksum of {file['path'][:100]} is wrong.")
        while missing:
            self._left = self._left or next(self._pieces, b"")
            if not self._left:
                raise Damaged(f"{file['path'][:100]} is cut short.")
            part, self._left = self._left[:missing], self._left[missing:]
            digest.update(part)
            missing -= len(part)
            if not missing and digest.hexdigest() != file["sha256"]:
                raise Damaged(f"The checksum of {file['path'][:100]} is wrong.")
            yield part


def _pieces(storage: Storage, row: Checkpoint) -> Iterator[bytes]:
    for number in range(pieces_of(row)):
        with storage.open(_piece_key(row, number)) as stored:
            yield stored.read()
