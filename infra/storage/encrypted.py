"""Objects that only the portal can read: AES-256-GCM over any other storage, a chunk at a time.

An object is a header and chunks. The header names the key that encrypts and has a random salt; both give a key for this
object alone (HKDF). Each chunk has its number and whether it is the last one in its nonce, and the header and the
object's own name beside it, so that chunks cannot be exchanged, left out or taken from another object, and an object
that was cut off does not pass for a shorter one. Any range is read by decrypting the chunks that it touches.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from infra.storage.interface import (
    Closing,
    Damaged,
    Nothing,
    Readable,
    Storage,
    StoredObject,
    check_key,
    check_range,
    read_exactly,
    wrong_size,
)

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

MAGIC: Final = b"MUSTENC1"
KEY_BYTES: Final = 32
_ID_BYTES: Final = 8
_SALT_BYTES: Final = 32
HEADER_BYTES: Final = len(MAGIC) + _ID_BYTES + _SALT_BYTES
CHUNK_BYTES: Final = 64 * 1024
_TAG_BYTES: Final = 16
_WHOLE: Final = CHUNK_BYTES + _TAG_BYTES


class EncryptedStorage:
    """What it stores is encrypted with the first key; it reads what any of the keys encrypted."""

    def __init__(self, inner: Storage, keys: Sequence[bytes]) -> None:
        if not keys or any(len(key) != KEY_BYTES for key in keys):
            raise ValueError(f"keys of {KEY_BYTES} bytes are needed")
        self.inner = inner
        self._current = key_id(keys[0])
        self._keys = {key_id(key): key for key in keys}

    def put(self, key: str, body: Readable, size: int | None = None) -> int:
        """See `Storage.put`; `size` and the answer count the bytes before encryption."""
        header = MAGIC + self._current + os.urandom(_SALT_BYTES)
        source = _Encrypting(_Sealer(self._keys, header, check_key(key)), header, body, size, key)
        self.inner.put(key, source, None if size is None else stored_bytes(size))
        return source.taken

    def open(self, key: str, offset: int = 0, length: int | None = None) -> StoredObject:
        """See `Storage.open`; `Damaged` where the bytes are not those that were stored, also while reading."""
        check_range(offset, length)
        with self.inner.open(key, 0, HEADER_BYTES) as start:
            sealer = _Sealer(self._keys, read_exactly(start, HEADER_BYTES), key)
        stored = self.inner.size(key)
        size = plain_bytes(stored)
        if size is None:
            raise _damaged(key, "it was cut off")
        end = size if length is None else min(size, offset + length)
        last = _last_chunk(size)
        if end >= size:  # says that this is the end, which only the last chunk proves
            first, upto = min(offset // CHUNK_BYTES, last), last
        elif offset >= end:
            return Nothing()
        else:
            first, upto = offset // CHUNK_BYTES, (end - 1) // CHUNK_BYTES
        begins = HEADER_BYTES + first * _WHOLE
        inner = self.inner.open(key, begins, min(stored, HEADER_BYTES + (upto + 1) * _WHOLE) - begins)
        return _Decrypting(
            sealer, inner, range(first, upto + 1), last, offset - first * CHUNK_BYTES, max(0, end - offset)
        )

    def delete(self, key: str) -> None:
        """See `Storage.delete`."""
        self.inner.delete(key)

    def list(self, prefix: str = "") -> Iterator[tuple[str, int]]:
        """See `Storage.list`; sizes are those before encryption."""
        for key, stored in self.inner.list(prefix):
            yield key, plain_bytes(stored) or 0

    def size(self, key: str) -> int:
        """See `Storage.size`; before encryption."""
        size = plain_bytes(self.inner.size(key))
        if size is None:
            raise _damaged(key, "it was stored without encryption, or was cut off")
        return size


def key_id(key: bytes) -> bytes:
    """What an object says of the key that encrypted it: not the key, and enough to find it among a few."""
    return hashlib.sha256(b"muster storage key" + key).digest()[:_ID_BYTES]


def stored_bytes(size: int) -> int:
    """How long an object of `size` bytes is once encrypted."""
    return HEADER_BYTES + size + _TAG_BYTES * (_last_chunk(size) + 1)


def plain_bytes(stored: int) -> int | None:
    """How long an encrypted object of `stored` bytes was; None where none can be so long."""
    body = stored - HEADER_BYTES
    whole, rest = divmod(body, _WHOLE)
    if body < _TAG_BYTES or 0 < rest < _TAG_BYTES:
        return None
    return whole * CHUNK_BYTES + max(0, rest - _TAG_BYTES)


def _last_chunk(size: int) -> int:
    """Number of the last chunk; an empty object has one that is empty."""
    return max(0, size - 1) // CHUNK_BYTES


class _Sealer:
    """Encrypts and decrypts the chunks of one object."""

    def __init__(self, keys: dict[bytes, bytes], header: bytes, name: str) -> None:
        self.name = name
        if len(header) < HEADER_BYTES or not header.startswith(MAGIC):
            raise _damaged(name, "it was stored without encryption, or was exchanged")
        named = header[len(MAGIC) : len(MAGIC) + _ID_BYTES]
        if named not in keys:
            raise _damaged(
                name, f"it was encrypted with a key ({named.hex()}) that MUSTER_STORAGE_KEYS does not have"
            )
        self._about = header + name.encode()
        self._cipher = _cipher(keys[named], header[-_SALT_BYTES:])

    def seal(self, number: int, last: bool, chunk: bytes) -> bytes:
        return self._cipher.encrypt(_nonce(number, last), chunk, self._about)

    def unseal(self, number: int, last: bool, chunk: bytes) -> bytes:
        from cryptography.exceptions import InvalidTag

        try:
            return self._cipher.decrypt(_nonce(number, last), chunk, self._about)
        except InvalidTag:
            raise _damaged(self.name, "its bytes were changed or cut off") from None


class _Encrypting:
    """Header and chunks of a body, as they are asked for."""

    def __init__(self, sealer: _Sealer, header: bytes, body: Readable, size: int | None, name: str) -> None:
        self._sealer, self._body, self._size, self._name = sealer, body, size, name
        self._ready = header
        self._number = 0
        self._next: bytes | None = None
        self._ended = False
        self.taken = 0

    def read(self, size: int = -1, /) -> bytes:
        if size < 0:
            return b"".join(iter(lambda: self.read(_WHOLE), b""))
        if not self._ready and not self._ended:
            self._ready = self._chunk()
        piece, self._ready = self._ready[:size], self._ready[size:]
        return piece

    def _chunk(self) -> bytes:
        """Encrypt one chunk; one is read ahead, since only the end of the body says which is the last."""
        chunk = read_exactly(self._body, CHUNK_BYTES) if self._next is None else self._next
        self._next = read_exactly(self._body, CHUNK_BYTES) if len(chunk) == CHUNK_BYTES else b""
        self.taken += len(chunk)
        self._ended = not self._next
        if self._size is not None and (self.taken > self._size or (self._ended and self.taken != self._size)):
            raise wrong_size(self._name, self._size, self.taken)
        sealed = self._sealer.seal(self._number, self._ended, chunk)
        self._number += 1
        return sealed


class _Decrypting(Closing):
    """A range of the plain bytes: the chunks `numbers`, without the first `skip` bytes, `left` bytes in all."""

    def __init__(
        self, sealer: _Sealer, inner: StoredObject, numbers: range, last: int, skip: int, left: int
    ) -> None:
        self._sealer, self._inner, self._last = sealer, inner, last
        self._numbers = iter(numbers)
        self._skip, self._left = skip, left
        self._ready = b""
        self._at = 0

    def read(self, size: int = -1, /) -> bytes:
        if size < 0:
            return b"".join(iter(lambda: self.read(CHUNK_BYTES), b""))
        while self._at >= len(self._ready):
            number = next(self._numbers, None)
            if number is None:
                return b""
            chunk = self._sealer.unseal(number, number == self._last, read_exactly(self._inner, _WHOLE))
            self._ready, self._at = chunk[self._skip : self._skip + self._left], 0
            self._skip = max(0, self._skip - len(chunk))
        piece = self._ready[self._at : self._at + size]
        self._at += len(piece)
        self._left -= len(piece)
        return piece

    def close(self) -> None:
        self._inner.close()


def _nonce(number: int, last: bool) -> bytes:
    return struct.pack(">QxxxB", number, last)


def _cipher(key: bytes, salt: bytes) -> AESGCM:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return AESGCM(HKDF(SHA256(), KEY_BYTES, salt, b"muster storage object").derive(key))


def _damaged(name: str, why: str) -> Damaged:
    return Damaged(
        f"The stored object {name} cannot be read: {why}.",
        way_out="Add the key that encrypted the object to MUSTER_STORAGE_KEYS; "
        "otherwise restore the object from a backup.",
    )
