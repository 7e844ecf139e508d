"""Storages of every kind: folders, a bucket on moto's server, and both encrypted."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from infra.storage import Storage
from infra.storage.encrypted import EncryptedStorage
from infra.storage.files import FileStorage
from infra.storage.s3 import S3Storage
from tests.support.buckets import new_bucket, s3_server

KEYS = (b"k" * 32, b"o" * 32)


@pytest.fixture(scope="package")
def one_bucket() -> Iterator[S3Storage]:
    """A bucket on a server of its own; a client takes long to make, so that all tests share it."""
    with pytest.MonkeyPatch.context() as patch, s3_server() as endpoint:
        patch.setenv("AWS_ACCESS_KEY_ID", "for-tests")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "for-tests")
        storage = S3Storage("muster-tests", "", endpoint, "eu-central-1")
        new_bucket(storage)
        yield storage


@pytest.fixture
def bucket(one_bucket: S3Storage) -> S3Storage:
    """A storage below a prefix of its own."""
    storage = S3Storage(one_bucket.bucket, f"of/{uuid4().hex}", one_bucket.endpoint, one_bucket.region)
    storage._client = (os.getpid(), one_bucket.client)
    return storage


@pytest.fixture
def folder(tmp_path: Path) -> FileStorage:
    return FileStorage(tmp_path / "objects")


@pytest.fixture(params=["folder", "bucket", "encrypted folder", "encrypted bucket"])
def storage(request: pytest.FixtureRequest) -> Storage:
    inner = request.getfixturevalue(request.param.split()[-1])
    return EncryptedStorage(inner, KEYS) if "encrypted" in request.param else inner
