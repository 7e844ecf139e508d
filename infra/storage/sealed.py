"""Short texts that only the portal can read: AES-256-GCM with the keys of MUSTER_STORAGE_KEYS, as rows keep them.

A sealed text names the key that sealed it, so that keys can be exchanged: the first key seals, all of them open. The
secret key of the portal stands behind them (by HKDF): it seals where no key is configured, and opens what it has
sealed. `about` says what the text belongs to; it is authenticated, so that a sealed text opens in its own row alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from django.conf import settings

from infra.storage.encrypted import KEY_BYTES, key_id

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

MAGIC: Final = b"MUSTSEC1"
_ID_BYTES: Final = 8
_NONCE_BYTES: Final = 12
_TAG_BYTES: Final = 16
HEADER_BYTES: Final = len(MAGIC) + _ID_BYTES + _NONCE_BYTES
#: What sealing adds to a text.
OVERHEAD_BYTES: Final = HEADER_BYTES + _TAG_BYTES


class CannotOpen(Exception):
    """A sealed text cannot be opened: its key is not configured, or it was changed. The text is for operators."""


def seal(text: str, about: str) -> bytes:
    """The text, encrypted with the current key."""
    key = _keys()[0]
    header = MAGIC + key_id(key) + os.urandom(_NONCE_BYTES)
    return header + _cipher(key).encrypt(header[-_NONCE_BYTES:], text.encode(), header + about.encode())


def unseal(sealed: bytes, about: str) -> str:
    """The text that was sealed about the same thing; raises CannotOpen."""
    from cryptography.exceptions import InvalidTag

    header = sealed[:HEADER_BYTES]
    key = next((key for key in _keys() if key_id(key) == _key_named(header)), None)
    if key is None:
        raise CannotOpen(
            f"it was encrypted with a key ({_key_named(header).hex()}) that MUSTER_STORAGE_KEYS does not have"
        )
    try:
        plain = _cipher(key).decrypt(header[-_NONCE_BYTES:], sealed[HEADER_BYTES:], header + about.encode())
    except InvalidTag:
        raise CannotOpen("its bytes were changed, or are of another row") from None
    return plain.decode()


def is_current(sealed: bytes) -> bool:
    """Whether the current key has sealed this."""
    return _key_named(sealed) == key_id(_keys()[0])


def _key_named(header: bytes) -> bytes:
    if len(header) < HEADER_BYTES or not header.startswith(MAGIC):
        raise CannotOpen("it is not in the form in which secrets are kept")
    return header[len(MAGIC) : len(MAGIC) + _ID_BYTES]


def _keys() -> list[bytes]:
    configured = (bytes.fromhex(key) for key in settings.MUSTER_STORAGE_KEYS)
    behind: Iterable[str] = [settings.SECRET_KEY, *map(str, settings.SECRET_KEY_FALLBACKS)]
    return [*configured, *map(_stretched, behind)]


@lru_cache(maxsize=16)
def _stretched(secret_key: str) -> bytes:
    return _hkdf(secret_key.encode(), b"muster key of sealed texts")


@lru_cache(maxsize=16)
def _cipher(key: bytes) -> AESGCM:
    """Of a key that has this use alone: objects in the storage are encrypted with other keys derived from it."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    return AESGCM(_hkdf(key, b"muster sealed text"))


def _hkdf(key: bytes, info: bytes) -> bytes:
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return HKDF(SHA256(), KEY_BYTES, None, info).derive(key)
