"""MUSTER_STORAGE: what it takes, what it refuses and with which words."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from config.checks import check_storage
from infra.storage import NotConfigured, StorageSetting, configured_storage, storage_setting
from infra.storage.encrypted import EncryptedStorage
from infra.storage.files import FileStorage
from infra.storage.s3 import S3Storage

ROOT = Path(__file__).resolve().parents[3]
KEY = "0f" * 32


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("file:///srv/muster/storage", StorageSetting(folder="/srv/muster/storage")),
        ("file:///srv/with%20space", StorageSetting(folder="/srv/with space")),
        ("s3://artefacts", StorageSetting(bucket="artefacts")),
        (
            "s3://artefacts/site/a?endpoint=https://s3.example.org:9000&region=eu-1",
            StorageSetting(
                bucket="artefacts", prefix="site/a", endpoint="https://s3.example.org:9000", region="eu-1"
            ),
        ),
        ("", None),
    ],
)
def test_it_names_a_folder_or_a_bucket(text: str, found: StorageSetting | None) -> None:
    assert storage_setting(text) == found


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("/srv/storage", "kind"),
        ("ftp://host/x", "kind"),
        ("file://srv/storage", "absolute folder"),
        ("file:///", "absolute folder"),
        ("file:///srv/../etc", "absolute folder"),
        ("file:///srv?x=1", "absolute folder"),
        ("s3://", "bucket"),
        ("s3://Bad_Bucket", "bucket"),
        ("s3://bucket?colour=red", "unknown option 'colour'"),
        ("s3://bucket?endpoint=host:9000", "endpoint"),
        ("s3://bucket?endpoint=https://a:b@host", "endpoint"),
        ("s3://bucket?region=a/b", "region"),
        ("s3://bucket/a//b", "prefix"),
        ("s3://bucket/../b", "prefix"),
        ("s3://id:secret@bucket", "AWS_ACCESS_KEY_ID"),
    ],
)
def test_it_refuses_with_reason_and_way_out(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why) as caught:
        storage_setting(text)
    assert "MUSTER_STORAGE" in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("key", ["short", "zz" * 32, "0f" * 31, ""])
def test_a_wrong_key_is_refused_and_not_repeated(key: str) -> None:
    with pytest.raises(ValueError, match="Key 2 of MUSTER_STORAGE_KEYS") as caught:
        storage_setting("file:///srv", [KEY, key])
    assert not key or key not in str(caught.value)
    assert KEY not in repr(storage_setting("file:///srv", [KEY]))


def setting_of(settings_file: str, **env: str) -> subprocess.CompletedProcess[str]:
    """What a process says that starts with this environment."""
    return subprocess.run(
        [sys.executable, "-c", "from django.conf import settings; print(settings.MUSTER_STORAGE)"],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "DJANGO_SETTINGS_MODULE": f"config.settings.{settings_file}", **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("name", ["MUSTER_STORAGE", "MUSTER_STORAGE_KEYS"])
def test_the_portal_does_not_start_with_a_wrong_one(name: str) -> None:
    done = setting_of("test", **{name: "ftp://x"})

    assert done.returncode != 0
    assert "ImproperlyConfigured" in done.stderr
    assert name in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("settings_file", ["test", "development"])
def test_by_default_it_is_a_folder_of_the_state_folder(settings_file: str, tmp_path: Path) -> None:
    done = setting_of(settings_file, MUSTER_STATE=str(tmp_path))

    assert done.stdout.strip() == (tmp_path / "storage").as_uri(), done.stderr


def test_the_configured_storage_is_made_once(settings: Any, tmp_path: Path) -> None:
    settings.MUSTER_STORAGE, settings.MUSTER_STORAGE_KEYS = (tmp_path / "objects").as_uri(), []
    first = configured_storage()
    assert isinstance(first, FileStorage)
    assert first.root == tmp_path / "objects"
    assert configured_storage() is first

    settings.MUSTER_STORAGE_KEYS = [KEY]
    encrypted = configured_storage()
    assert isinstance(encrypted, EncryptedStorage)

    settings.MUSTER_STORAGE, settings.MUSTER_STORAGE_KEYS = "s3://bucket/p?region=eu-1", []
    bucket = configured_storage()
    assert isinstance(bucket, S3Storage)
    assert (bucket.bucket, bucket.prefix, bucket.region) == ("bucket", "p/", "eu-1")

    settings.MUSTER_STORAGE = ""
    with pytest.raises(NotConfigured, match="MUSTER_STORAGE"):
        configured_storage()


def test_a_check_of_the_deployment_tries_it(settings: Any, tmp_path: Path) -> None:
    settings.MUSTER_STORAGE = (tmp_path / "objects").as_uri()
    assert check_storage() == []
    assert list(configured_storage().list()) == []

    (tmp_path / "file").write_text("no folder")
    settings.MUSTER_STORAGE = (tmp_path / "file").as_uri()
    (found,) = check_storage()
    assert found.id == "muster.E002"
    assert "MUSTER_STORAGE" in str(found.hint)


def test_what_only_a_bucket_or_encryption_needs_is_loaded_by_its_first_use() -> None:
    """A process without artefacts pays no memory for them."""
    code = (
        "import sys, infra.storage, infra.storage.s3, infra.storage.encrypted; "
        "infra.storage.s3.S3Storage('bucket'); "
        "print([name for name in ('boto3', 'botocore', 'cryptography') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"
