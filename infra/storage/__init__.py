"""Where the portal keeps large objects (artefacts): a folder or a bucket, encrypted if configured."""

from __future__ import annotations

from infra.storage.configured import StorageSetting, configured_storage, storage_of, storage_setting
from infra.storage.interface import (
    Damaged,
    InvalidKey,
    NotConfigured,
    NotStored,
    Readable,
    Storage,
    StorageAway,
    StorageError,
    StoredObject,
)

__all__ = [
    "Damaged",
    "InvalidKey",
    "NotConfigured",
    "NotStored",
    "Readable",
    "Storage",
    "StorageAway",
    "StorageError",
    "StorageSetting",
    "StoredObject",
    "configured_storage",
    "storage_of",
    "storage_setting",
]
