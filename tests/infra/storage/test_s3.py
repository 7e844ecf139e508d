"""A bucket as storage: uploads in parts, broken connections, refusals."""

from __future__ import annotations

import io
from typing import Any

import pytest

from infra.storage import Damaged, StorageError
from infra.storage.s3 import PART_BYTES, S3Storage

from .test_contract import Trickle, get, put, some_bytes


class Breaking:
    """A body of an answer whose connection breaks after some bytes."""

    def __init__(self, body: Any, after: int) -> None:
        self._body, self._left = body, after

    def read(self, size: int) -> bytes:
        if self._left <= 0:
            raise ConnectionResetError("gone")
        piece = self._body.read(min(size, self._left))
        self._left -= len(piece)
        return bytes(piece)

    def close(self) -> None:
        self._body.close()


def breaks(storage: S3Storage, monkeypatch: pytest.MonkeyPatch, *after: int) -> list[int]:
    """Let the first downloads break, each after some bytes; answers where each began."""
    ask, breaking, began = storage.get, list(after), []

    def get_object(key: str, offset: int, length: int | None, etag: str = "") -> Any:
        answer = ask(key, offset, length, etag)
        began.append(offset)
        if breaking:
            answer["Body"] = Breaking(answer["Body"], breaking.pop(0))
        return answer

    monkeypatch.setattr(storage, "get", get_object)
    return began


def test_a_download_that_breaks_goes_on_where_it_broke(
    bucket: S3Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = some_bytes(100_000)
    put(bucket, "a", body)
    began = breaks(bucket, monkeypatch, 40_000, 7)

    assert get(bucket, "a", 10, 90_000) == body[10:90_010]
    assert began == [10, 40_010, 40_017]


def test_a_download_that_always_breaks_ends_with_the_reason(
    bucket: S3Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(bucket, "a", some_bytes(1000))
    breaks(bucket, monkeypatch, *[1] * 9)

    with pytest.raises(StorageError, match="gone"):
        get(bucket, "a")


def test_a_download_never_goes_on_in_another_object(
    bucket: S3Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(bucket, "a", some_bytes(1000))
    breaks(bucket, monkeypatch, 500)

    with bucket.open("a") as found:
        found.read(500)
        put(bucket, "a", some_bytes(2000))
        with pytest.raises(Damaged, match="replaced"):
            found.read()


def test_an_upload_that_fails_leaves_no_parts_behind(bucket: S3Storage) -> None:
    with pytest.raises(ConnectionResetError):
        bucket.put("a", Trickle(3 * PART_BYTES, fails_at=2 * PART_BYTES))

    assert "Uploads" not in bucket.client.list_multipart_uploads(Bucket=bucket.bucket, Prefix=bucket.prefix)


def test_a_bucket_lists_more_than_one_page(bucket: S3Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(5):
        put(bucket, f"p/{number}", b"x" * number)
    ask = bucket.client.list_objects_v2
    monkeypatch.setattr(bucket.client, "list_objects_v2", lambda **more: ask(**more, MaxKeys=2))

    assert sorted(bucket.list("p/")) == [(f"p/{number}", number) for number in range(5)]


def test_a_bucket_that_is_not_there_is_an_error_with_a_way_out(bucket: S3Storage) -> None:
    elsewhere = S3Storage("no-such-bucket", "", bucket.endpoint, bucket.region)
    elsewhere._client = bucket._client

    for ask in (
        lambda: elsewhere.put("a", io.BytesIO(b"x")),
        lambda: elsewhere.put("a", Trickle(PART_BYTES + 1)),
        lambda: elsewhere.open("a"),
        lambda: list(elsewhere.list()),
    ):
        with pytest.raises(StorageError, match="NoSuchBucket") as caught:
            ask()
        assert "AWS_ACCESS_KEY_ID" in caught.value.way_out
