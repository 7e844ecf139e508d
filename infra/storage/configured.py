"""The storage that the settings name: MUSTER_STORAGE and MUSTER_STORAGE_KEYS."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

from django.conf import settings

from infra.storage.files import FileStorage
from infra.storage.interface import NotConfigured, Storage

_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_REGION: Final = re.compile(r"[a-z0-9-]{1,40}")
_FORMS: Final = "Write file:///folder, or s3://bucket/prefix?endpoint=https://host&region=name."
_KEY_FORM: Final = "Write keys as 64 hexadecimal digits each, for instance from `openssl rand -hex 32`."


@dataclass(frozen=True, slots=True)
class StorageSetting:
    """MUSTER_STORAGE in parts: a folder, or a bucket; and the keys that encrypt, the current one first."""

    folder: str = ""
    bucket: str = ""
    prefix: str = ""
    endpoint: str = ""
    region: str = ""
    keys: tuple[bytes, ...] = field(default=(), repr=False)

    @property
    def words(self) -> str:
        """What people are shown of it; no secret."""
        place = f"folder {self.folder}" if self.folder else f"bucket {self.bucket}"
        return f"{place}, encrypted" if self.keys else place


def storage_setting(text: str, keys: Sequence[str] = ()) -> StorageSetting | None:
    """Both settings, checked; None where no storage is named. `ValueError` says what is wrong and what to write."""
    secret = tuple(_key(number, one) for number, one in enumerate(keys, 1))
    if not text:
        return None
    try:
        parts = urlsplit(text)
        options = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
    except ValueError as error:
        raise ValueError(f"MUSTER_STORAGE cannot be read: {error}. {_FORMS}") from None
    if "@" in parts.netloc:
        raise ValueError(
            "MUSTER_STORAGE has credentials in it. Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY instead."
        )
    if parts.scheme == "file":
        path = unquote(parts.path)
        if (
            parts.netloc
            or options
            or parts.fragment
            or len(path) < 2
            or ".." in path.split("/")
            or "\0" in path
        ):
            raise ValueError(
                f"MUSTER_STORAGE is {text!r}: a file storage is an absolute folder alone. {_FORMS}"
            )
        return StorageSetting(folder=path, keys=secret)
    if parts.scheme == "s3":
        return _s3(text, parts.netloc, unquote(parts.path).strip("/"), options, secret)
    raise ValueError(f"MUSTER_STORAGE is {text!r}: no storage of that kind is known. {_FORMS}")


def configured_storage() -> Storage:
    """The storage of this site, the same one for the whole process; `NotConfigured` where there is none."""
    found = storage_setting(settings.MUSTER_STORAGE, settings.MUSTER_STORAGE_KEYS)
    if found is None:
        raise NotConfigured(
            "This site has no storage for artefacts.",
            way_out="Ask its administrators to set MUSTER_STORAGE to a folder or a bucket.",
        )
    return _made(found)


def storage_of(setting: StorageSetting) -> Storage:
    """The storage of this setting, the same one for the whole process."""
    return _made(setting)


@lru_cache(maxsize=4)
def _made(setting: StorageSetting) -> Storage:
    storage: Storage
    if setting.folder:
        storage = FileStorage(setting.folder)
    else:
        from infra.circuits.shared import SharedCircuit
        from infra.models import System
        from infra.storage.s3 import S3Storage

        circuit = SharedCircuit(System.STORAGE, setting.bucket, label=f"bucket {setting.bucket}")
        storage = S3Storage(setting.bucket, setting.prefix, setting.endpoint, setting.region, circuit)
    if setting.keys:
        from infra.storage.encrypted import EncryptedStorage

        storage = EncryptedStorage(storage, setting.keys)
    return storage


def _s3(
    text: str, bucket: str, prefix: str, options: dict[str, str], keys: tuple[bytes, ...]
) -> StorageSetting:
    if unknown := sorted(set(options) - {"endpoint", "region"}):
        raise ValueError(f"MUSTER_STORAGE has an unknown option {unknown[0]!r}. {_FORMS}")
    if not _BUCKET.fullmatch(bucket):
        raise ValueError(
            f"MUSTER_STORAGE names the bucket {bucket!r}, which is not a valid bucket name. {_FORMS}"
        )
    endpoint, region = options.get("endpoint", ""), options.get("region", "")
    if endpoint and not _is_server(endpoint):
        raise ValueError(
            f"MUSTER_STORAGE has the endpoint {endpoint!r}: the endpoint is not an http address. {_FORMS}"
        )
    if region and not _REGION.fullmatch(region):
        raise ValueError(f"MUSTER_STORAGE has the region {region!r}, which is not a region name. {_FORMS}")
    if (
        len(prefix.encode()) > 200
        or not prefix.isprintable()
        or any(part in ("", ".", "..") for part in prefix.split("/") if prefix)
    ):
        raise ValueError(
            f"MUSTER_STORAGE is {text!r}: its prefix has to be names with single slashes. {_FORMS}"
        )
    return StorageSetting(bucket=bucket, prefix=prefix, endpoint=endpoint, region=region, keys=keys)


def _is_server(address: str) -> bool:
    try:
        host = urlsplit(address)
        port = host.port
    except ValueError:
        return False
    plain = "@" not in host.netloc and not host.query and port != 0
    return plain and host.scheme in ("http", "https") and bool(host.hostname)


def _key(number: int, text: str) -> bytes:
    """One key; never repeated in the message."""
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) != 32:
        raise ValueError(f"Key {number} of MUSTER_STORAGE_KEYS is not 32 bytes. {_KEY_FORM}")
    return key
