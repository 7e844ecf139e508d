"""What every storage promises, whatever it stores in."""

from __future__ import annotations

import hashlib
import io
import random
import threading
from functools import partial

import pytest

from infra.storage import InvalidKey, NotStored, Storage, StorageError
from infra.storage.encrypted import CHUNK_BYTES

#: Around the pieces that storages cut bodies into.
SIZES = (0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES, 1_000_003)


def some_bytes(size: int) -> bytes:
    return random.Random(size).randbytes(size)


def put(storage: Storage, key: str, body: bytes) -> None:
    assert storage.put(key, io.BytesIO(body), len(body)) == len(body)


def get(storage: Storage, key: str, offset: int = 0, length: int | None = None) -> bytes:
    with storage.open(key, offset, length) as found:
        return found.read()


class Trickle:
    """A body of a given size that comes in pieces of a few thousand bytes, as from a network."""

    def __init__(self, size: int, *, fails_at: int | None = None) -> None:
        self.size, self.fails_at, self.given, self.largest = size, fails_at, 0, 0
        self.digest = hashlib.sha256()

    def read(self, size: int = -1, /) -> bytes:
        self.largest = max(self.largest, size)
        if self.fails_at is not None and self.given >= self.fails_at:
            raise ConnectionResetError("the sender is gone")
        piece = bytes([self.given % 251]) * min(size if size > 0 else 5000, 50_000, self.size - self.given)
        self.given += len(piece)
        self.digest.update(piece)
        return piece


@pytest.mark.parametrize("size", SIZES)
def test_what_was_stored_comes_back_byte_for_byte(storage: Storage, size: int) -> None:
    body = some_bytes(size)

    put(storage, "jobs/1/a", body)

    assert get(storage, "jobs/1/a") == body
    assert storage.size("jobs/1/a") == size
    assert list(storage.list("jobs/")) == [("jobs/1/a", size)]


def test_any_range_is_read(storage: Storage, request: pytest.FixtureRequest) -> None:
    body = some_bytes(3 * CHUNK_BYTES + 77)
    put(storage, "a", body)
    edges = sorted({0, 1, len(body) - 1, len(body), len(body) + 9} | {
        CHUNK_BYTES * n + d for n in (1, 2, 3) for d in (-1, 0, 1)
    })  # fmt: skip

    lengths = (0, 1, CHUNK_BYTES, 2 * CHUNK_BYTES + 5, len(body))
    # Each request to a bucket takes a hundred times as long as a look into a folder: two lengths at each edge there.
    in_a_folder = "bucket" not in request.node.callspec.id
    for number, offset in enumerate(edges):
        assert get(storage, "a", offset) == body[offset:], offset
        for length in lengths if in_a_folder else (lengths[number % 5], lengths[(number + 2) % 5]):
            assert get(storage, "a", offset, length) == body[offset : offset + length], (offset, length)


def test_it_is_read_in_the_pieces_that_are_asked_for(storage: Storage) -> None:
    body = some_bytes(CHUNK_BYTES + 5000)
    put(storage, "a", body)

    with storage.open("a", 10) as found:
        pieces = list(iter(lambda: found.read(3000), b""))

    assert b"".join(pieces) == body[10:]
    assert max(map(len, pieces)) <= 3000


def test_a_body_of_unknown_size_is_stored(storage: Storage) -> None:
    body = Trickle(300_000)

    assert storage.put("a", body) == 300_000

    assert hashlib.sha256(get(storage, "a")).digest() == body.digest.digest()


def test_a_large_body_is_never_held_in_memory_whole(storage: Storage) -> None:
    """24 MiB: three parts of a bucket's upload. What is asked for at once stays at the size of a part."""
    body = Trickle(24 * 1024 * 1024 + 1)

    storage.put("a", body, body.size)

    assert storage.size("a") == body.size
    assert body.largest <= 8 * 1024 * 1024
    digest = hashlib.sha256()
    with storage.open("a") as found:
        while piece := found.read(1_000_000):
            digest.update(piece)
    assert digest.digest() == body.digest.digest()


@pytest.mark.parametrize("said", [9, 11, 0, 20 * 1024 * 1024])
def test_a_body_of_another_size_than_said_is_not_stored(storage: Storage, said: int) -> None:
    put(storage, "a", b"before")

    with pytest.raises(StorageError, match="bytes"):
        storage.put("a", io.BytesIO(b"0123456789"), said)
    with pytest.raises(StorageError, match="bytes"):
        storage.put("b", io.BytesIO(b"0123456789"), said)

    assert get(storage, "a") == b"before"
    assert [key for key, _ in storage.list()] == ["a"]


@pytest.mark.parametrize("fails_at", [0, 100_000, 9 * 1024 * 1024])
def test_a_body_that_breaks_off_is_not_stored(storage: Storage, fails_at: int) -> None:
    put(storage, "a", b"before")

    with pytest.raises(ConnectionResetError):
        storage.put("a", Trickle(20 * 1024 * 1024, fails_at=fails_at))

    assert get(storage, "a") == b"before"
    assert [key for key, _ in storage.list()] == ["a"]


def test_the_last_body_of_a_key_counts(storage: Storage) -> None:
    put(storage, "a", some_bytes(200_000))
    put(storage, "a", b"short")

    assert get(storage, "a") == b"short"
    assert list(storage.list()) == [("a", 5)]


def test_who_reads_while_it_is_replaced_reads_one_of_both(storage: Storage) -> None:
    old, new = some_bytes(300_000), some_bytes(300_001)
    put(storage, "a", old)

    with storage.open("a") as found:
        start = found.read(1000)
        put(storage, "a", new)
        rest = found.read()

    assert start + rest == old
    assert get(storage, "a") == new


def test_what_was_deleted_is_gone(storage: Storage) -> None:
    put(storage, "jobs/1/a", b"a")
    put(storage, "jobs/2/b", b"b")

    storage.delete("jobs/1/a")
    storage.delete("jobs/1/a")
    storage.delete("never/was")

    assert list(storage.list()) == [("jobs/2/b", 1)]
    for ask in (storage.size, storage.open):
        with pytest.raises(NotStored, match="jobs/1/a"):
            ask("jobs/1/a")
    put(storage, "jobs/1/a", b"again")
    assert get(storage, "jobs/1/a") == b"again"


def test_an_absent_object_is_said_at_any_range(storage: Storage) -> None:
    for offset, length in ((0, None), (5, None), (0, 0), (3, 7)):
        with pytest.raises(NotStored):
            get(storage, "absent", offset, length)
    with pytest.raises(NotStored):
        storage.open("a/b")


def test_a_list_is_of_a_prefix(storage: Storage) -> None:
    for key in ("jobs/1/a", "jobs/1/b", "jobs/12/a", "jobs-x", "other/z"):
        put(storage, key, key.encode())

    def listed(prefix: str) -> list[str]:
        return sorted(key for key, _ in storage.list(prefix))

    assert listed("") == ["jobs-x", "jobs/1/a", "jobs/1/b", "jobs/12/a", "other/z"]
    assert listed("jobs/1/") == ["jobs/1/a", "jobs/1/b"]
    assert listed("jobs/1") == ["jobs/1/a", "jobs/1/b", "jobs/12/a"]
    assert listed("jobs") == ["jobs-x", "jobs/1/a", "jobs/1/b", "jobs/12/a"]
    assert listed("jobs/1/a") == ["jobs/1/a"]
    assert listed("nothing/") == []


def test_a_key_that_could_leave_the_storage_is_refused(storage: Storage) -> None:
    for key in (
        "", "/", "/etc/passwd", "../up", "a/../b", "a/..", "./a", "a//b", "a/", "a\0b", "a\nb", "a\\b", ".hidden",
        "x" * 201, "/".join(["x" * 199] * 5), "\ud800",
    ):  # fmt: skip
        for ask in (partial(storage.put, key, io.BytesIO(b"x")), partial(storage.open, key),
                    partial(storage.size, key), partial(storage.delete, key)):  # fmt: skip
            with pytest.raises(InvalidKey):
                ask()


def test_a_range_may_not_be_negative(storage: Storage) -> None:
    put(storage, "a", b"abc")

    for offset, length in ((-1, None), (0, -1)):
        with pytest.raises(ValueError, match="negative"):
            storage.open("a", offset, length)


def test_many_threads_use_one_storage(storage: Storage) -> None:
    wrong: list[str] = []

    def work(number: int) -> None:
        for turn in range(4):
            key, body = f"t/{number}/{turn}", some_bytes(70_000 + number)
            put(storage, key, body)
            if get(storage, key) != body:
                wrong.append(key)
            storage.delete(key)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert wrong == []
    assert list(storage.list()) == []
