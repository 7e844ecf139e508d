"""Objects as files below one folder, which only the portal's account can read."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

from infra.storage.interface import (
    PIECE_BYTES,
    Closing,
    NotStored,
    Readable,
    StorageError,
    check_key,
    check_range,
    wrong_size,
)

#: What is still being written; no key begins with a dot.
UNFINISHED: Final = ".unfinished"
#: A process that was killed leaves its unfinished file; after this many seconds the next one removes it.
UNFINISHED_SECONDS: Final = 24 * 3600
#: How often a folder may vanish under a file that is moved into it.
MOST_TRIES: Final = 100


class FileStorage:
    """Each object is one file, `root/key`. Files appear whole, by a rename after they are on the disk."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root)
        self._prepared = False

    def put(self, key: str, body: Readable, size: int | None = None) -> int:
        """See `Storage.put`. The file and its name are on the disk when this returns."""
        file = self._file(key)
        with _readable_errors(key):
            self._prepare()
        unfinished = self.root / UNFINISHED / f"{os.getpid()}-{secrets.token_hex(8)}"
        try:
            with _readable_errors(key):
                fd = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with open(fd, "wb", buffering=0) as stream:
                written = _copy(key, body, stream, size)
                if size is not None and written != size:
                    raise wrong_size(key, size, written)
                with _readable_errors(key):
                    os.fsync(stream.fileno())
            with _readable_errors(key):
                self._move(unfinished, file)
        finally:
            with contextlib.suppress(OSError):
                unfinished.unlink()
        return written

    def open(self, key: str, offset: int = 0, length: int | None = None) -> FileObject:
        """See `Storage.open`."""
        check_range(offset, length)
        file = self._file(key)
        with _readable_errors(key):
            fd = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise _not_stored(key)
        return FileObject(open(fd, "rb"), offset, length)

    def delete(self, key: str) -> None:
        """See `Storage.delete`. Folders that are empty afterwards go too."""
        file = self._file(key)
        try:
            file.unlink()
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return
        except OSError as error:
            raise _failed(key, error) from error
        with contextlib.suppress(OSError):  # one with something in it, which ends the climb
            for folder in file.parents:
                if folder == self.root:
                    break
                folder.rmdir()

    def list(self, prefix: str = "") -> Iterator[tuple[str, int]]:
        """See `Storage.list`."""
        folder = prefix.rpartition("/")[0]
        if folder:
            check_key(folder)
        yield from self._walk(folder, prefix)

    def size(self, key: str) -> int:
        """See `Storage.size`."""
        with _readable_errors(key):
            found = os.stat(self._file(key), follow_symlinks=False)
        if not stat.S_ISREG(found.st_mode):
            raise _not_stored(key)
        return found.st_size

    def _file(self, key: str) -> Path:
        return self.root / check_key(key)

    def _walk(self, folder: str, prefix: str) -> Iterator[tuple[str, int]]:
        try:
            entries = list(os.scandir(self.root / folder))
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise _failed(folder or "the storage", error) from error
        for entry in entries:
            key = f"{folder}/{entry.name}" if folder else entry.name
            if key.startswith(".") or not (key.startswith(prefix) or prefix.startswith(f"{key}/")):
                continue
            if entry.is_dir(follow_symlinks=False):
                yield from self._walk(key, prefix)
            elif entry.is_file(follow_symlinks=False) and key.startswith(prefix):
                with contextlib.suppress(FileNotFoundError):  # removed since
                    yield key, entry.stat(follow_symlinks=False).st_size

    def _prepare(self) -> None:
        """Make the folders once for each process, and remove what killed processes left unfinished."""
        if self._prepared:
            return
        for folder in (self.root, self.root / UNFINISHED):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        before = time.time() - UNFINISHED_SECONDS
        for entry in os.scandir(self.root / UNFINISHED):
            with contextlib.suppress(OSError):
                if entry.stat(follow_symlinks=False).st_mtime < before:
                    os.unlink(entry.path)
        self._prepared = True

    def _move(self, unfinished: Path, file: Path) -> None:
        for _ in range(MOST_TRIES):
            made = [folder for folder in file.parents if not folder.exists()]
            try:
                for folder in reversed(made):
                    folder.mkdir(mode=0o700, exist_ok=True)
                os.replace(unfinished, file)
                for folder in {file.parent, *(one.parent for one in made)}:
                    _sync_folder(folder)
            except FileNotFoundError:
                continue  # a delete has just removed a folder that was empty
            return
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))


class FileObject(Closing):
    """A range of a file."""

    def __init__(self, stream: BinaryIO, offset: int, length: int | None) -> None:
        self._stream = stream
        self._left = length
        stream.seek(offset)

    def read(self, size: int = -1, /) -> bytes:
        """At most `size` bytes; an empty answer is the end."""
        if self._left is not None:
            size = self._left if size < 0 else min(size, self._left)
        try:
            piece = self._stream.read(size)
        except OSError as error:
            raise _failed("the object", error) from error
        if self._left is not None:
            self._left -= len(piece)
        return piece

    def close(self) -> None:
        """Close the file."""
        self._stream.close()


def _copy(key: str, body: Readable, stream: BinaryIO, size: int | None) -> int:
    written = 0
    while piece := body.read(PIECE_BYTES):
        with _readable_errors(key):
            view = memoryview(piece)
            while view:
                view = view[stream.write(view) :]
        written += len(piece)
        if size is not None and written > size:
            break
    return written


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextlib.contextmanager
def _readable_errors(key: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ELOOP, errno.ENXIO):
            raise _not_stored(key) from None
        raise _failed(key, error) from error


def _not_stored(key: str) -> NotStored:
    return NotStored(
        f"The storage has no object {key}.", way_out="Check whether the object has been deleted."
    )


def _failed(key: str, error: OSError) -> StorageError:
    return StorageError(
        f"The file storage failed for {key}: {error.strerror}.",
        way_out="Check the disk and the rights of the folder that MUSTER_STORAGE names, and try again.",
    )
