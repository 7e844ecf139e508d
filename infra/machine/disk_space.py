"""Room on the disks that the portal writes to: where it is short, in a person's words; no database needed."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from django.conf import settings
from django.core.cache import cache

from infra.db.error_messages import DISK_FULL_KEY

MIB: Final = 1024 * 1024
#: Each process reuses its last measurement for this many seconds.
REMEMBERED_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class Shortage:
    """One disk with little room left, or none; `free_bytes` is None where only PostgreSQL said so."""

    folder: str
    free_bytes: int | None
    full: bool

    @property
    def text(self) -> str:
        """For operators: the folder, what is free, and what to do."""
        if self.free_bytes is None:
            return "PostgreSQL could not write: its disk is full; free space there"
        state = "full" if self.full else "nearly full"
        return f"the disk of {self.folder} is {state}: {self.free_bytes // MIB} MiB free; free space there"


_looked_at = 0.0
_found: tuple[Shortage, ...] = ()


def shortages(*, fresh: bool = False) -> tuple[Shortage, ...]:
    """Every disk that is short of room, the fullest first; looked at once every few seconds, or now."""
    global _looked_at, _found
    if fresh or not _looked_at or time.monotonic() - _looked_at > REMEMBERED_SECONDS:
        _found = tuple(_look())
        _looked_at = time.monotonic()
    return _found


def _look() -> list[Shortage]:
    found: dict[int, Shortage] = {}
    for folder in _folders():
        try:
            device, disk = os.stat(folder).st_dev, os.statvfs(folder)
        except OSError:
            continue
        free = disk.f_bavail * disk.f_frsize
        if free < settings.MUSTER_DISK_LOW_MIB * MIB:
            found[device] = Shortage(str(folder), free, free < settings.MUSTER_DISK_FULL_MIB * MIB)
    elsewhere = not any(Path(folder, "postgres").exists() for folder in settings.MUSTER_DISK_FOLDERS)
    said = [Shortage("", None, True)] if elsewhere and cache.get(DISK_FULL_KEY) else []
    return sorted([*said, *found.values()], key=lambda row: row.free_bytes or 0)


def _folders() -> list[Path]:
    """What the settings name, and the data folder of an embedded PostgreSQL, which may be another disk."""
    named = [Path(folder) for folder in settings.MUSTER_DISK_FOLDERS]
    return [*named, *(folder / "postgres" for folder in named), *(folder / "log" for folder in named)]
