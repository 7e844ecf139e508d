"""What a storage does: objects under keys, written whole or not at all, read from any offset."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Protocol, Self

from infra.errors import MusterError

#: A key is shorter than what S3 (1024 bytes) and a file system (255 a part) take, so that a prefix still fits.
MOST_KEY_BYTES: Final = 800
MOST_PART_BYTES: Final = 200
#: Bodies are read in pieces of this size; what one transfer holds in memory is a small multiple.
PIECE_BYTES: Final = 256 * 1024


@dataclass
class StorageError(MusterError):
    """The storage did not do what was asked: it is away, full or refuses. Nothing was stored or removed in part."""

    code: str = "storage-unavailable"
    status: int = 503


@dataclass
class StorageAway(StorageError):
    """It does not answer, or answers that it is overloaded or broken; the same may succeed later."""


@dataclass
class NotStored(StorageError):
    """No object has this key."""

    code: str = "not-stored"
    status: int = 404


@dataclass
class Damaged(StorageError):
    """The object is not what was written: cut off, exchanged, or encrypted with a key that is not configured."""

    code: str = "storage-damaged"
    status: int = 500


@dataclass
class NotConfigured(StorageError):
    """This site has named no storage."""

    code: str = "no-storage"
    status: int = 409


class InvalidKey(ValueError):
    """A key that no storage takes; keys are made by the program, so this is a mistake of the program."""


class Readable(Protocol):
    """Anything that gives bytes; an empty answer is the end."""

    def read(self, size: int = -1, /) -> bytes:
        """At most `size` bytes, all that are left where it is negative."""
        ...


class StoredObject(Readable, Protocol):
    """An object that is being read; `close` gives its connection or file back."""

    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Storage(Protocol):
    """Objects of bytes under keys such as `artifacts/4711/1a2b`: names in parts, with `/` between them.

    A key is never part of the path of another (`a` beside `a/b`). Everything may be called from several threads and
    processes at once; the last `put` of a key wins, and readers see one version, whole.
    """

    def put(self, key: str, body: Readable, size: int | None = None) -> int:
        """Store all that `body` gives, in place of what the key had; answers the number of bytes.

        With `size`, a body of another length is an error. On an error the key keeps what it had.
        """
        ...

    def open(self, key: str, offset: int = 0, length: int | None = None) -> StoredObject:
        """Read `length` bytes from `offset`, or to the end; beyond the end there are none. `NotStored` if absent."""
        ...

    def delete(self, key: str) -> None:
        """Remove the object; nothing happens where there is none."""
        ...

    def list(self, prefix: str = "") -> Iterator[tuple[str, int]]:
        """Key and size in bytes of each object whose key starts with `prefix`, in no particular order."""
        ...

    def size(self, key: str) -> int:
        """Bytes of the object; `NotStored` if absent."""
        ...


def check_key(key: str) -> str:
    """The key itself, or `InvalidKey`: nothing that leaves a root folder or reads differently on two storages."""
    if not key or not key.isprintable() or len(key.encode()) > MOST_KEY_BYTES:
        raise InvalidKey(f"{key!r} is not a storage key: 1 to {MOST_KEY_BYTES} printable bytes")
    if any(part in ("", ".", "..") or len(part.encode()) > MOST_PART_BYTES for part in key.split("/")):
        raise InvalidKey(f"{key!r} is not a storage key: empty, dotted or long parts between its slashes")
    if key.startswith(".") or "\\" in key:
        raise InvalidKey(f"{key!r} is not a storage key: it may not begin with a dot or have a backslash")
    return key


def check_range(offset: int, length: int | None) -> None:
    """`ValueError` for a range that counts backwards."""
    if offset < 0 or (length is not None and length < 0):
        raise ValueError(f"offset {offset} and length {length} may not be negative")


def wrong_size(key: str, wanted: int, found: int) -> StorageError:
    """The error for a body that is shorter or longer than it was said to be."""
    return StorageError(
        f"{key} should have {wanted} bytes, but has {'more' if found > wanted else found}; nothing was stored.",
        way_out="Send the whole body again.",
    )


def read_exactly(body: Readable, count: int) -> bytes:
    """`count` bytes, fewer only at the end of the body."""
    pieces: list[bytes] = []
    while count > 0 and (piece := body.read(count)):
        pieces.append(piece)
        count -= len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


class Closing:
    """The `with` of what is read."""

    def close(self) -> None:
        """Give back what is held; a second call does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Nothing(Closing):
    """An object, or a range of one, without any bytes."""

    def read(self, size: int = -1, /) -> bytes:
        """Always the end."""
        return b""
