"""Encryption: nothing readable is stored, and nothing that was changed is read."""

from __future__ import annotations

import io

import pytest

from infra.storage import Damaged
from infra.storage.encrypted import CHUNK_BYTES, HEADER_BYTES, EncryptedStorage, plain_bytes, stored_bytes
from infra.storage.files import FileStorage

from .conftest import KEYS
from .test_contract import get, put, some_bytes

NEW, OLD = KEYS
CHUNK = CHUNK_BYTES + 16
BODY = some_bytes(3 * CHUNK_BYTES + 100)


@pytest.fixture
def encrypted(folder: FileStorage) -> EncryptedStorage:
    storage = EncryptedStorage(folder, [NEW])
    put(storage, "a", BODY)
    return storage


def change(folder: FileStorage, stored: bytes, key: str = "a") -> None:
    folder.put(key, io.BytesIO(stored))


def test_nothing_of_the_object_can_be_read_in_the_storage(folder: FileStorage) -> None:
    storage = EncryptedStorage(folder, [NEW])
    put(storage, "a", b"the secret of the job" * 10_000)
    put(storage, "b", b"the secret of the job" * 10_000)

    stored = get(folder, "a")

    assert b"secret" not in stored
    assert stored[HEADER_BYTES:] != get(folder, "b")[HEADER_BYTES:]  # nor that two are the same


def test_sizes_are_known_from_the_stored_size_alone() -> None:
    for size in (0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 5 * CHUNK_BYTES, 5 * CHUNK_BYTES + 3):
        assert plain_bytes(stored_bytes(size)) == size
    assert [plain_bytes(n) for n in (0, HEADER_BYTES, HEADER_BYTES + 15, HEADER_BYTES + CHUNK + 3)] == [
        None
    ] * 4


def test_keys_rotate(folder: FileStorage) -> None:
    put(EncryptedStorage(folder, [OLD]), "old", BODY)
    rotated = EncryptedStorage(folder, [NEW, OLD])
    put(rotated, "new", BODY)

    assert get(rotated, "old") == get(rotated, "new") == BODY
    assert get(EncryptedStorage(folder, [NEW]), "new") == BODY
    with pytest.raises(Damaged, match="MUSTER_STORAGE_KEYS"):
        get(EncryptedStorage(folder, [NEW]), "old")


@pytest.mark.parametrize("at", [0, 9, 20, HEADER_BYTES, HEADER_BYTES + CHUNK + 5, -1])
def test_one_changed_bit_is_found(encrypted: EncryptedStorage, folder: FileStorage, at: int) -> None:
    stored = bytearray(get(folder, "a"))
    stored[at] ^= 1
    change(folder, bytes(stored))

    with pytest.raises(Damaged):
        get(encrypted, "a")


@pytest.mark.parametrize(
    "left",
    [0, 10, HEADER_BYTES, HEADER_BYTES + CHUNK, HEADER_BYTES + 2 * CHUNK, HEADER_BYTES + 3 * CHUNK,
     HEADER_BYTES + 3 * CHUNK + 30, HEADER_BYTES + 3 * CHUNK + 115],
)  # fmt: skip
def test_what_was_cut_off_is_found(encrypted: EncryptedStorage, folder: FileStorage, left: int) -> None:
    change(folder, get(folder, "a")[:left])

    with pytest.raises(Damaged):
        get(encrypted, "a")
    with pytest.raises(Damaged):
        get(encrypted, "a", len(BODY) - 5)
    with pytest.raises(Damaged):
        get(encrypted, "a", len(BODY) + 5, 10)


def test_chunks_in_another_order_are_found(encrypted: EncryptedStorage, folder: FileStorage) -> None:
    stored = get(folder, "a")
    head, chunks = stored[:HEADER_BYTES], stored[HEADER_BYTES:]
    parts = [chunks[n : n + CHUNK] for n in range(0, len(chunks), CHUNK)]

    for order in ((1, 0, 2, 3), (0, 0, 2, 3), (0, 2, 3), (0, 1, 2, 3, 3), (0, 1, 2, 2, 3)):
        change(folder, head + b"".join(parts[n] for n in order))
        with pytest.raises(Damaged):
            get(encrypted, "a")


def test_another_object_in_its_place_is_found(encrypted: EncryptedStorage, folder: FileStorage) -> None:
    put(encrypted, "b", some_bytes(len(BODY)))
    a, b = get(folder, "a"), get(folder, "b")

    change(folder, b)
    with pytest.raises(Damaged):
        get(encrypted, "a")
    change(folder, a[: HEADER_BYTES + CHUNK] + b[HEADER_BYTES + CHUNK :])
    with pytest.raises(Damaged):
        get(encrypted, "a")


def test_what_was_stored_without_encryption_is_refused_with_the_reason(
    encrypted: EncryptedStorage, folder: FileStorage
) -> None:
    put(folder, "plain", BODY)

    with pytest.raises(Damaged, match="without encryption"):
        get(encrypted, "plain")


def test_a_range_decrypts_only_its_own_chunks(encrypted: EncryptedStorage, folder: FileStorage) -> None:
    stored = bytearray(get(folder, "a"))
    stored[HEADER_BYTES + 5] ^= 1  # the first chunk
    change(folder, bytes(stored))

    assert get(encrypted, "a", CHUNK_BYTES) == BODY[CHUNK_BYTES:]
    with pytest.raises(Damaged):
        get(encrypted, "a", CHUNK_BYTES - 1, 10)
