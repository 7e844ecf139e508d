"""A bucket as storage: uploads in parts, broken connections, refusals."""

from __future__ import annotations

import io
import os
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError, ReadTimeoutError
from django.utils import timezone

from infra.circuits.shared import SharedCircuit
from infra.models import Circuit, System
from infra.storage import Damaged, NotStored, StorageAway, StorageError, s3
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


# ---------------------------------------------------------------- the circuit of the storage


@pytest.fixture
def away(bucket: S3Storage, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A bucket with a circuit whose server does what `away.does` says; `away.calls` counts."""
    storage = S3Storage(
        bucket.bucket, bucket.prefix.strip("/"), bucket.endpoint, bucket.region,
        SharedCircuit(System.STORAGE, "artefacts"),
    )  # fmt: skip
    found = SimpleNamespace(storage=storage, calls=0, does=lambda: None)

    def head_object(**words: Any) -> Any:
        found.calls += 1
        found.does()
        return {"ContentLength": 7}

    storage._client = (os.getpid(), SimpleNamespace(head_object=head_object))
    return found


def refuses(code: str, status: int) -> Any:
    def answer() -> None:
        raise ClientError(
            {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}, "HeadObject"
        )

    return answer


def hangs() -> None:
    raise ReadTimeoutError(endpoint_url="https://s3.example.org")


@pytest.mark.django_db
@pytest.mark.parametrize("fault", [hangs, refuses("SlowDown", 503), refuses("InternalError", 500)])
def test_a_storage_that_does_not_answer_is_not_called_after_three_times(away: Any, fault: Any) -> None:
    away.does = fault
    for _ in range(3):
        with pytest.raises(StorageAway):
            away.storage.size("a")

    with pytest.raises(StorageAway, match="has not answered 3 times in a row; it is tried again at 20"):
        away.storage.size("a")
    assert away.calls == 3

    away.does = lambda: None
    Circuit.objects.update(open_until=timezone.now() - timedelta(seconds=1))
    assert away.storage.size("a") == 7
    assert not Circuit.objects.exists()


@pytest.mark.django_db
def test_a_storage_that_refuses_or_has_no_such_object_does_answer(away: Any) -> None:
    for fault, error in [(refuses("404", 404), NotStored), (refuses("AccessDenied", 403), StorageError)] * 3:
        away.does = fault
        with pytest.raises(error):
            away.storage.size("a")

    assert away.calls == 6
    assert not Circuit.objects.exists()


def test_no_request_waits_on_a_storage_for_longer_than_half_a_minute() -> None:
    assert (s3.CONNECT_SECONDS + s3.READ_SECONDS) * s3.ATTEMPTS <= 30
