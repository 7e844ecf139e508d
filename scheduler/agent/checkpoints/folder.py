"""The folder in which a job puts its checkpoints: which are finished, what is in them, and their bytes.

A checkpoint is a file or a folder with any name. It is finished once there is a file beside it that has its name with
`.done` after it: `cp model.bin "$MUSTER_CHECKPOINT_DIR/step-100"; touch "$MUSTER_CHECKPOINT_DIR/step-100.done"`.
The folder is the job's: names are looked up in open folders, no link is followed, and nothing but regular files of the
job's own account is taken.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import shutil
import stat
from collections.abc import Iterator
from typing import Final, NamedTuple

from scheduler.agent.protocol import CHECKPOINTS, PIECE_BYTES, CheckpointFile, Manifest
from scheduler.agent.results.folder import MOST_DEPTH, Unreadable, opened, read_piece, version_of
from scheduler.agent.results.names import encode_name

DONE: Final = ".done"
#: Files and folders of one checkpoint.
MOST_ENTRIES: Final = 20_000
#: Names in the folder of checkpoints that are looked at.
_MOST_NAMES: Final = 1000
#: The longest name of a checkpoint, in bytes.
_MOST_NAME_BYTES: Final = 200
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Finished(NamedTuple):
    """A checkpoint with its marker; the time of the marker names this state of it."""

    name: bytes
    marked_ns: int

    @property
    def text(self) -> str:
        return encode_name(self.name)


class File(NamedTuple):
    path: str
    size: int
    version: str


class Content(NamedTuple):
    """What is in a checkpoint, before it is read."""

    name: str
    files: list[File]
    folders: list[str]

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


def changed_ns(task_folder: str) -> int:
    """When a name came into the folder of checkpoints or left it; 0 where there is none."""
    try:
        return os.stat(f"{task_folder}/{CHECKPOINTS}", follow_symlinks=False).st_mtime_ns
    except OSError:
        return 0


def finished(task_folder: str) -> list[Finished]:
    """The finished checkpoints, oldest first."""
    found: list[Finished] = []
    with contextlib.suppress(Unreadable, OSError), opened(task_folder, CHECKPOINTS) as root:
        with os.scandir(root) as entries:
            names = {os.fsencode(entry.name) for entry in itertools.islice(entries, _MOST_NAMES)}
        for marker in names:
            name = marker.removesuffix(DONE.encode())
            if name == marker or name not in names or not 0 < len(name) <= _MOST_NAME_BYTES:
                continue
            with contextlib.suppress(OSError):
                state = os.stat(marker, dir_fd=root, follow_symlinks=False)
                if stat.S_ISREG(state.st_mode):
                    found.append(Finished(name, state.st_mtime_ns))
    return sorted(found, key=lambda one: (one.marked_ns, one.name))


def content_of(root: int, name: bytes) -> Content:
    """What is in a checkpoint below the open folder; raises Unreadable for what is not taken."""
    content = Content(encode_name(name), [], [])
    _add(content, root, [], name, os.fstat(root))
    if not content.files:
        raise Unreadable("refused", f"The checkpoint {content.name} has no file.")
    return content


def _add(content: Content, folder: int, above: list[str], name: bytes, root: os.stat_result) -> None:
    """Add a file, or a folder with all that is in it."""
    path = "/".join([*above, encode_name(name)])
    if len(content.files) + len(content.folders) >= MOST_ENTRIES:
        raise Unreadable("refused", f"It has more than {MOST_ENTRIES:,} files and folders; pack them.")
    try:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if stat.S_ISREG(found.st_mode):
            content.files.append(File(path, found.st_size, version_of(found)))
            return
        if not stat.S_ISDIR(found.st_mode):
            raise Unreadable("refused", f"{path} is neither a file nor a folder; links are not followed.")
        if found.st_dev != root.st_dev or len(above) >= MOST_DEPTH:
            raise Unreadable("refused", f"{path} is a mount, or too deep.")
        content.folders.append(path)
        inner = os.open(name, _FOLDER, dir_fd=folder)
    except OSError as error:
        raise Unreadable("refused", f"{path} cannot be read: {error.strerror}.") from error
    try:
        for entry in sorted(map(os.fsencode, os.listdir(inner))):
            _add(content, inner, [*above, encode_name(name)], entry, root)
    finally:
        os.close(inner)


class Pieces:
    """Reads a checkpoint once, in pieces, and knows the checksums of its files when it is at the end."""

    def __init__(self, root: int, content: Content) -> None:
        self._root, self._content = root, content
        self.manifest = Manifest(
            name=content.name, size=content.size, files=[], folders=list(content.folders)
        )

    def __iter__(self) -> Iterator[bytes]:
        """Raises Unreadable, also where a file changes while it is read."""
        piece = bytearray()
        for file in self._content.files:
            digest, at = hashlib.sha256(), 0
            while True:
                length = min(PIECE_BYTES - len(piece), file.size - at)
                _, data = read_piece(self._root, file.path, offset=at, length=length, version=file.version)
                if len(data) < length:
                    raise Unreadable("changed", f"{file.path} became shorter while it was read.")
                digest.update(data)
                piece += data
                at += length
                if len(piece) == PIECE_BYTES:
                    yield bytes(piece)
                    piece.clear()
                if at == file.size:
                    break
            self.manifest["files"].append(
                CheckpointFile(path=file.path, size=file.size, sha256=digest.hexdigest())
            )
        if piece:
            yield bytes(piece)


def remove(task_folder: str, one: Finished) -> None:
    """Remove a checkpoint that is stored elsewhere, its marker first; not one that was marked anew."""
    with contextlib.suppress(Unreadable, OSError), opened(task_folder, CHECKPOINTS) as root:
        marker = one.name + DONE.encode()
        if os.stat(marker, dir_fd=root, follow_symlinks=False).st_mtime_ns != one.marked_ns:
            return
        os.unlink(marker, dir_fd=root)
        if stat.S_ISDIR(os.stat(one.name, dir_fd=root, follow_symlinks=False).st_mode):
            shutil.rmtree(os.fsdecode(one.name), dir_fd=root, ignore_errors=True)
        else:
            os.unlink(one.name, dir_fd=root)
